"""What a loop's steps were, from the loop itself and torch: nothing of amptui's is asked."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

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
    """An optimizer step as it was."""

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
        """How many steps its optimizers have made."""
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
        skipped = scales and not all(_is_finite(parameter) for parameter in _trained(optimizer))
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


def _is_finite(parameter: Tensor) -> bool:
    return parameter.grad is None or bool(parameter.grad.isfinite().all())


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
