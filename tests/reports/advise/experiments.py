"""Small experiments, each with one thing that matters to a choice of precision."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui import Arrays, Data, DataRequest, Experiment


class Mlp(Experiment):
    """Classifies noise by its mean."""

    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 1e-3

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.rand((256, 1, 8, 8), generator=generator)
        targets = (inputs.flatten(1).mean(1) * 40 - 18).long().clamp(0, 3)
        arrays = Arrays(inputs, targets)
        return Data(name="noise", real=False, train=arrays, validation=arrays)


class _Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


class Outliers(Mlp):
    """Activations of a million in front of a norm: they leave float16's range in the forward pass."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), _Times(1e6), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4)
        )


class RefusesBf16(Mlp):
    """Its own operator fails in bfloat16."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        outputs = model(inputs)
        if outputs.dtype == torch.bfloat16:
            raise RuntimeError("my_kernel not implemented for 'BFloat16'")
        return functional.cross_entropy(outputs.float(), targets)


class Diverging(Mlp):
    """Its loss is NaN from the step ``bad`` on, and so are the weights then."""

    bad: int = 30

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        outputs = model(inputs)
        self.calls = getattr(self, "calls", 0) + 1
        loss = functional.cross_entropy(outputs.float(), targets)
        return loss * float("nan") if self.calls > self.bad and self.is_lost_in(outputs.dtype) else loss

    def is_lost_in(self, dtype: torch.dtype) -> bool:
        return True


class LateNaN(Diverging):
    """In bfloat16 alone."""

    def is_lost_in(self, dtype: torch.dtype) -> bool:
        return dtype == torch.bfloat16
