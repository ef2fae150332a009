"""The hooks in somebody else's loop: they tell of each part of a step, while anybody listens.

Models are not hooked: hooks of a module would go into its copies, its saved files and what ``torch.compile``
makes of it. Neither are optimizers and scalers, of which a loop may make new ones at any time: what is hooked
are the functions that all of them go through, each once, however many listen.

Behind each hook is the same door: it knows which thread trains, and a fault behind it ends the watching and
nothing else. Passes and steps, which every loop pays for, have it in the hook itself: a usual step goes
through as few calls as it can. An error of the script's that passes through a hook has the traceback that it
has without hooks, and the hooks hold nothing alive that the script has let go of.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock, current_thread, get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amptui.loops.script.backward_pass import BackwardPass, PassReader
from amptui.loops.script.guard import SeveralThreadsError, is_settled, leave_traceback, not_compiled
from amptui.loops.script.listener import Listener
from amptui.loops.script.pass_account import PassAccount
from amptui.recipe.float8 import is_float8_layer

_CLIPPING = (
    (clip_grad, "_clip_grads_with_norm_"),
    (clip_grad, "clip_grad_value_"),
    (nn.utils, "clip_grad_value_"),
)
"""The functions of torch's that clip gradients, where they are looked up."""

_SCALER_EVENTS = {
    "scale": ("", "after_scale"),
    "unscale_": ("before_unscale", "after_unscale"),
    "step": ("before_scaled_step", "after_scaled_step"),
    "update": ("before_update", "after_update"),
}
"""Of each method of a scaler's what is told before and after it."""

_ANYWHERE = (
    *("optimizer_built", "float8_layer_came"),
    *("before_clip", "after_clip", "after_scale"),
)
"""What another thread may do beside the one that trains: there it is not told."""

Around = Callable[["Patch", Callable[..., Any]], Callable[..., Any]]
"""Makes what stands in the place of the original function, of the patch and the original.

It calls the original alone once ``patch.is_removed``: somebody who replaced it may call it still.
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
    """All hooks of this process. They are in place while any loop listens."""

    def __init__(self) -> None:
        self._loops: tuple[Listener, ...] = ()
        self._removals: list[Callable[[], object]] = []
        self._thread = current_thread()
        self._owner = 0
        """The id of the thread that trains, ``_thread``; 0 before its first pass or step."""
        self._usual_thread = 0
        """The same where nothing more is to be asked: no CUDA graph can be captured, and nobody suspends."""
        self._accounts: tuple[PassAccount, ...] = ()
        """Those of all loops."""
        self._captures: tuple[Callable[[], bool], ...] = ()
        self._lock = RLock()
        """Held by whoever looks at the loop's tensors: no other thread begins to train meanwhile."""
        self._in_call: set[str] = set()
        """Methods of a scaler that are being called: those of subclasses may call those of their class."""
        self._suspended = 0
        self.reader = PassReader()
        self._pass: BackwardPass | None = None
        """The one that runs."""
        self._patched_scalers: set[type] = {GradScaler}

    def add(self, loop: Listener) -> None:
        """Tell ``loop`` from now on. Hooks that cannot be put in place raise, and none is left."""
        if not self._loops:
            self._install()
        self._loops = (*self._loops, loop)
        self.refresh()

    def remove(self, loop: Listener) -> None:
        """Tell it nothing more; nothing happens the second time."""
        self._loops = tuple(other for other in self._loops if other is not loop)
        self.refresh()
        if not self._loops:
            self._uninstall()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within, nobody is told anything: passes of our own."""
        self._suspended += 1
        self.refresh()
        try:
            yield
        finally:
            self._suspended -= 1
            self.refresh()

    @property
    def trains_elsewhere(self) -> bool:
        """Whether another thread trains: what it works with may change at any time."""
        return self._owner not in (0, get_ident()) and self._thread.is_alive()

    # ------------------------------------------------------------------------- in place and off again

    def _install(self) -> None:
        self._patched_scalers, self._owner, self._lock = {GradScaler}, 0, RLock()
        self.reader, self._pass = PassReader(), None
        self._in_call.clear()
        called = (PassReader.read, PassAccount.before, PassAccount.after, LoopHooks._see_other)
        for method in (LoopHooks._may_tell, LoopHooks._before_step, LoopHooks._after_step, *called):
            not_compiled(method, calls=True)
        removals = self._removals
        try:
            self._patch(torch.autograd, "backward", self._around_backward)
            self._patch(torch.autocast, "__enter__", self._around_autocast)
            clip = self._around("before_clip", "after_clip")
            for owner, name in _CLIPPING:
                self._patch(owner, name, clip)
            self._patch(Optimizer, "__init__", self._around("", "optimizer_built"))
            see_layer = self._teller("float8_layer_came")

            def see_module(_module: object, _name: object, child: object) -> None:
                if is_float8_layer(child):  # torchao puts others in the place of the layers that it converts
                    see_layer()

            removals.append(register_module_module_registration_hook(see_module).remove)
            self._patch_scaler(GradScaler)
            removals.append(register_optimizer_step_pre_hook(self._before_step).remove)
            removals.append(register_optimizer_step_post_hook(self._after_step).remove)
        except BaseException:
            self._uninstall()
            raise

    def _uninstall(self) -> None:
        while self._removals:
            self._removals.pop()()

    def _patch(self, owner: Any, name: str, around: Around) -> None:
        self._removals.append(Patch(owner, name, around).remove)

    def _patch_scaler(self, kind: type) -> None:
        for name, events in _SCALER_EVENTS.items():
            if name in vars(kind):
                self._patch(kind, name, self._around(*events, name))

    # ----------------------------------------------------------------------------------- what is told

    def refresh(self) -> None:
        """The loops, their accounts or the thread are others."""
        self._accounts = tuple(account for loop in self._loops for account in loop.accounts)
        self._captures = tuple(loop.is_capturing for loop in self._loops if loop.may_capture)
        self._usual_thread = 0 if self._captures or self._suspended else self._owner

    def _may_tell(self) -> bool:
        """Whether this is the thread that trains, and what we do now becomes no part of a CUDA graph."""
        if self._suspended or any(is_capturing() for is_capturing in self._captures):
            return False
        return get_ident() == self._owner or not self._is_elsewhere(trains=True)

    def _is_elsewhere(self, *, trains: bool) -> bool:
        """Whether another thread than the one that trains calls, and is to be left alone.

        If it ``trains`` while the other one is alive, nothing is watched any more: the two may share
        parameters, and a gradient must not be read while another thread writes it.
        """
        if _current_graph_task_id() >= 0:  # autograd has threads of its own
            return False
        if not trains:
            return self.trains_elsewhere
        with self._lock:
            if self.trains_elsewhere:
                for loop in self._loops:
                    loop.give_up(SeveralThreadsError("the script trains in several threads at once"))
                return True
            self._thread, self._owner = current_thread(), get_ident()
            self.refresh()
        return False

    def _teller(self, event: str) -> Callable[..., None]:
        """What calls the method of this name of each loop, with the arguments that it gets.

        A fault there ends the watching, nothing else; what a signal handler of the script's raises passes.
        """
        trains = event not in _ANYWHERE

        def tell(*args: Any) -> None:
            if self._suspended:
                return
            try:
                if get_ident() != self._owner and self._is_elsewhere(trains=trains):
                    return
                with self._lock:
                    for loop in self._loops:
                        if not (loop.may_capture and loop.is_capturing()):
                            getattr(loop, event)(*args)
            except BaseException as error:
                if not is_settled(error, *self._loops):
                    raise

        not_compiled(tell, calls=True)
        return tell

    def _settle(self, error: BaseException) -> None:
        if not is_settled(error, *self._loops):
            raise error

    def _around_backward(self, patch: Patch, run: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            try:
                if is_dynamo_compiling() or patch.is_removed:
                    return run(*args, **kwargs)
                begun: BackwardPass | None = None
                try:
                    is_inner = _current_graph_task_id() >= 0
                    if not is_inner and (get_ident() == self._usual_thread or self._may_tell()):
                        with self._lock:
                            begun = self._pass = self.reader.read(args, kwargs)
                            for account in self._accounts:
                                account.before(begun)
                    else:
                        self._see_other(args, kwargs)
                except BaseException as error:  # noqa: BLE001 - raised again if it is the script's
                    self._settle(error)
                result = run(*args, **kwargs)
                if begun is None:
                    return result
                self._pass = None
                try:
                    with self._lock:
                        for account in self._accounts:
                            account.after()
                except BaseException as error:  # noqa: BLE001 - as above
                    self._settle(error)
                return result
            except BaseException as error:
                leave_traceback(error)
                raise

        not_compiled(backward, calls=False)
        return backward

    def _around_autocast(self, patch: Patch, enter: Callable[..., Any]) -> Callable[..., Any]:
        def entered(context: torch.autocast) -> Any:
            try:
                result = enter(context)
            except BaseException as error:
                leave_traceback(error)
                raise
            try:
                is_told = not (patch.is_removed or self._suspended or is_dynamo_compiling())
                if not is_told or (get_ident() != self._owner and self._is_elsewhere(trains=False)):
                    return result
                with self._lock:
                    for loop in self._loops:
                        if loop.may_capture and loop.is_capturing():
                            continue
                        self.reader.see_autocast(context)
                        for account in loop.accounts:
                            account.forward_begins()
            except BaseException as error:
                if not is_settled(error, *self._loops):
                    raise
            return result

        not_compiled(entered, calls=True)
        return entered

    def _see_other(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A pass begins that is not told. Of one within another, what it computed was computed for that one.

        A checkpoint runs passes of the same graph there, a hook of the script's any.
        """
        if self._pass is not None and _current_graph_task_id() >= 0:
            self._pass.add_inner(self.reader.read(args, kwargs).precision)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``optimizer.step`` begins, with these arguments: the first is the optimizer."""
        # A fused optimizer is called even where its scaler skips the step.
        if "step" in self._in_call or is_dynamo_compiling():
            return
        try:
            if get_ident() != self._usual_thread and not self._may_tell():
                return
            with self._lock:
                for loop in self._loops:
                    watcher, frame = loop.by_id.get(id(optimizer)), sys._getframe(1)
                    if watcher is None and (watcher := loop.watcher_of(optimizer)) is None:
                        continue
                    if watcher.call and _is_within(frame, watcher.call):
                        continue  # a wrapper's, or a call of the class above
                    watcher.call = id(frame)
                    closure = args[1] if len(args) > 1 else kwargs.get("closure")
                    watcher.before_step(optimizer, has_closure=closure is not None)
        except BaseException as error:
            if not is_settled(error, *self._loops):
                raise

    def _after_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """``optimizer.step`` has ended."""
        if "step" in self._in_call or is_dynamo_compiling():
            return
        try:
            if get_ident() != self._usual_thread and not self._may_tell():
                return
            with self._lock:
                for loop in self._loops:
                    watcher = loop.by_id.get(id(optimizer))
                    if watcher is None or watcher.call != id(sys._getframe(1)):
                        continue
                    watcher.call = 0
                    watcher.after_step()
                    if loop.idle or not loop.is_alone:
                        loop.after_step_of(watcher)
        except BaseException as error:
            if not is_settled(error, *self._loops):
                raise

    def _around(self, before: str, after: str, method: str = "") -> Around:
        """Tell of a function's call before it, if there is an event for that, and after it.

        Of a scaler's ``method`` while the scaler is enabled. Events get the first two arguments, and the
        result.
        """
        tell_before, tell_after = self._teller(before), self._teller(after)

        def around(patch: Patch, run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    # Each method asks for the attribute, which is is_enabled() without a call.
                    is_passed_on = method and (not args[0]._enabled or method in self._in_call)
                    if is_passed_on or patch.is_removed or is_dynamo_compiling():
                        return run(*args, **kwargs)
                    if method and type(args[0]) not in self._patched_scalers:
                        self._patch_kind_of(args[0])
                    first_two = *args[:1], args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
                    if before:
                        tell_before(*first_two)
                    self._in_call.add(method)
                    try:
                        result = run(*args, **kwargs)
                    finally:
                        self._in_call.discard(method)
                    tell_after(*first_two, result)
                    return result
                except BaseException as error:
                    leave_traceback(error)
                    raise

            not_compiled(call, calls=False)
            return call

        return around

    def _patch_kind_of(self, scaler: GradScaler) -> None:
        """Some kinds of scalers have methods of their own that do not call GradScaler's."""
        for kind in type(scaler).__mro__:
            if kind is not object and kind not in self._patched_scalers:
                self._patched_scalers.add(kind)
                self._patch_scaler(kind)


def _is_within(frame: FrameType, call: int) -> bool:
    """Whether the frame with the id ``call`` is one of those that called ``frame``: not if it has raised."""
    outer = frame.f_back
    while outer is not None and id(outer) != call:
        outer = outer.f_back
    return outer is not None


HOOKS = LoopHooks()
"""Those of this process."""
