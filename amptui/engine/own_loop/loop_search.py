"""Waits for the first step of any optimizer in this process, to learn which loop there is to observe.

Until then a few methods are hooked in their classes, so that the loss, precision and scaler of that step are
known, and steps that a scaler skips are not missed. Then all of that comes off, but for one hook of torch's,
which tells the steps of other optimizers.
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amptui.engine.own_loop.loop_hooks import (
    SCALER_METHODS,
    FirstStep,
    LoopHooks,
    hook_class,
    is_from_signal_handler,
    leave_traceback,
    not_compiled,
    with_loss,
)
from amptui.engine.own_loop.parameter_owner import owner_of
from amptui.fork import in_forks

if TYPE_CHECKING:
    from amptui.engine.own_loop.observed_loop import ObservedLoop


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """An optimizer that is about to make its first step, and what belongs to it."""

    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler | None
    first_step: FirstStep


class LoopSearch:
    """Hooks until the first step; ``found`` is called with it, and returns who observes the loop, if anybody.

    ``failed`` gets the one error after which nothing is searched.
    """

    def __init__(
        self,
        *,
        found: "Callable[[FoundLoop], ObservedLoop | None]",
        failed: Callable[[Exception], object],
    ) -> None:
        self._found = found
        self._failed = failed
        self._chosen: weakref.ref[Optimizer] | None = None
        self._loop: ObservedLoop | None = None
        self._first = FirstStep()
        self._removals: list[Callable[[], object]] = []
        in_forks(self.remove)
        for method in (LoopSearch._after_backward, LoopSearch._after_autocast, LoopSearch._scaler_called):
            not_compiled(method, calls=True)
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        try:
            self._removals.append(hook_class(Tensor, "backward", self._after_backward))
            self._removals.append(hook_class(torch.autocast, "__enter__", self._after_autocast))
            for name in SCALER_METHODS[:3]:  # an update follows a step
                self._removals.append(_hook_scalers(name, self._scaler_called))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Search no more, and tell nothing more."""
        self._stop_searching()
        self._handle.remove()

    def _stop_searching(self) -> None:
        while self._removals:
            self._removals.pop()()

    def _after_autocast(self, context: Any) -> None:
        if torch.is_grad_enabled() and torch.is_autocast_enabled(context.device):
            self._first.autocast[context.device] = torch.get_autocast_dtype(context.device)

    def _after_backward(self, loss: Tensor) -> None:
        self._first.backwards += 1
        if not self._first.is_scaled:
            self._first.loss = with_loss(self._first.loss, loss)

    def _scaler_called(self, scaler: GradScaler, name: str, argument: object) -> LoopHooks | None:
        """Before a method of any scaler's; returns the hooks that are to surround it."""
        if name == "scale":
            if scaler.is_enabled():
                self._first.is_scaled = True
                self._first.loss = with_loss(self._first.loss, argument)
        elif isinstance(argument, Optimizer):
            return self._choose(argument, scaler)
        return None

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        if self._chosen is None:
            try:
                self._choose(optimizer, None)
            except BaseException as error:
                leave_traceback(error)
                raise
        elif self._loop is not None and optimizer is not self._chosen():
            self._loop.before_other_step(type(optimizer).__name__)

    def _choose(self, optimizer: Optimizer, scaler: GradScaler | None) -> LoopHooks | None:
        self._chosen = weakref.ref(optimizer)
        self._stop_searching()
        try:
            self._loop = self._found(FoundLoop(owner_of(optimizer), optimizer, scaler, self._first))
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._failed(error)
        return None if self._loop is None else self._loop.hooks


def _hook_scalers(
    name: str, called: Callable[[GradScaler, str, object], LoopHooks | None]
) -> Callable[[], None]:
    """Call ``called`` before a method of every scaler; returns what undoes it."""
    before: Callable[..., Any] = getattr(GradScaler, name)

    @functools.wraps(before)
    def hooked(self: GradScaler, *args: Any, **kwargs: Any) -> Any:
        try:
            hooks = called(self, name, next(iter((*args, *kwargs.values())), None))
            if hooks is None or not self.is_enabled():
                return before(self, *args, **kwargs)
            # The method is called already: what was hooked just now would only surround the next call.
            return hooks.around(name)(functools.partial(before, self), *args, **kwargs)
        except BaseException as error:
            leave_traceback(error)
            raise

    def undo() -> None:
        if getattr(GradScaler, name) is hooked:
            setattr(GradScaler, name, before)

    not_compiled(hooked, calls=False)
    setattr(GradScaler, name, hooked)
    return undo
