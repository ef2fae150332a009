"""What is trained: all of it for the training loop, and the part that probes and the precision switch use."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.data.batches import Batches
from amptui.data.sources import Data
from amptui.loops.compilation import CompileWatch
from amptui.monitor.lr_schedule import LrSchedule
from amptui.recipe.experiment import Experiment
from amptui.recipe.precision import Precision
from amptui.recipe.request import TrainRequest

if TYPE_CHECKING:
    from amptui.loops.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long the run is; None if the data has no known length."""

    epochs: int
    steps: int | None
    """The expected number of steps; wrong if the data reports a wrong length."""
    steps_per_epoch: int | None
    """Optimizer steps."""
    asked_steps: int | None = None
    """``--steps``: the run ends after them, even in the middle of an epoch."""
    asked_epochs: bool = True
    """Whether the run ends with the last epoch; else it runs as many as ``asked_steps`` need."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Everything the training loop needs."""

    request: TrainRequest
    device: torch.device
    experiment: Experiment
    data: Data
    training: Batches
    validation: Batches | None
    model: nn.Module
    optimizer: Optimizer
    built_groups: int
    """The parameter groups that ``build_optimizer()`` made; training may add others."""
    scaler: GradScaler
    precisions: dict[str, Precision]
    unsupported: dict[str, str]
    precision: str
    amp_precision: str
    schedule: Schedule
    lr_schedule: LrSchedule | None
    strategy: "Strategy"
    """How it trains together with other ranks, or alone."""
    compilations: CompileWatch = field(default_factory=CompileWatch)

    @property
    def batch_size(self) -> int:
        """Samples of a full batch."""
        return self.experiment.batch_size

    @property
    def probes(self) -> bool:
        """See :class:`Trained`, as of ``max_rounds``."""
        return self.request.probes

    @property
    def max_rounds(self) -> int | None:
        return self.request.max_rounds
