"""An experiment with every part of a recipe, and the loop that its author would have written by hand."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from amptui import warmup_cosine, weight_decay_groups
from tests.tiny import Tiny

TOTAL_STEPS = 12


class Recipe(Tiny):
    """Parameter groups, LR warm-up and cosine decay, EMA of the weights; ``spoilt`` batches have an Inf."""

    epochs: int = 2
    batch_size: int = 8
    samples: int = 88
    """11 batches an epoch: with 4 a step, the last step of an epoch has 3."""
    spoilt: str = ""
    """Numbers of the calls of ``loss()`` in training whose gradients are made Inf, with commas."""
    fused: bool = True

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.calls = 0
        groups = weight_decay_groups(model, 0.1)
        groups[1]["lr"] = 2 * self.learning_rate
        return torch.optim.AdamW(groups, lr=self.learning_rate, fused=self.fused)

    def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler:
        return warmup_cosine(optimizer, total_steps, warmup_steps=3)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        if model.training:
            self.calls += 1
            if str(self.calls) in self.spoilt.split(","):
                loss.register_hook(lambda gradient: gradient * torch.inf)
        return loss

    def after_step(self, model: nn.Module) -> None:
        self.ema.update_parameters(model)
