"""What preparing leaves for the training loop."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.data.batches import Batches
from amptui.data.sources import Data
from amptui.engine.compilation import CompileWatch
from amptui.engine.lr_schedule import LrSchedule
from amptui.engine.precision import Precision
from amptui.recipe.experiment import Experiment

if TYPE_CHECKING:
    from amptui.ranks.parallel.data_parallel import DataParallel


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
    clip_norm: float | None
    accumulate: int
    """Batches per optimizer step."""
    validate_every: int | None
    """Steps between validations within an epoch; None validates after epochs only."""
    validation_batches: int | None
    """The limit on batches of a validation."""
    seed: int
    probes: bool
    """Whether to probe gradients and modules."""
    max_rounds: int | None
    """The limit on rounds of an A/B test; None uses the default."""
    compilations: CompileWatch = field(default_factory=CompileWatch)
    parallel: "DataParallel | None" = None
    """The loss and the other ranks of a run of several; None in a single process."""

    @property
    def batch_size(self) -> int:
        """Samples of a full batch."""
        return self.experiment.batch_size
