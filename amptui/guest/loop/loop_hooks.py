"""The hooks in somebody else's loop: they tell of each part of a step, while anybody listens.

Models are not hooked: hooks of a module would go into its copies, its saved files and what ``torch.compile``
makes of it. Neither are optimizers and scalers, of which a loop may make new ones at any time: what is hooked
are the functions that all of them go through, each once, however many listen.

An error of the script's that passes through a hook has the traceback that it has without hooks, and the hooks
hold nothing alive that the script has let go of.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from threading import RLock, current_thread, get_ident
from typing import Any

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amptui.guest.loop.backward_pass import BackwardPass, mark_scaled, read_pass
from amptui.guest.loop.computed_precision import PrecisionReader
from amptui.guest.loop.guard import SeveralThreadsError, is_settled, leave_traceback, not_compiled
from amptui.recipe.float8 import is_float8_layer

_SCALER_EVENTS = {
    "unscale_": ("before_unscale", "after_unscale"),
    "step": ("before_scaled_step", "after_scaled_step"),
    "update": ("before_update", "after_update"),
}
"""Of each method of a scaler's what is told before and after it: of the update without an optimizer."""

_CLIPPING = (
    (clip_grad, "_clip_grads_with_norm_"),
    (clip_grad, "clip_grad_value_"),
    (nn.utils, "clip_grad_value_"),
)
"""The functions of torch's that clip gradients, where they are looked up."""

Listener = Any
"""An ``ObservedLoop``, whose module imports this one. No method of it may change a tensor that it gets."""

Around = Callable[["Patch", Callable[..., Any]], Callable[..., Any]]
"""Makes what stands in the place of the original function, of the patch and the original.

It calls the original alone once ``patch.is_removed``: somebody who replaced it may call it still. It takes
itself out of the traceback of an error that passes through (:func:`leave_traceback`).
"""


class Patch:
    """A function or method in whose place another one is called, until :meth:`remove`."""

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self._owner = owner
        self._name = name
        self.is_removed = False
        self._is_own = name in vars(owner)
        self._before: Callable[..., Any] = getattr(owner, name)
        self._patched = around(self, self._before)
        not_compiled(self._patched, calls=False)
        setattr(owner, name, wraps(self._before)(self._patched))

    def remove(self) -> None:
        """Put the function back; if somebody has replaced ours, theirs stays, and ours only passes on."""
        self.is_removed = True
        if getattr(self._owner, self._name) is not self._patched:
            return
        if self._is_own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)


class LoopHooks:
    """All hooks of this process. They are in place while anybody listens."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._removals: list[Callable[[], object]] = []
        self._may_be_scaled = False
        self._thread = current_thread()
        self._owner = 0
        """The id of the thread that trains, ``_thread``; 0 before its first pass or step."""
        self._lock = RLock()
        """Held by whoever looks at the loop's tensors: no other thread begins to train meanwhile."""
        self._in_call: set[str] = set()
        """Methods of a scaler that are being called: those of subclasses may call those of their class."""
        self._suspended = 0
        self._pass: BackwardPass | None = None
        """The one that runs."""
        self._precisions = PrecisionReader()
        self._patched_scalers: set[type] = {GradScaler}

    def add(self, listener: Listener) -> None:
        """Tell ``listener`` from now on. Hooks that cannot be put in place raise, and none is left."""
        if not self._listeners:
            self._install()
        self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Tell it nothing more; nothing happens the second time."""
        self._listeners = tuple(other for other in self._listeners if other is not listener)
        if not self._listeners:
            self._uninstall()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within, nobody is told anything: passes of our own."""
        self._suspended += 1
        try:
            yield
        finally:
            self._suspended -= 1

    # ------------------------------------------------------------------------- in place and off again

    def _install(self) -> None:
        self._precisions, self._patched_scalers = PrecisionReader(), {GradScaler}
        self._may_be_scaled, self._owner, self._lock = False, 0, RLock()
        self._in_call.clear()
        for function in _NEVER_COMPILED:
            not_compiled(function, calls=True)
        not_compiled(LoopHooks._call, calls=False)
        removals = self._removals
        try:
            removals.append(Patch(torch.autograd, "backward", self._around_backward).remove)
            removals.append(Patch(torch.autocast, "__enter__", self._around_autocast).remove)
            for owner, name in _CLIPPING:
                removals.append(Patch(owner, name, self._around_clip).remove)
            removals.append(Patch(Optimizer, "__init__", self._around_building).remove)
            removals.append(register_module_module_registration_hook(self._see_module).remove)
            self._patch_scaler(GradScaler)
            removals.append(register_optimizer_step_pre_hook(self._before_step).remove)
            removals.append(register_optimizer_step_post_hook(self._after_step).remove)
        except BaseException:
            self._uninstall()
            raise

    def _uninstall(self) -> None:
        while self._removals:
            self._removals.pop()()

    def _patch_scaler(self, kind: type) -> None:
        if "scale" in vars(kind):
            self._removals.append(Patch(kind, "scale", self._around_scale).remove)
        for name in _SCALER_EVENTS:
            if name in vars(kind):
                self._removals.append(Patch(kind, name, partial(self._around_scaler, name)).remove)

    def _patch_kind_of(self, scaler: GradScaler) -> None:
        """Some kinds of scalers have methods of their own that do not call GradScaler's."""
        for kind in type(scaler).__mro__:
            if kind is not object and kind not in self._patched_scalers:
                self._patched_scalers.add(kind)
                self._patch_scaler(kind)

    # ----------------------------------------------------------------------------------- what is told

    @property
    def trains_elsewhere(self) -> bool:
        """Whether another thread trains: what it works with may change at any time."""
        return self._owner not in (0, get_ident()) and self._thread.is_alive()

    def _is_elsewhere(self, *, trains: bool) -> bool:
        """Whether another thread than the one that trains calls, and is to be left alone.

        If it ``trains`` while the other one is alive, nothing is watched any more: the two may share
        parameters, and a gradient must not be read while another thread writes it.
        """
        if get_ident() == self._owner or _current_graph_task_id() >= 0:  # autograd has threads of its own
            return False
        if not trains:
            return self.trains_elsewhere
        with self._lock:
            if self.trains_elsewhere:
                for listener in self._listeners:
                    listener.give_up(SeveralThreadsError("the script trains in several threads at once"))
                return True
            self._thread, self._owner = current_thread(), get_ident()
        return False

    def _tell(self, name: str, *args: Any) -> None:
        """Call a method of all listeners: a fault there ends the watching, nothing else."""
        if self._suspended:
            return
        with self._lock:
            for listener in self._listeners:
                try:
                    if listener.active and not (listener.may_capture and listener.must_not_look):
                        getattr(listener, name)(*args)
                except BaseException as error:
                    if not is_settled(listener, error):
                        raise

    def _around_backward(self, patch: Patch, run: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            try:
                if patch.is_removed or self._suspended or is_compiling():
                    return run(*args, **kwargs)
                if _current_graph_task_id() >= 0:
                    # Within a pass a checkpoint runs others of the same graph, a hook of the script's any.
                    if self._pass is not None:
                        self._read_inner(self._pass, args, kwargs)
                    return run(*args, **kwargs)
                if get_ident() != self._owner and self._is_elsewhere(trains=True):
                    return run(*args, **kwargs)
                backward_pass = self._pass = self._begin_backward(args, kwargs)
                try:
                    result = run(*args, **kwargs)
                finally:
                    self._pass = None
                if backward_pass is not None:
                    self._tell("after_backward", backward_pass)
                return result
            except BaseException as error:
                leave_traceback(error)
                raise

        return backward

    def _begin_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BackwardPass | None:
        listener = self._listeners[0] if self._listeners else None
        if listener is None or (listener.may_capture and listener.must_not_look):
            return None
        try:
            backward = read_pass(args, kwargs, may_be_scaled=self._may_be_scaled)
            backward.dtype = self._precisions.read(backward)
        except BaseException as error:
            if not is_settled(listener, error):
                raise
            return None
        self._tell("before_backward", backward)
        return backward

    def _read_inner(self, outer: BackwardPass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A pass within a pass: what it computed was computed for that one."""
        self._look(
            lambda: outer.add_inner(self._precisions.read(read_pass(args, kwargs, may_be_scaled=False)))
        )

    def _look(self, look: Callable[[], object]) -> None:
        """Call it if anybody listens and may look now; a fault there ends the watching, nothing else."""
        listener = self._listeners[0] if self._listeners else None
        if listener is None or (listener.may_capture and listener.must_not_look):
            return
        try:
            look()
        except BaseException as error:
            if not is_settled(listener, error):
                raise

    def _around_autocast(self, patch: Patch, enter: Callable[..., Any]) -> Callable[..., Any]:
        def enter_autocast(context: torch.autocast) -> Any:
            try:
                result = enter(context)
                if not (patch.is_removed or self._suspended or self._is_elsewhere(trains=False)):
                    self._see_autocast(context)
                return result
            except BaseException as error:
                leave_traceback(error)
                raise

        return enter_autocast

    def _see_autocast(self, context: torch.autocast) -> None:
        self._look(partial(self._precisions.see_autocast, context))
        self._tell("after_autocast", context)

    def _around_building(self, patch: Patch, build: Callable[..., Any]) -> Callable[..., Any]:
        def build_optimizer(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            try:
                build(optimizer, *args, **kwargs)
                if not (patch.is_removed or self._is_elsewhere(trains=False)):
                    self._tell("optimizer_built", optimizer)
            except BaseException as error:
                leave_traceback(error)
                raise

        return build_optimizer

    def _around_clip(self, patch: Patch, clip: Callable[..., Any]) -> Callable[..., Any]:
        def clip_gradients(*args: Any, **kwargs: Any) -> Any:
            try:
                if patch.is_removed or is_compiling() or self._is_elsewhere(trains=False):
                    return clip(*args, **kwargs)
                self._tell("before_clip")
                result = clip(*args, **kwargs)
                self._tell("after_clip")
                return result
            except BaseException as error:
                leave_traceback(error)
                raise

        return clip_gradients

    def _see_module(self, _module: object, _name: object, child: object) -> None:
        try:
            if is_float8_layer(child):  # torchao puts others in the place of the layers that it converts
                self._tell("float8_layer_came")
        except BaseException as error:
            leave_traceback(error)
            raise

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A fused optimizer is called even where its scaler skips the step.
        if is_compiling() or self._is_elsewhere(trains=True) or "step" in self._in_call:
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first is the optimizer
        try:
            self._tell("before_step", optimizer, closure is not None, sys._getframe(1))
        except BaseException as error:
            leave_traceback(error)
            raise

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if is_compiling() or "step" in self._in_call:
            return
        try:
            self._tell("after_step", optimizer, sys._getframe(1))
        except BaseException as error:
            leave_traceback(error)
            raise

    # --------------------------------------------------------------------------------------- scalers

    def _around_scale(self, patch: Patch, scale: Callable[..., Any]) -> Callable[..., Any]:
        def scale_losses(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            try:
                result = scale(scaler, *args, **kwargs)
                # Each method asks for the attribute, which is is_enabled() without a call.
                skips = patch.is_removed or self._suspended or self._is_elsewhere(trains=False)
                if scaler._enabled and not skips:
                    self._may_be_scaled = True
                    losses = args[0] if args else kwargs.get("outputs")
                    self._look(partial(mark_scaled, scaler, losses, result))
                    self._tell("after_scale")
                return result
            except BaseException as error:
                leave_traceback(error)
                raise

        return scale_losses

    def _around_scaler(self, name: str, patch: Patch, method: Callable[..., Any]) -> Callable[..., Any]:
        before, after = _SCALER_EVENTS[name]

        def call_scaler(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            try:
                skips = patch.is_removed or self._is_elsewhere(trains=True) or name in self._in_call
                if not scaler._enabled or skips:
                    return method(scaler, *args, **kwargs)
                if type(scaler) not in self._patched_scalers:
                    self._patch_kind_of(scaler)
                optimizer = () if name == "update" else (_optimizer_in(args, kwargs),)
                self._tell(before, scaler, *optimizer)
                result = self._call(name, method, scaler, args, kwargs)
                self._tell(after, scaler, *optimizer)
                return result
            except BaseException as error:
                leave_traceback(error)
                raise

        return call_scaler

    def _call(
        self, name: str, method: Callable[..., Any], scaler: GradScaler, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        self._in_call.add(name)
        try:
            return method(scaler, *args, **kwargs)
        finally:
            self._in_call.discard(name)


def _optimizer_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("optimizer")


_NEVER_COMPILED: tuple[Callable[..., Any], ...] = (
    LoopHooks._tell,
    LoopHooks._is_elsewhere,
    LoopHooks._read_inner,
    LoopHooks._before_step,
    LoopHooks._after_step,
    LoopHooks._see_autocast,
    LoopHooks._begin_backward,
    LoopHooks._look,
)

HOOKS = LoopHooks()
"""Those of this process."""
