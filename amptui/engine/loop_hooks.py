"""The hooks in somebody else's loop: they call a watcher around each part of a step, and come off again.

Of optimizer and scaler only these objects are hooked, and the model not at all: hooks of a module would go
into its copies, its saved files and what ``torch.compile`` makes of it. Two methods are hooked for all:
``Tensor.backward``, to learn a loss that no scaler multiplies, and the entry into ``torch.autocast``.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

_MISSING: Any = object()


class Watcher(Protocol):
    """What the hooks call; nothing it does may raise. No method may change a tensor that it gets."""

    def after_autocast(self) -> None:
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


class LoopHooks:
    """The hooks of one loop, in place until :meth:`remove`."""

    def __init__(self, optimizer: Optimizer, scaler: GradScaler | None, watcher: Watcher) -> None:
        self._optimizer = optimizer
        self._watcher = watcher
        self._in_scaler = False
        self._removals: list[Callable[[], object]] = []
        try:
            self._removals.append(optimizer.register_step_post_hook(self._after_step).remove)
            self._removals.append(_hook_class(Tensor, "backward", watcher.after_backward))
            self._removals.append(_hook_class(torch.autocast, "__enter__", self._after_autocast))
            if scaler is not None:
                self._hook_scaler(scaler)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take all hooks off; does nothing the second time."""
        while self._removals:
            self._removals.pop()()

    def _hook_scaler(self, scaler: GradScaler) -> None:
        hooks = {"scale": self._scale, "unscale_": self._unscale, "step": self._step, "update": self._update}
        for name, around in hooks.items():
            self._removals.append(_hook_method(scaler, name, around))

    def _after_autocast(self, _context: object) -> None:
        self._watcher.after_autocast()

    def _after_step(self, *_: object) -> None:
        if not self._in_scaler:
            self._watcher.after_step()

    def _scale(self, scaler: GradScaler, scale: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = scale(*args, **kwargs)
        if scaler.is_enabled():
            self._watcher.scaled(args[0] if args else kwargs.get("outputs"))
        return result

    def _unscale(self, scaler: GradScaler, unscale: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = unscale(*args, **kwargs)
        if self._is_meant(scaler, args, kwargs):
            self._watcher.after_unscale()
        return result

    def _step(self, scaler: GradScaler, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_meant(scaler, args, kwargs):
            return step(*args, **kwargs)
        self._in_scaler = True  # a fused optimizer is called even where its step is skipped
        try:
            result = step(*args, **kwargs)
        finally:
            self._in_scaler = False
        self._watcher.after_scaled_step()
        return result

    def _update(self, _scaler: GradScaler, update: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._watcher.before_update()
        result = update(*args, **kwargs)
        self._watcher.after_update()
        return result

    def _is_meant(self, scaler: GradScaler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call that takes an optimizer is about ours, and the scaler scales."""
        return scaler.is_enabled() and (args[0] if args else kwargs.get("optimizer")) is self._optimizer


class _Hooked:
    """A method of one object with ``around`` in its place; in a copy of the object, the method as it was."""

    def __init__(self, owner: object, name: str, around: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._around = around
        self._method = getattr(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._owner, self._method, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # The owner's copy has no attributes yet when this is called: it finds the method of its class.
        return getattr, (self._owner, self._name)


def _hook_method(owner: object, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Put ``around`` in the place of a method of this one object; returns what undoes it."""
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


def _hook_class(owner: type, name: str, after: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``after(self)`` at the end of a method of every object of ``owner``; returns what undoes it."""
    before: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(before)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(self, *args, **kwargs)
        after(self)
        return result

    def undo() -> None:
        if getattr(owner, name) is hooked:
            setattr(owner, name, before)

    setattr(owner, name, hooked)
    return undo


def without_hooks(error: BaseException) -> None:
    """Take the frames of the hooks out of the error's traceback: it shall be that of the bare script."""
    while error.__traceback__ is not None and _is_ours(error.__traceback__):
        error.__traceback__ = error.__traceback__.tb_next
    entry = error.__traceback__
    while entry is not None:
        while entry.tb_next is not None and _is_ours(entry.tb_next):
            entry.tb_next = entry.tb_next.tb_next
        entry = entry.tb_next


def _is_ours(entry: Any) -> bool:
    return bool(entry.tb_frame.f_code.co_filename == __file__)
