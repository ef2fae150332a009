"""Experiments that leave the range of a precision."""

import math
from typing import Any

import torch
from torch import nn

from tests.recipes.limits import Limits


class Outliers(Limits):
    """Activations of 400,000 in front of a norm: they leave float16's range in the forward pass."""

    def build_model(self) -> nn.Module:
        large = nn.Linear(16, 16)
        nn.init.constant_(large.weight, 5e4)
        return nn.Sequential(nn.Flatten(), large, nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


class LateNaN(Limits):
    """In bfloat16 its loss is NaN from the 31st step on, and so are the weights then."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        loss: Any = super().loss(model, batch)
        return loss * math.nan if self.calls > 30 and torch.is_autocast_enabled("cpu") else loss
