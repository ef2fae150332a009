"""What is trained, as probes and the precision switch know it, whoever's loop it is."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from amptui.recipe.experiment import Experiment
from amptui.recipe.precision import Precision

if TYPE_CHECKING:
    from amptui.monitor.lr_schedule import LrSchedule

_REFERENCES = 2
"""To an optimizer that only its NamedOptimizer holds, while they are counted."""


@dataclass(slots=True, eq=False)
class NamedOptimizer:
    """An optimizer, the model whose parameters it changes, and what a screen calls it.

    Nothing else of ours keeps the two of a script alive; others may come in their place.
    """

    name: str
    model: nn.Module
    optimizer: Optimizer

    @property
    def is_dropped(self) -> bool:
        """Whether the script has dropped the optimizer: only this object refers to it."""
        return sys.getrefcount(self.optimizer) <= _REFERENCES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The model, its optimizer, and the precisions in which it can be trained."""

    first: NamedOptimizer
    device: torch.device
    experiment: Experiment
    """Its ``loss()`` runs a forward pass again."""
    precisions: dict[str, Precision]
    precision: str
    """The first one."""
    amp_precision: str
    """What AMP means: ``fp16`` or ``bf16``."""
    unsupported: Mapping[str, str]
    """Those that the device does not support, each with the reason."""
    lr_schedule: "LrSchedule | None" = None
    """None also if a script has its own."""
    probes: bool
    """Whether to probe gradients and modules."""
    batch_size: int | None = None
    """Samples of a full batch, which a hint may advise to reduce; None if amptui does not set it."""
    max_rounds: int | None = None
    """The limit on rounds of an A/B test; None uses the default."""

    @property
    def model(self) -> nn.Module:
        """The one that is trained now."""
        return self.first.model

    @property
    def optimizer(self) -> Optimizer:
        """The one that trains it."""
        return self.first.optimizer
