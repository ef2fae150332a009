"""What Lightning's Trainer and Fabric train, as the engine takes it; and closures of optimizers."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from amptui.engine.precision import unsupported_precisions
from amptui.guest.amp_monitor import default_amp
from amptui.guest.loop.named_optimizers import NamedOptimizer
from amptui.guest.loop.switched_amp import SwitchedAmp
from amptui.guest.loop.trained_script import OwnLoop
from amptui.records.run import AMP_PRECISIONS

LIGHTNING_NAMES = {
    "fp32": "32-true",
    "ieee": "32-true",
    "tf32": "32-true",
    "fp16": "16-mixed",
    "bf16": "bf16-mixed",
}
"""What Lightning calls each precision."""

OWN_NAMES = {"32-true": "fp32", "16-mixed": "fp16", "bf16-mixed": "bf16"}
"""What amptui calls those of Lightning's that it can switch."""


def checked_amp(amp: str | None) -> str | None:
    """``amp`` itself. Raises ValueError if AMP cannot mean that."""
    if amp is not None and amp not in AMP_PRECISIONS:
        raise ValueError(f"amp must be one of {', '.join(AMP_PRECISIONS)}, not {amp!r}")
    return amp


def build_own_loop(
    model: nn.Module,
    optimizer: Optimizer,
    amp: SwitchedAmp,
    *,
    amp_precision: str | None,
    closure: bool,
    no_closure: str,
) -> OwnLoop:
    """A loop that begins in the precision of ``amp``; AMP is ``amp_precision``, or what is usual.

    ``closure``: whether ``optimizer.step`` gets one that it may run again. ``no_closure``: why nothing else
    can run a forward pass again.
    """
    precision = amp.precision.name
    mixed = precision if precision in AMP_PRECISIONS else default_amp(amp.device)
    unsupported = unsupported_precisions(amp.device)
    if closure:
        unsupported["fp16"] = f"{type(optimizer).__name__} runs its closure again, which no scaler allows"
    unsupported.pop(precision, None)  # it is the script's own choice
    return OwnLoop(
        device=amp.device,
        trained=NamedOptimizer("", model, optimizer),
        precisions=amp.precisions,
        precision=precision,
        amp_precision=amp_precision or mixed,
        unsupported=unsupported,
        ends_steps=True,
        no_closure=no_closure,
    )


class ClosureRunBefore:
    """Runs ``closure`` now; its first call returns that result, later ones run it again, as LBFGS does."""

    def __init__(self, closure: Callable[[], Any]) -> None:
        self._closure = closure
        self._results = [closure()]

    def __call__(self) -> Any:
        return self._results.pop() if self._results else self._closure()
