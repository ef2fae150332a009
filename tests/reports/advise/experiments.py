"""An experiment whose weights are lost."""

import math
from typing import Any

import torch
from torch import nn

from tests.recipes.limits import Limits


class LateNaN(Limits):
    """In bfloat16 its loss is NaN from the 31st step on, and so are the weights then."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        loss: Any = super().loss(model, batch)
        return loss * math.nan if self.calls > 30 and torch.is_autocast_enabled("cpu") else loss
