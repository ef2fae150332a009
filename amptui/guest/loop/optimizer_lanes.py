"""Which optimizers of somebody else's loop are watched: each part of a step goes to the one it is about.

The optimizers are those that the script named, and any other that makes steps. One that trains what another
did before (a new phase, the next fold) continues in its place.
"""

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.guest.loop.backward_pass import BackwardPass
from amptui.guest.loop.idle_optimizers import IdleOptimizers, shares_groups
from amptui.guest.loop.loop_hooks import HOOKS
from amptui.guest.loop.parameter_owner import LooseParameters, owner_of
from amptui.guest.loop.pass_account import PassAccount
from amptui.records.own_loop import OptimizerFollowed
from amptui.records.run import Note, Record

if TYPE_CHECKING:
    from amptui.guest.loop.observed_loop import ObservedLoop

MAX_LOOPS = 8
"""Optimizers of one run; the steps of others are not recorded, which is told."""

_MAX_REPLACEMENTS = 8
"""A loop that makes new optimizers all the time is told of that once."""

_NOBODY: tuple[None, None] = (None, None)

OpenFirst = Callable[[Optimizer, "OptimizerLanes"], "ObservedLoop | None"]
"""Opens a run for the first optimizer that makes a step; returns None if that is not to be observed."""

OpenNext = Callable[..., "ObservedLoop"]
"""Watches another optimizer of the run: called with its model, itself, and ``name=``."""


class OptimizerLanes:
    """A listener of the hooks for one run; ``open_first`` opens it when the first optimizer makes a step."""

    def __init__(self, open_first: OpenFirst | None = None) -> None:
        self._open_first = open_first
        self.loops: tuple[ObservedLoop, ...] = ()
        """Those of the run's optimizers; the first is the run's first."""
        self._idle = IdleOptimizers()
        self._by_id: dict[int, tuple[weakref.ref[Optimizer], ObservedLoop]] = {}
        self.open_next: OpenNext | None = None
        """None as long as no other optimizer than the first is to be watched."""
        self.emit: Callable[[Record], object] = lambda _: None
        self.stepping: Optimizer | None = None
        """The optimizer that a scaler has just been called with, for which the hooks call."""
        self._outer: dict[ObservedLoop, weakref.ref[Optimizer]] = {}
        """Of each, the optimizer that is making a step: it may call another. If its step raised, it stays."""
        self._replacements = 0
        self._noted_too_many = self._is_listening = False
        self.begun = False
        """Whether a first step has been made."""
        self.scaler: GradScaler | None = None
        """The one that is being called."""
        self._unannounced: list[OptimizerFollowed] = []
        self._named = 1
        self.on_cuda = False
        """Whether the first model is on a GPU."""
        self.active = True

    # ---------------------------------------------------------------------------------- whom to watch

    def listen(self) -> None:
        """Put the hooks in place, unless they are."""
        if not self._is_listening:
            HOOKS.add(self)
            self._is_listening = True

    def leave(self) -> None:
        """Take the hooks off; does nothing the second time."""
        self.active = False
        HOOKS.remove(self)

    def add(self, loop: "ObservedLoop", optimizer: Optimizer) -> PassAccount:
        """Watch ``optimizer`` by ``loop``; returns its backward passes so far."""
        account = self._idle.take(optimizer) or PassAccount(optimizer)
        account.is_sharded = loop.is_sharded
        account.refresh()
        self._by_id[id(optimizer)] = (weakref.ref(optimizer), loop)
        for wrapper in self._idle.wrappers_of(optimizer):
            self._by_id[id(wrapper)] = (weakref.ref(wrapper), loop)
        if loop not in self.loops:
            self.loops = (*self.loops, loop)
            self.on_cuda = self.loops[0].on_cuda
            self.listen()
        for other in self.loops[:-1]:
            other.account.is_alone = account.is_alone = False
        return account

    def optimizer_built(self, optimizer: Optimizer) -> None:
        """See :meth:`Listener.optimizer_built`."""
        self._idle.add(optimizer, is_new=True)

    def _loop_of(self, optimizer: Any) -> "ObservedLoop | None":
        """Who watches ``optimizer``, if anybody is to."""
        reference, loop = self._by_id.get(id(optimizer), _NOBODY)
        if reference is not None and reference() is optimizer:
            return loop
        if not isinstance(optimizer, Optimizer):
            return None
        return self._resolve(optimizer)

    def _resolve(self, optimizer: Optimizer) -> "ObservedLoop | None":
        """An optimizer makes its first step: watch it, in another's place or beside the others."""
        if not self.loops:
            return self._begin(optimizer)
        account = self._idle.account_of(optimizer)
        account.refresh()
        for loop in self.loops:
            if shares_groups(loop.optimizer, optimizer):
                self._by_id[id(optimizer)] = (weakref.ref(optimizer), loop)  # one is a part of the other
                self._idle.take(optimizer)
                return loop
        before = self._predecessor(account)
        if before is not None:
            self._replace(before, optimizer)
            return before
        return self._open_another(optimizer)

    def _begin(self, optimizer: Optimizer) -> "ObservedLoop | None":
        open_first, self._open_first = self._open_first, None
        if open_first is None:
            return None
        loop = open_first(optimizer, self)
        if loop is None:
            self.leave()
        return loop

    def _predecessor(self, account: PassAccount) -> "ObservedLoop | None":
        """In whose place an optimizer comes: of one that trained the same, or of one that is gone."""
        ids = account.ids
        for loop in self.loops:
            if ids and ids == loop.account.ids:
                return loop
        gone = [loop for loop in self.loops if loop.is_dropped]
        return next((loop for loop in gone if ids and self._heir(loop.account) == ids), None)

    def _heir(self, gone: PassAccount) -> frozenset[int] | None:
        """The ids of what is trained in the place of an optimizer that is gone, if anything is.

        Its heir changes some of the same parameters, or as many of the same shapes. An inner loop has
        optimizers of such shapes too, but they are built later.
        """
        accounts = self._idle.new_accounts
        for account in accounts:
            account.refresh()
        gone_ids = gone.ids
        same = (ids for account in accounts if (ids := account.ids) & gone_ids)
        alike = (account.ids for account in accounts if account.shapes == gone.shapes)
        return next(same, None) or next(alike, None)

    def _replace(self, loop: "ObservedLoop", optimizer: Optimizer) -> None:
        kind, before = loop.kind, loop.account
        was_gone = before.optimizer is None
        dropped = [*before.abandoned(), *self._idle.dropped_of(optimizer)]
        self._outer.pop(loop, None)
        loop.follow(optimizer, owner_of(optimizer))
        loop.account = self.add(loop, optimizer)
        if was_gone or not before.ids & loop.account.ids:  # else it has seen the same passes
            for passes in dropped:
                loop.take_dropped(passes)
        self._replacements += 1
        if self._replacements < _MAX_REPLACEMENTS:
            self._announce(loop, replaces=kind)
        elif self._replacements == _MAX_REPLACEMENTS:
            self._note("the loop keeps making new optimizers: further replacements are not reported")

    def _open_another(self, optimizer: Optimizer) -> "ObservedLoop | None":
        if self.open_next is None:
            return None
        if len(self.loops) >= MAX_LOOPS:
            if not self._noted_too_many:
                self._noted_too_many = True
                self._note(
                    f"more than {MAX_LOOPS} optimizers make steps: only the first {MAX_LOOPS} are recorded"
                )
            return None
        model = owner_of(optimizer)
        return self.watch(optimizer, model, self._new_name(model, optimizer))

    def watch(self, optimizer: Optimizer, model: nn.Module, name: str) -> "ObservedLoop":
        """Watch another optimizer of the run, under a name that no other has."""
        assert self.open_next is not None, "set when the run is opened"
        if len(self.loops) == 1:
            self._announce(self.loops[0])
        if not self.begun:
            self._named += 1
        loop = self.open_next(model, optimizer, name=name)
        loop.epoch = self.loops[0].epoch
        self._announce(loop)
        return loop

    def _new_name(self, model: nn.Module, optimizer: Optimizer) -> str:
        kind = type(optimizer if isinstance(model, LooseParameters) else model).__name__
        taken = {loop.name for loop in self.loops} | {self.loops[0].model_kind}
        names = (kind if number == 1 else f"{kind} {number}" for number in range(1, MAX_LOOPS + 2))
        return next(name for name in names if name not in taken)

    def _announce(self, loop: "ObservedLoop", *, replaces: str = "") -> None:
        record = OptimizerFollowed(
            time=time.time(),
            optimizer=loop.name,
            step=loop.step,
            kind=loop.kind,
            model=loop.model_kind,
            parameters=sum(parameter.numel() for parameter in loop.account.parameters),
            replaces=replaces,
        )
        if self.begun:
            self.emit(record)
        else:
            self._unannounced.append(record)

    def _note(self, text: str) -> None:
        self.emit(Note(time=time.time(), severity="info", text=text))

    # --------------------------------------------------------------------------------- of all of them

    @property
    def named_loops(self) -> tuple["ObservedLoop", ...]:
        """Those that the script has named, or that were found first: not those that joined by themselves."""
        return self.loops[: self._named]

    @property
    def is_alone(self) -> bool:
        """Whether the run has one optimizer."""
        return len(self.loops) == 1

    def begin(self, begins: Callable[[str], object], precision: str) -> bool:
        """The first step of any of them is made in ``precision``; returns whether it was that."""
        if self.begun:
            return False
        self.begun = True
        begins(precision)
        for record in self._unannounced:
            self.emit(record)
        self._unannounced.clear()
        return True

    @property
    def await_steps(self) -> bool:
        """Whether another optimizer than the first has gradients of which it may make a step yet."""
        others = (loop.account for loop in self.loops[1:])
        return any(account.passes.count for account in others) or self._idle.await_steps

    @property
    def may_update_scale(self) -> bool:
        """Whether no optimizer has gradients of its own that were multiplied by the loss scale of now."""
        accounts = (loop.account for loop in self.loops)
        return not any(account.passes.count and not account.used_by_others for account in accounts)

    def loaded(self, asked: float, seconds: float, samples: int) -> None:
        """A batch was loaded, for whichever optimizers use it."""
        for loop in self.loops:
            if loop.active and not loop.must_not_look:
                loop.take_batch(asked, seconds, samples)

    def next_epoch(self, epoch: int) -> None:
        """The steps from here on belong to ``epoch``."""
        for loop in self.loops:
            loop.epoch = epoch

    def close(self, *, waits: bool) -> None:
        """Take the hooks off, and deliver what is left; ``waits`` for the device."""
        self.leave()
        for loop in self.loops:
            loop.close_lane(waits=waits)

    # --------------------------------------------------------------------------- what the hooks call

    @property
    def must_not_look(self) -> bool:
        """Whether anything done now would become a part of a CUDA graph."""
        return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

    def give_up(self, error: Exception) -> None:
        """Observe nothing more."""
        self.active = False
        if self.loops:
            self.loops[0].give_up(error)
        else:
            self.leave()
            self.failed(error)

    failed: Callable[[Exception], object] = staticmethod(lambda _error: None)
    """Gets a fault that comes before there is a run."""

    def after_autocast(self, _context: object) -> None:
        """See :meth:`Listener.after_autocast`."""
        for loop in self.loops:
            loop.forward_begins()

    def after_scale(self) -> None:
        """See :meth:`Listener.after_scale`."""
        for loop in self.loops:
            loop.work_begins()

    def before_backward(self, backward: BackwardPass) -> None:
        """See :meth:`Listener.before_backward`."""
        for loop in self.loops:
            if loop.pending is not None:
                loop.work_begins()
            dropped = loop.account.before(backward)
            if dropped is not None:
                loop.take_dropped(dropped)
        if self._idle.by_id:
            self._idle.before(backward)

    def after_backward(self, backward: BackwardPass) -> None:
        """See :meth:`Listener.after_backward`."""
        for loop in self.loops:
            if loop.account.after():
                loop.after_pass(backward)
        if self._idle.by_id:
            self._idle.after()

    def before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        """See :meth:`Listener.before_step`."""
        reference, loop = self._by_id.get(id(optimizer), _NOBODY)
        if reference is None or reference() is not optimizer:
            loop = self._loop_of(optimizer)
        if loop is None:
            return
        outer = self._outer.get(loop)
        if outer is not None and outer() not in (None, optimizer):
            return
        self._outer[loop] = weakref.ref(optimizer)
        dropped = loop.account.before_step(has_closure=has_closure)
        if dropped is not None:
            loop.take_dropped(dropped)

    def after_step(self, optimizer: Optimizer) -> None:
        """See :meth:`Listener.after_step`."""
        _, loop = self._by_id.get(id(optimizer), _NOBODY)
        if loop is None or (outer := self._outer.get(loop)) is None or outer() is not optimizer:
            return
        del self._outer[loop]
        passes = loop.account.passes
        loop.after_step()
        if len(self.loops) > 1 or self._idle.by_id:  # otherwise the usual case
            self._tell_others(loop, passes.numbers)
        if loop is not self.loops[0]:
            self.loops[0].other_stepped()

    def _tell_others(self, loop: "ObservedLoop", numbers: set[int]) -> None:
        """A step was made of these passes: gradients that they left elsewhere are done with."""
        watched = (other.account for other in self.loops if other is not loop)
        for account in (*watched, *self._idle.accounts):
            account.use_elsewhere(numbers)

    def after_unscale(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """See :meth:`Listener.after_unscale`."""
        if (loop := self._scaled_loop_of(optimizer, scaler)) is not None:
            self.stepping = optimizer
            loop.after_unscale(scaler)
            self.stepping = None

    def _scaled_loop_of(self, optimizer: Optimizer, scaler: GradScaler) -> "ObservedLoop | None":
        self.scaler = scaler
        try:
            return self._loop_of(optimizer)
        finally:
            self.scaler = None

    def before_scaled_step(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """See :meth:`Listener.before_scaled_step`."""
        if (loop := self._scaled_loop_of(optimizer, scaler)) is None:
            return
        dropped = loop.account.before_step(has_closure=False)
        if dropped is not None:
            loop.take_dropped(dropped)

    def after_scaled_step(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """See :meth:`Listener.after_scaled_step`."""
        if (loop := self._loop_of(optimizer)) is not None:
            self.stepping = optimizer
            numbers = loop.account.passes.numbers
            loop.after_scaled_step(scaler)
            self.stepping = None
            self._tell_others(loop, numbers)

    def before_update(self, scaler: GradScaler) -> None:
        """See :meth:`Listener.before_update`."""
        for loop in self.loops:
            loop.before_update(scaler)

    def after_update(self, scaler: GradScaler) -> None:
        """See :meth:`Listener.after_update`."""
        for loop in self.loops:
            loop.after_update(scaler)
        if len(self.loops) > 1:
            self.loops[0].other_stepped()
