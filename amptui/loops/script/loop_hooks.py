"""The hooks in somebody else's loop: they tell of each part of a step, while anybody listens.

Models are not hooked: hooks of a module would go into its copies, its saved files and what ``torch.compile``
makes of it. Neither are optimizers and scalers, of which a loop may make new ones at any time: what is hooked
are the functions that all of them go through, each once, however many listen.

Everything that is told goes through one door, :meth:`LoopHooks._teller`: it knows which thread trains, and a
fault behind it ends the watching and nothing else. An error of the script's that passes through a hook has
the traceback that it has without hooks, and the hooks hold nothing alive that the script has let go of.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock, current_thread, get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amptui.loops.script.guard import SeveralThreadsError, is_settled, leave_traceback, not_compiled
from amptui.recipe.float8 import is_float8_layer

if TYPE_CHECKING:
    from amptui.loops.script.observed_loop import ObservedLoop

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
    *("after_autocast", "optimizer_built", "float8_layer_came"),
    *("before_clip", "after_clip", "after_scale", "inner_backward"),
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
    """All hooks of this process. They are in place while any loop listens."""

    def __init__(self) -> None:
        self._loops: tuple[ObservedLoop, ...] = ()
        self._removals: list[Callable[[], object]] = []
        self._thread = current_thread()
        self._owner = 0
        """The id of the thread that trains, ``_thread``; 0 before its first pass or step."""
        self._lock = RLock()
        """Held by whoever looks at the loop's tensors: no other thread begins to train meanwhile."""
        self._in_call: set[str] = set()
        """Methods of a scaler that are being called: those of subclasses may call those of their class."""
        self._suspended = 0
        self._patched_scalers: set[type] = {GradScaler}

    def add(self, loop: "ObservedLoop") -> None:
        """Tell ``loop`` from now on. Hooks that cannot be put in place raise, and none is left."""
        if not self._loops:
            self._install()
        self._loops = (*self._loops, loop)

    def remove(self, loop: "ObservedLoop") -> None:
        """Tell it nothing more; nothing happens the second time."""
        self._loops = tuple(other for other in self._loops if other is not loop)
        if not self._loops:
            self._uninstall()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within, nobody is told anything: passes of our own."""
        self._suspended += 1
        try:
            yield
        finally:
            self._suspended -= 1

    @property
    def trains_elsewhere(self) -> bool:
        """Whether another thread trains: what it works with may change at any time."""
        return self._owner not in (0, get_ident()) and self._thread.is_alive()

    # ------------------------------------------------------------------------- in place and off again

    def _install(self) -> None:
        self._patched_scalers, self._owner, self._lock = {GradScaler}, 0, RLock()
        self._in_call.clear()
        not_compiled(LoopHooks._is_elsewhere, calls=True)
        removals = self._removals
        try:
            self._patch(torch.autograd, "backward", self._around_backward)
            self._patch(torch.autocast, "__enter__", self._around("after_autocast"))
            clip = self._around("after_clip", "before_clip")
            for owner, name in _CLIPPING:
                self._patch(owner, name, clip)
            self._patch(Optimizer, "__init__", self._around("optimizer_built"))
            see_layer = self._teller("float8_layer_came")

            def see_module(_module: object, _name: object, child: object) -> None:
                if is_float8_layer(child):  # torchao puts others in the place of the layers that it converts
                    see_layer()

            removals.append(register_module_module_registration_hook(see_module).remove)
            self._patch_scaler(GradScaler)
            removals.append(register_optimizer_step_pre_hook(self._teller("before_step")).remove)
            removals.append(register_optimizer_step_post_hook(self._teller("after_step")).remove)
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
                self._patch(kind, name, self._around_scaler(name, *events))

    # ----------------------------------------------------------------------------------- what is told

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
        return False

    def _teller(self, event: str) -> Callable[..., None]:
        """What calls the method of this name of each loop, with the arguments that it gets.

        A fault there ends the watching, nothing else; what a signal handler of the script's raises passes.
        """
        trains, is_of_step = event not in _ANYWHERE, event in ("before_step", "after_step")

        def tell(*args: Any) -> None:
            try:
                # A fused optimizer is called even where its scaler skips the step.
                if is_of_step and (is_compiling() or "step" in self._in_call):
                    return
                if self._suspended:
                    return
                if get_ident() != self._owner and self._is_elsewhere(trains=trains):
                    return
                with self._lock:
                    for loop in self._loops:
                        try:
                            if loop.active and not (loop.may_capture and loop.is_capturing()):
                                getattr(loop, event)(*args)
                        except BaseException as error:
                            if not is_settled(loop, error):
                                raise
            except BaseException as error:
                leave_traceback(error)
                raise

        not_compiled(tell, calls=True)
        return tell

    def _around_backward(self, patch: Patch, run: Callable[..., Any]) -> Callable[..., Any]:
        before, after, inner = map(self._teller, ("before_backward", "after_backward", "inner_backward"))

        def backward(*args: Any, **kwargs: Any) -> Any:
            try:
                if is_compiling() or patch.is_removed:
                    return run(*args, **kwargs)
                if _current_graph_task_id() >= 0:
                    # Within a pass a checkpoint runs others of the same graph, a hook of the script's any.
                    inner(args, kwargs)
                    return run(*args, **kwargs)
                before(args, kwargs)
                result = run(*args, **kwargs)
                after()
                return result
            except BaseException as error:
                leave_traceback(error)
                raise

        return backward

    def _around(self, after: str, before: str = "") -> Around:
        """Tell of a function's call, after it and, if there is an event for that, before it."""
        tell_before, tell_after = self._teller(before), self._teller(after)

        def around(patch: Patch, run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    if is_compiling() or patch.is_removed:
                        return run(*args, **kwargs)
                    if before:
                        tell_before()
                    result = run(*args, **kwargs)
                    tell_after(*args[:1])
                    return result
                except BaseException as error:
                    leave_traceback(error)
                    raise

            return call

        return around

    def _around_scaler(self, name: str, before: str, after: str) -> Around:
        """The same for a scaler's method, while the scaler is enabled: with what it gets and returns."""
        tell_before, tell_after = self._teller(before), self._teller(after)

        def around(patch: Patch, run: Callable[..., Any]) -> Callable[..., Any]:
            def call(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
                try:
                    # Each method asks for the attribute, which is is_enabled() without a call.
                    if not scaler._enabled or patch.is_removed or name in self._in_call:
                        return run(scaler, *args, **kwargs)
                    if type(scaler) not in self._patched_scalers:
                        self._patch_kind_of(scaler)
                    first = args[0] if args else next(iter(kwargs.values()), None)
                    if before:
                        tell_before(scaler, first)
                    self._in_call.add(name)
                    try:
                        result = run(scaler, *args, **kwargs)
                    finally:
                        self._in_call.discard(name)
                    tell_after(scaler, first, result)
                    return result
                except BaseException as error:
                    leave_traceback(error)
                    raise

            return call

        return around

    def _patch_kind_of(self, scaler: GradScaler) -> None:
        """Some kinds of scalers have methods of their own that do not call GradScaler's."""
        for kind in type(scaler).__mro__:
            if kind is not object and kind not in self._patched_scalers:
                self._patched_scalers.add(kind)
                self._patch_scaler(kind)


HOOKS = LoopHooks()
"""Those of this process."""
