"""The hooks in somebody else's loop: they call a watcher around each part of a step, and come off again.

Of optimizer and scaler only these objects are hooked, and the model not at all: hooks of a module would go
into its copies, its saved files and what ``torch.compile`` makes of it. Two methods are hooked for all:
``Tensor.backward``, to learn a loss that no scaler multiplies, and the entry into ``torch.autocast``.

An error of the script's that passes through a hook has the traceback that it has without hooks, and the loop
holds nothing alive that the script has let go of.
"""

import functools
import signal
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

_MISSING: Any = object()

SCALER_METHODS = ("scale", "unscale_", "step", "update")

_OUR_FILES = str(Path(__file__).parents[2])


class Guarded(Protocol):
    """What calls methods of ours from hooks: a fault there ends it, not the training."""

    active: bool

    @property
    def must_not_look(self) -> bool:
        """Whether nothing may be done now."""

    def give_up(self, error: Exception) -> None:
        """Observe nothing more."""


class Watcher(Guarded, Protocol):
    """What the hooks call. No method may change a tensor that it gets."""

    @property
    def on_cuda(self) -> bool:
        """Whether the model is on a GPU; elsewhere it is never the wrong moment to look."""

    def after_autocast(self, context: torch.autocast) -> None:
        """A context of autocast was entered."""

    def scaled(self, loss: object) -> None:
        """``scaler.scale`` was called with ``loss``."""

    def after_backward(self, loss: Tensor) -> None:
        """``loss.backward()`` has returned."""

    def after_step(self) -> None:
        """The optimizer has stepped without a scaler."""

    def after_unscale(self) -> None:
        """The scaler has divided the optimizer's gradients by the scale, and looked for overflows."""

    def after_scaled_step(self) -> None:
        """``scaler.step(optimizer)`` has returned: the weights changed, or the step was skipped."""

    def before_update(self) -> None:
        """``scaler.update()`` is about to write the scale in place."""

    def after_update(self) -> None:
        """It has."""


_P = ParamSpec("_P")
_Loop = TypeVar("_Loop", bound=Guarded)


def harmless(method: Callable[Concatenate[_Loop, _P], None]) -> Callable[Concatenate[_Loop, _P], None]:
    """Call it while the loop is observed; an error there ends the observation, not the training."""

    @functools.wraps(method)
    def call(loop: _Loop, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not loop.active:
            return
        try:
            if not loop.must_not_look:
                method(loop, *args, **kwargs)
        except BaseException as error:
            if not is_settled(loop, error):
                raise

    return call


def is_settled(loop: Guarded, error: BaseException) -> bool:
    """Whether ``error``, caught at work of ours, was ours: then nothing is observed any more.

    The script's Ctrl+C or alarm, which may find us at work, is to be raised again: it has none of our frames.
    """
    if isinstance(error, Exception) and not is_from_signal_handler(error):
        loop.give_up(error)
        return True
    leave_traceback(error)
    return False


@dataclass(slots=True)
class FirstStep:
    """What happened in a step before its optimizer was known."""

    loss: Tensor | None = None
    """The sum of the unscaled losses, on their device."""
    backwards: int = 0
    is_scaled: bool = False
    autocast: dict[str, torch.dtype] = field(default_factory=dict)
    """By type of device, what autocast was entered for, with gradients."""


def with_loss(total: Tensor | None, loss: object) -> Tensor | None:
    """Losses of one step add up as their gradients do; what is no loss adds nothing."""
    if not isinstance(loss, Tensor):
        return total
    value = loss.detach()
    if value.dim():
        if value.numel() != 1:
            return total
        value = value.reshape(())
    return value if total is None else total + value


class LoopHooks:
    """The hooks of one loop, in place until :meth:`remove`.

    They run several times in each step: what they do beside the script's own call is guarded here, once.
    """

    def __init__(self, optimizer: Optimizer, scaler: GradScaler | None, watcher: Watcher) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._watcher = watcher
        self._in_scaler = False
        self._removals: list[Callable[[], object]] = []
        for function in (*(self.around(name) for name in SCALER_METHODS), _Hooked.__call__):
            not_compiled(getattr(function, "__func__", function), calls=False)
        for function in (LoopHooks._tell, LoopHooks._after_step):
            not_compiled(function, calls=True)
        tell = self._tell
        try:
            self._removals.append(optimizer.register_step_post_hook(self._after_step).remove)
            self._removals.append(hook_class(Tensor, "backward", partial(tell, watcher.after_backward)))
            self._removals.append(
                hook_class(torch.autocast, "__enter__", partial(tell, watcher.after_autocast))
            )
            if scaler is not None:
                self._hook_scaler(scaler)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take all hooks off; does nothing the second time."""
        while self._removals:
            self._removals.pop()()

    def around(self, name: str) -> Callable[..., Any]:
        """What is called in the place of an enabled scaler's method: with that method and its arguments."""
        hooks: dict[str, Callable[..., Any]] = {
            "scale": self._scale,
            "unscale_": self._unscale,
            "step": self._step,
            "update": self._update,
        }
        return hooks[name]

    def _hook_scaler(self, scaler: GradScaler) -> None:
        for name in SCALER_METHODS:
            self._removals.append(_hook_method(scaler, name, self.around(name)))

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of the watcher's: a fault there ends the watching, nothing else."""
        watcher = self._watcher
        if watcher.active and not (watcher.on_cuda and watcher.must_not_look):
            try:
                method(*args)
            except BaseException as error:
                if not is_settled(watcher, error):
                    raise

    def _after_step(self, *_: object) -> None:
        if not self._in_scaler and not torch.compiler.is_compiling():
            try:
                self._tell(self._watcher.after_step)
            except BaseException as error:
                leave_traceback(error)
                raise

    def _scale(self, scale: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = scale(*args, **kwargs)
        self._tell(self._watcher.scaled, args[0] if args else kwargs.get("outputs"))
        return result

    def _unscale(self, unscale: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = unscale(*args, **kwargs)
        if self._is_meant(args, kwargs):
            self._tell(self._watcher.after_unscale)
        return result

    def _step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_meant(args, kwargs):
            return step(*args, **kwargs)
        self._in_scaler = True  # a fused optimizer is called even where its step is skipped
        try:
            result = step(*args, **kwargs)
        finally:
            self._in_scaler = False
        self._tell(self._watcher.after_scaled_step)
        return result

    def _update(self, update: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._tell(self._watcher.before_update)
        result = update(*args, **kwargs)
        self._tell(self._watcher.after_update)
        return result

    def _is_meant(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call that takes an optimizer is about ours."""
        return (args[0] if args else kwargs.get("optimizer")) is self._optimizer()


class _Hooked:
    """A method of one scaler with ``around`` in its place; in a copy of the scaler, the method as it was."""

    def __init__(self, owner: GradScaler, name: str, around: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._around = around
        self._method = getattr(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._owner._enabled:  # is_enabled() without a call
                return self._around(self._method, *args, **kwargs)
            return self._method(*args, **kwargs)
        except BaseException as error:
            leave_traceback(error)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        # The owner's copy has no attributes yet when this is called: it finds the method of its class.
        return getattr, (self._owner, self._name)


def _hook_method(owner: GradScaler, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Put ``around`` in the place of a method of this one scaler; returns what undoes it."""
    before = vars(owner).get(name, _MISSING)
    hooked = _Hooked(owner, name, around)
    setattr(owner, name, hooked)

    def undo() -> None:
        if vars(owner).get(name) is not hooked:
            return  # somebody hooked it after us: theirs calls ours, which has nobody to tell
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return undo


def hook_class(owner: type, name: str, after: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``after(self)`` at the end of a method of every object of ``owner``; returns what undoes it."""
    before: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(before)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = before(self, *args, **kwargs)
            after(self)
        except BaseException as error:
            leave_traceback(error)
            raise
        return result

    def undo() -> None:
        if getattr(owner, name) is hooked:
            setattr(owner, name, before)

    not_compiled(hooked, calls=False)
    setattr(owner, name, hooked)
    return undo


def not_compiled(function: Callable[..., Any], *, calls: bool) -> None:
    """Keep ``torch.compile`` from a function that the loop's compiled code may call.

    ``calls``: all that it calls belongs to us too, and is not compiled either.
    """
    # An optimizer imports torch._dynamo; nothing is compiled without it.
    with suppress(ImportError, AttributeError):
        if "torch._dynamo" in sys.modules:
            from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

            strategy = _FrameExecStrategy(
                _FrameAction.SKIP, _FrameAction.SKIP if calls else _FrameAction.DEFAULT
            )
            set_code_exec_strategy(function.__code__, strategy)


def leave_traceback(error: BaseException) -> None:
    """Take our frames, from the one that handles ``error`` on, out of its traceback.

    A bare ``raise`` afterwards does not put the handling frame back.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
        entry = entry.tb_next
    error.__traceback__ = entry


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script's raised ``error``: it may run in the middle of our code."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code in handlers:
            return True
        entry = entry.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)  # a partial's
    for name in ("__func__", "__call__"):
        if not hasattr(function, "__code__"):
            function = getattr(function, name, function)
    return getattr(getattr(function, "__func__", function), "__code__", None)
