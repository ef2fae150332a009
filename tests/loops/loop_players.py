"""Who takes part in a generated loop: small networks, each with its optimizer, and whoever watches."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from tests.loops.loop_plans import LoopPlan

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler

    from tests.loops.loop_interpreter import LoopRun

FEATURES, TARGETS = 6, 3

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Net(nn.Module):
    """Two linear layers."""

    def __init__(self, plan: LoopPlan, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 8)
        self.head = nn.Linear(8, outputs)
        self.checkpoints = plan.checkpoints
        self.casts_last_layer = plan.autocast.without != "last layer"
        if "frozen layer" in plan.extras:
            self.body.requires_grad_(requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self._run_body(inputs)
        if not self.casts_last_layer:
            hidden = hidden.to(self.body.weight.dtype)
        with self._around_last_layer():
            output: Tensor = self.head(hidden)
        return output

    def _run_body(self, inputs: Tensor) -> Tensor:
        if self.checkpoints == "none" or not torch.is_grad_enabled():
            return self._activate(inputs)
        hidden: Tensor = checkpoint(self._activate, inputs, use_reentrant=self.checkpoints == "reentrant")
        return hidden

    def _activate(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.body(inputs))

    def _around_last_layer(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.casts_last_layer else torch.autocast("cpu", enabled=False)


class SAM(Optimizer):
    """Sharpness-aware minimization around an optimizer that shares its parameter groups."""

    def __init__(
        self, parameters: Iterable[Any], base: type[Optimizer], rho: float = 0.05, **options: Any
    ) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb to the worst weights nearby, and clear the gradients."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.state[weight]["before"] = weight.detach().clone()
                    weight.add_(weight.grad, alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back, and make the base optimizer's step with the gradients from there."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.copy_(self.state[weight]["before"])
        self.base_optimizer.step()


Batch = tuple[Tensor, Tensor]
LEARNING_RATE = 0.05


class Unwatched:
    """Nobody watches: what a loop says to its monitor goes nowhere."""

    amp: Any = None
    """An autocast and a scaler whose precision changes between two steps, as those of an ``AmpMonitor``."""
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
