"""What a script trains whose precision amptui switches, as the engine's parts take it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.engine.precision import Precision
from amptui.guest.loop.named_optimizers import NamedOptimizer
from amptui.recipe.experiment import Experiment

NO_CLOSURE = "it runs the forward pass again: train with monitor.train_step()"

NO_SAVE = "the script saves its own state: pass save=... to amptui.watch()"


class _Script(Experiment):
    """The script's forward passes as probes call them: a batch is a function that returns its loss."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ARG002 - the function knows its model
        loss: Tensor = batch()
        return loss


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnLoop:
    """What a script trains, as :class:`amptui.engine.trained.Trained` describes it."""

    device: torch.device
    trained: NamedOptimizer
    precisions: Mapping[str, Precision]
    precision: str
    amp_precision: str
    unsupported: Mapping[str, str]
    experiment: Experiment = field(default_factory=_Script)
    batch_size: None = None
    lr_schedule: None = None
    probes: bool = True
    max_rounds: None = None
    ends_steps: bool = False
    """Whether the loop calls :meth:`WatchedLoop.end_step` where its own count of a step is complete."""
    no_closure: str = NO_CLOSURE
    """Why nothing can run a forward pass again, unless the steps are functions."""

    @property
    def model(self) -> nn.Module:
        """The one that is trained."""
        return self.trained.model

    @property
    def optimizer(self) -> Optimizer:
        """The one that trains it now."""
        return self.trained.optimizer
