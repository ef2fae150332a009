"""What the monitors of Accelerate, Lightning and Hugging Face share: their scripts, events and faults."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from torch import nn
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler
from amptui.guest.amp_monitor import must_have_closure
from amptui.guest.loop.script import NamedOptimizer, WatchedScript
from amptui.guest.loop.switched_amp import SwitchedAmp
from amptui.guest.loop.switched_optimizer import SwitchedOptimizer
from amptui.guest.monitor import Monitor
from amptui.guest.run import tell_fault
from amptui.recipe.precision import amp_of, unsupported_precisions
from amptui.records.run import FP8_PRECISIONS

LIGHTNING_NAMES = {
    "fp32": "32-true",
    "ieee": "32-true",
    "tf32": "32-true",
    "fp16": "16-mixed",
    "bf16": "bf16-mixed",
    **dict.fromkeys(FP8_PRECISIONS, "bf16-mixed"),
}
"""What Lightning calls each precision: FP8 as what it is but for the Linear layers."""

OWN_NAMES = {"32-true": "fp32", "16-mixed": "fp16", "bf16-mixed": "bf16"}
"""What amptui calls those of Lightning's that it can switch."""


_Event = TypeVar("_Event", bound=Callable[..., None])


def harmless_event(event: _Event) -> _Event:
    """An event of a framework's in which an error ends the watching, not the training."""

    @functools.wraps(event)
    def call(monitor: Any, *args: Any, **kwargs: Any) -> None:
        if monitor.failed:
            return
        try:
            event(monitor, *args, **kwargs)
        except Exception as error:  # whatever fails here, the training goes on
            if is_from_signal_handler(error):
                raise
            monitor.give_up(error)

    return cast("_Event", call)


class FrameworkMonitor(Monitor):
    """A run of a framework's loop, which tells us where its steps end."""

    may_stop = True
    """Whether to end the loop when a screen asks for it: of several processes all would have to."""

    failed = False
    """Whether an error of amptui's own has ended the watching before there was a run."""

    @property
    def should_stop(self) -> bool:
        return self.may_stop and super().should_stop

    def end_step(self) -> None:
        """Handle the requests, if a step has ended since the last call."""
        if self._run is not None and isinstance(self._run.first, SwitchedOptimizer):
            self._run.first.end_step()

    @harmless_event
    def finish_epoch(self) -> None:
        """Report the epoch, once its last steps are delivered."""
        if self._run is not None:
            self._run.loop.finish_epoch()

    def give_up(self, error: Exception) -> None:
        """Watch nothing more, by a fault of amptui's own, which is told once."""
        if self._run is not None:
            if self._run.loop.active:
                self._run.loop.give_up(error)
        elif not self.failed:
            self.failed = True
            tell_fault("cannot watch this training, which goes on", error)


def lightning_script(
    model: nn.Module,
    optimizer: Optimizer,
    amp: SwitchedAmp,
    *,
    amp_precision: str | None,
    has_closure: bool = False,
    **options: Any,
) -> WatchedScript:
    """A script that begins in the precision of ``amp``; AMP is ``amp_precision``, or what is usual.

    ``has_closure``: whether ``optimizer.step`` gets one that it may run again. ``options`` are further fields
    of :class:`WatchedScript`.
    """
    precision = amp.precision.name
    unsupported = amp.take_layers({"": model}, unsupported_precisions(amp.device))
    if has_closure or must_have_closure(optimizer):
        unsupported["fp16"] = f"{type(optimizer).__name__} runs its closure again, which no scaler allows"
    unsupported.pop(precision, None)  # it is the script's own choice
    return WatchedScript(
        first=NamedOptimizer("", model, optimizer),
        amp=amp,
        amp_precision=amp_of(amp.device, precision, amp_precision),
        unsupported=unsupported,
        ends_steps=True,
        **options,
    )


def model_of(optimizer: Optimizer, models: Iterable[nn.Module]) -> nn.Module | None:
    """The first of ``models`` with a parameter that ``optimizer`` changes."""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return next((model for model in models if any(id(p) in own for p in model.parameters())), None)


class ClosureRunBefore:
    """Runs ``closure`` now; its first call returns that result, later ones run it again, as LBFGS does."""

    def __init__(self, closure: Callable[[], Any]) -> None:
        self._closure = closure
        self._results = [closure()]

    def __call__(self) -> Any:
        return self._results.pop() if self._results else self._closure()
