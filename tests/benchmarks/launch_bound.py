"""Many tiny layers: a step is nothing but the launching of kernels, and waits for none of them."""

import torch
from torch import nn

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays


class LaunchBound(Experiment):
    """The worst case for whatever shares the interpreter with the training."""

    epochs: int = 100
    batch_size: int = 16
    learning_rate: float = 1e-3
    layers: int = 120
    """About 2.2 ms a step on one core of an EPYC server of 2024: the aims are for 2.3 ms."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *(nn.Linear(16, 16) for _ in range(self.layers)), nn.Linear(16, 4))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, fused=True)

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.randint(0, 256, (16_000, 1, 4, 4), generator=generator, dtype=torch.uint8)
        # The class is the first pixel's brightness: something to learn, at no cost.
        return Data(name="noise", real=False, train=Arrays(inputs, inputs.flatten(1)[:, 0].long() // 64))
