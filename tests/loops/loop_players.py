"""Who trains in a generated loop, and what was true of its steps."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from tests.loops.loop_plans import LoopPlan

if TYPE_CHECKING:
    from tests.loops.loop_interpreter import LoopRun

FEATURES, TARGETS = 6, 3

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Net(nn.Module):
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


_COMPUTED = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "float64"}
_WEIGHTS = {torch.bfloat16: "bf16 weights", torch.float16: "fp16 weights", torch.float64: "float64"}


@dataclass(frozen=True, eq=False)
class Pass:
    """A backward pass; ``loss``: the unscaled value that was backpropagated, None if it was no single one."""

    loss: float | None
    computed: torch.dtype
    """Of the matrix products in its forward pass."""
    without_last_layer: bool
    """Whether autocast was disabled for one of them."""


@dataclass(frozen=True)
class TrueStep:
    player: int
    step: int
    """Of this optimizer, counted from 1."""
    loss: float | None
    """The sum over the passes; None with the reason as ``loss_form``."""
    loss_form: str
    passes: int
    precisions: tuple[str, ...]
    """Each is a true name of it."""
    skipped: bool
    loss_scale: float | None
    lrs: tuple[float, ...]
    """Of its parameter groups."""
    logged: float | None = None
    """What the loop logged in the place of the loss."""


@dataclass(frozen=True)
class Dropped:
    """Gradients of so many passes were cleared by a guard after ``step`` steps."""

    player: int
    step: int
    passes: int
    is_finite: bool
    """Whether their losses are: then nothing is told."""


class Truth:
    """Follows which passes each parameter's gradient is of."""

    def __init__(self) -> None:
        self.steps: list[TrueStep] = []
        self.dropped: list[Dropped] = []
        self.logged: float | None = None
        """What the next step's loss is called by the loop."""
        self._passes_of: dict[int, list[Pass]] = {}
        """By the id of a parameter."""
        self._step_counts: dict[int, int] = {}

    def backward(self, run: Callable[[], object], parameters: Sequence[Tensor], entry: Pass) -> None:
        """Call ``run``, a backward pass: a parameter whose gradient is new or has changed was reached."""
        before = [_state(parameter) for parameter in parameters]
        run()
        for parameter, state in zip(parameters, before, strict=True):
            if _state(parameter) not in (None, state):
                self._passes_of.setdefault(id(parameter), []).append(entry)

    def count(self, player: int) -> int:
        return self._step_counts.get(player, 0)

    def cleared(self, parameters: Iterable[Tensor]) -> None:
        """Their gradients are None or zeros, or of no pass."""
        for parameter in parameters:
            self._passes_of.pop(id(parameter), None)

    def forget(self) -> None:
        """The parameters are gone."""
        self._passes_of.clear()

    def passes(self, optimizer: Optimizer) -> list[Pass]:
        """Those that the gradients of its parameters are of."""
        passes = [
            entry for parameter in _trained(optimizer) for entry in self._passes_of.get(id(parameter), ())
        ]
        return list(dict.fromkeys(passes))

    def step(
        self, player: int, optimizer: Optimizer, scaler: GradScaler | None, computed: torch.dtype
    ) -> Callable[..., None]:
        """The optimizer is about to step; call what is returned when it has."""
        scales = scaler is not None and scaler.is_enabled()
        of_gradients, weights = self.passes(optimizer), next(_trained(optimizer)).dtype
        gradients = [parameter.grad for parameter in _trained(optimizer) if parameter.grad is not None]
        skipped = scales and not all(bool(gradient.isfinite().all()) for gradient in gradients)
        loss_scale = scaler.get_scale() if scales and scaler is not None else None
        lrs = tuple(float(group["lr"]) for group in optimizer.param_groups)

        def record_step(first_closure: list[Pass] | None = None, closures: int = 1) -> None:
            number = self._step_counts[player] = self.count(player) + 1
            passes = of_gradients if first_closure is None else first_closure
            loss, form = _loss_of(passes, closures)
            logged, self.logged = self.logged, None
            self.steps.append(
                TrueStep(
                    player,
                    number,
                    loss,
                    form,
                    len(passes),
                    _precisions(passes, weights, computed),
                    skipped,
                    loss_scale,
                    lrs,
                    logged,
                )
            )

        return record_step

    def drop(self, player: int, optimizer: Optimizer) -> None:
        """A guard is about to clear the gradients."""
        passes = self.passes(optimizer)
        is_finite = all(entry.loss is not None and math.isfinite(entry.loss) for entry in passes)
        self.dropped.append(Dropped(player, self.count(player), len(passes), is_finite))


def _trained(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _state(parameter: Tensor) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)


def _loss_of(passes: Sequence[Pass], closures: int) -> tuple[float | None, str]:
    if not passes:
        return None, "no backward"
    losses = [entry.loss for entry in passes if entry.loss is not None]
    if len(losses) < len(passes):
        return None, "several values"
    form = "first closure" if closures > 1 else "sum" if len(losses) > 1 else ""
    return sum(losses), form


def _precisions(passes: Sequence[Pass], weights: torch.dtype, computed: torch.dtype) -> tuple[str, ...]:
    if weights in _WEIGHTS:
        return (_WEIGHTS[weights],)
    dtypes = {entry.computed for entry in passes} or {computed}
    if len(dtypes) > 1:
        return ("mixed",)
    name = _COMPUTED[dtypes.pop()]
    return (name, "mixed") if any(entry.without_last_layer for entry in passes) else (name,)
