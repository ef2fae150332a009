"""A model file with limits: batches that do not fit, and a precision that its code cannot run."""

import torch
from torch import Tensor, nn

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays


class Limits(Experiment):
    """A linear model on noise that refuses what its options tell it to."""

    batch_size: int = 8
    max_samples: int = 1000
    """A larger batch is out of memory."""
    refuses: str = "none"
    """The dtype of the autocast that it cannot run: ``bfloat16``."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.randint(0, 256, (640, 1, 4, 4), generator=generator, dtype=torch.uint8)
        return Data(name="noise", real=False, train=Arrays(inputs, inputs.flatten(1)[:, 0].long() // 64))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor | dict[str, Tensor]:
        if len(batch[0]) > self.max_samples:
            raise MemoryError
        if torch.is_autocast_enabled("cpu") and str(torch.get_autocast_dtype("cpu")).endswith(self.refuses):
            raise RuntimeError(f"not implemented for {self.refuses}")
        return super().loss(model, batch)
