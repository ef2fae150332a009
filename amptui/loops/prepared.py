"""What the training loop trains, and how long."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.amp.grad_scaler import GradScaler

from amptui.data.batches import Batches
from amptui.data.sources import Data
from amptui.recipe.request import TrainRequest
from amptui.recipe.trained import Trained

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
class Prepared(Trained):
    """Everything the training loop needs."""

    request: TrainRequest
    data: Data
    training: Batches
    validation: Batches | None
    built_groups: int
    """The parameter groups that ``build_optimizer()`` made; training may add others."""
    scaler: GradScaler
    schedule: Schedule
    strategy: "Strategy"
    """How it trains together with other ranks, or alone."""
