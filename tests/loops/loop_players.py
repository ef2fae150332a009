"""Who takes part in a generated loop: parameters with their optimizer, and whoever watches."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from tests.loops.loop_networks import SAM, Net
from tests.loops.loop_plans import LoopPlan

if TYPE_CHECKING:
    from tests.loops.loop_interpreter import LoopRun

Batch = tuple[Tensor, Tensor]
LEARNING_RATE = 0.05


class Amp(Protocol):
    """An autocast and a scaler whose precision changes between two steps."""

    @property
    def scaler(self) -> GradScaler: ...
    def autocast(self) -> AbstractContextManager[Any]: ...
    def backward(self, loss: Tensor) -> None: ...
    def step(self) -> None: ...


class Unwatched:
    """Nobody watches: what a loop says to its monitor goes nowhere."""

    amp: Amp | None = None
    supplies_amp = uses_monitor = forgets_autocast = logs_loss = False

    def open(self, run: "LoopRun") -> None:
        """The loop is about to begin."""

    def close(self) -> None:
        """It has ended."""

    def epochs(self, count: int) -> Iterable[int]:
        return range(count)

    def steps(self, batches: list[Batch]) -> Iterable[Batch]:
        return batches

    def log(self, loss: Tensor) -> None:
        """The loop logs a loss."""

    def before_step(self, player: int, step: int) -> None:
        """A player's step begins, counted from 1."""


class Player:
    """Parameters that one optimizer changes, with all that belongs to it."""

    def __init__(self, plan: LoopPlan, number: int, net: Net, parameters: list[nn.Parameter]) -> None:
        self.plan, self.number, self.net = plan, number, net
        self.parameters = parameters
        self.module: Callable[..., Tensor] = net
        if plan.compiled != "none":
            self.module = torch.compile(net, backend=plan.compiled)
        self.scaler: GradScaler | None = None
        self.make_optimizer()

    def make_optimizer(self) -> None:
        """As the plan says; again for one that replaces another."""
        plan = self.plan
        groups: list[dict[str, Any]] = [{"params": self.parameters}]
        if plan.groups == 2:
            groups = [
                {"params": self.parameters[:1]},
                {"params": self.parameters[1:], "lr": LEARNING_RATE / 10},
            ]
        kind: Any = torch.optim.AdamW if plan.optimizer == "AdamW" else torch.optim.SGD
        if plan.shape == "LBFGS":
            self.optimizer: Optimizer = torch.optim.LBFGS(self.parameters, lr=0.1, max_iter=plan.turns)
        elif plan.shape == "SAM class":
            self.optimizer = SAM(groups, kind, lr=LEARNING_RATE)
        else:
            self.optimizer = kind(groups, lr=LEARNING_RATE)
        self.scheduler = _scheduler(plan, self.stepped_optimizer)

    @property
    def stepped_optimizer(self) -> Optimizer:
        """The one whose ``step`` is called."""
        return self.optimizer.base_optimizer if isinstance(self.optimizer, SAM) else self.optimizer


def _scheduler(plan: LoopPlan, optimizer: Optimizer) -> Any:
    schedulers = torch.optim.lr_scheduler
    match plan.schedule:
        case "StepLR" | "StepLR each epoch":
            return schedulers.StepLR(optimizer, step_size=1, gamma=0.5)
        case "OneCycleLR":
            total = plan.steps * plan.epochs * max(1, plan.turns) + 1
            return schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=total, cycle_momentum=False)
        case "ReduceLROnPlateau":
            return schedulers.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    return None
