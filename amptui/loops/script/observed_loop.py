"""Somebody else's training loop: which optimizers are watched; each part of a step goes to one of them.

The optimizers are those that the script named, and any other that makes steps. One that trains what another
did before (a new phase, the next fold) continues in its place.
"""

import time
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.fork import in_forks
from amptui.loops.script.backward_pass import BackwardPass, mark_scaled
from amptui.loops.script.guard import harmless
from amptui.loops.script.listener import Listener
from amptui.loops.script.loop_hooks import HOOKS
from amptui.loops.script.observed_optimizer import ObservedOptimizer
from amptui.loops.script.pass_account import PassAccount
from amptui.loops.script.script_model import LooseParameters, optimizers_alive, owner_of
from amptui.records.own_loop import OptimizerFollowed
from amptui.records.run import Note

MAX_OPTIMIZERS = 8
"""Optimizers of one run; the steps of others are not recorded, which is told."""

_MAX_REPLACEMENTS = 8
"""A loop that makes new optimizers all the time is told of that once."""

_MAX_IDLE_OPTIMIZERS = 64

_MAX_PASSED_OVER = 2
"""An optimizer of whose passes others made so many steps is not expected to make one, either."""

_MAX_MISSES = 256
"""An optimizer that gets no gradients in so many backward passes is not expected to make a first step."""

OpenFirst = Callable[[Optimizer, "ObservedLoop"], object]
"""Opens a run for the first optimizer that makes a step, or leaves the loop."""


class ObservedLoop(Listener):
    """A listener of the hooks for one run; ``open_first`` opens it when the first optimizer makes a step."""

    first: ObservedOptimizer
    """The run's first optimizer, once there is a run."""

    def __init__(self, open_first: OpenFirst | None = None) -> None:
        super().__init__()
        self._open_first = open_first
        self.optimizers: tuple[ObservedOptimizer, ...] = ()
        """Those of the run, the first one first."""
        self.by_id: dict[int, ObservedOptimizer] = {}
        self._references: dict[int, weakref.ref[Optimizer]] = {}
        self.takes_others = True
        """Whether other optimizers than the first are to be watched."""
        self.on_first_step: Callable[[str], object] = lambda _precision: None
        """Called once, at the end of the run's first step, with its precision, before anything is emitted."""
        self.on_fault: Callable[[Exception], object] = lambda _error: None
        """Gets the one fault after which nothing more is observed."""
        self._replacements = 0
        self._noted_too_many = False
        self.scaler: GradScaler | None = None
        """The one that the first step was made with."""
        self._unannounced: list[OptimizerFollowed] = []
        self._script_optimizers = 1
        for optimizer in optimizers_alive():
            self.optimizer_built(optimizer)
        in_forks(self._become_copy)

    def _become_copy(self) -> None:
        """In a forked process: the hooks there belong to nobody."""
        for optimizer in self.optimizers:
            optimizer.active = False
        self.leave()

    # ---------------------------------------------------------------------------------- whom to watch

    def listen(self) -> None:
        """Put the hooks in place, unless they are."""
        if not self.is_listening:
            HOOKS.add(self)
            self.is_listening = True

    def leave(self) -> None:
        """Take the hooks off; does nothing the second time."""
        self.active = False
        HOOKS.remove(self)

    def add(self, watcher: ObservedOptimizer, optimizer: Optimizer) -> None:
        """Watch ``optimizer`` by ``watcher``, which gets its backward passes so far."""
        idle = self.idle.pop(id(optimizer), None)
        watcher.continue_from(PassAccount(optimizer) if idle is None else idle)
        self._assign(optimizer, watcher)
        for other in [idle.optimizer for idle in self.idle.values()]:
            if other is not None and _share_groups(optimizer, other):  # as SAM's and Accelerate's wrappers do
                self._assign(other, watcher)
                del self.idle[id(other)]
        if not self.optimizers:
            self.first, self.may_capture = watcher, watcher.may_capture
            self.is_capturing = watcher.is_capturing
        if watcher not in self.optimizers:
            self.optimizers = (*self.optimizers, watcher)
            self.listen()
        self.is_alone = len(self.optimizers) == 1
        for watcher_before in self.optimizers:
            watcher_before.is_alone = self.is_alone
        self._list_accounts()

    def _assign(self, optimizer: Optimizer, watcher: ObservedOptimizer) -> None:
        key = id(optimizer)
        self.by_id[key] = watcher
        self._references[key] = weakref.ref(optimizer, lambda _gone: self.by_id.pop(key, None))

    def _list_accounts(self) -> None:
        self.accounts = (*self.optimizers, *self.idle.values())
        HOOKS.refresh()

    def optimizer_built(self, optimizer: Optimizer, *_: object) -> None:
        """Look for the passes of one that may make steps."""
        if len(self.idle) >= _MAX_IDLE_OPTIMIZERS:
            del self.idle[next(iter(self.idle))]
        self.idle[id(optimizer)] = PassAccount(optimizer)
        self._list_accounts()

    def watcher_of(self, optimizer: Any, scaler: GradScaler | None = None) -> ObservedOptimizer | None:
        if (watcher := self.by_id.get(id(optimizer))) is not None:
            return watcher
        if not isinstance(optimizer, Optimizer):
            return None
        if self.optimizers:
            return self._find_watcher(optimizer)
        open_first, self._open_first = self._open_first, None
        if open_first is None:
            return None
        self.scaler = scaler
        open_first(optimizer, self)
        return self.first if self.active else None

    def _find_watcher(self, optimizer: Optimizer) -> ObservedOptimizer | None:
        """An optimizer makes its first step: watch it, in another's place or beside the others."""
        account = self.idle.get(id(optimizer))
        if account is None or account.optimizer is not optimizer:
            self.optimizer_built(optimizer)
            account = self.idle[id(optimizer)]
            account.miss()
        account.refresh()
        for watcher in self.optimizers:
            if watcher.optimizer is not None and _share_groups(watcher.optimizer, optimizer):
                self._assign(optimizer, watcher)  # one is a part of the other
                del self.idle[id(optimizer)]
                self._list_accounts()
                return watcher
        ids = account.ids
        same = next((watcher for watcher in self.optimizers if ids and ids == watcher.ids), None)
        if same is None and self.is_alone and self.first.is_dropped:
            same = self.first  # the next phase, or the next fold
        if same is not None:
            self._replace(same, optimizer, [*account.dropped])
            return same
        return self._watch_another(optimizer) if self.takes_others else None

    def _replace(self, watcher: ObservedOptimizer, optimizer: Optimizer, dropped: list[BackwardPass]) -> None:
        kind, was_gone, ids_before = watcher.kind, watcher.optimizer is None, watcher.ids
        if watcher.passes:
            dropped.insert(0, watcher.abandoned())
        watcher.call = 0
        watcher.follow(optimizer, owner_of(optimizer))
        self.add(watcher, optimizer)
        if was_gone or not ids_before & watcher.ids:  # else it has seen the same passes
            for passes in dropped:
                watcher.take_dropped(passes)
        self._replacements += 1
        if self._replacements < _MAX_REPLACEMENTS:
            self._announce(watcher, replaces=kind)
        elif self._replacements == _MAX_REPLACEMENTS:
            self._note("the loop keeps making new optimizers: further replacements are not reported")

    def _watch_another(self, optimizer: Optimizer) -> ObservedOptimizer | None:
        if len(self.optimizers) >= MAX_OPTIMIZERS:
            if not self._noted_too_many:
                self._noted_too_many = True
                most = MAX_OPTIMIZERS
                self._note(f"more than {most} optimizers make steps: only the first {most} are recorded")
            return None
        model = owner_of(optimizer)
        kind = type(optimizer if isinstance(model, LooseParameters) else model).__name__
        names_in_use = {watcher.name for watcher in self.optimizers} | {self.first.model_kind}
        names = (kind if number == 1 else f"{kind} {number}" for number in range(1, MAX_OPTIMIZERS + 2))
        return self.watch(optimizer, model, next(name for name in names if name not in names_in_use))

    def watch(self, optimizer: Optimizer, model: nn.Module, name: str) -> ObservedOptimizer:
        """Watch another optimizer of the run, under a name that no other has."""
        if len(self.optimizers) == 1:
            self._announce(self.first)
        if not self.has_begun:
            self._script_optimizers += 1
        watcher = ObservedOptimizer(model, optimizer, self, name=name)
        self.add(watcher, optimizer)
        watcher.epoch = self.first.epoch
        self._announce(watcher)
        return watcher

    def _announce(self, watcher: ObservedOptimizer, *, replaces: str = "") -> None:
        record = OptimizerFollowed(
            time=time.time(),
            optimizer=watcher.name,
            step=watcher.step,
            kind=watcher.kind,
            model=watcher.model_kind,
            parameters=sum(parameter.numel() for parameter in watcher.parameters),
            replaces=replaces,
        )
        if self.has_begun:
            self.emit(record)
        else:
            self._unannounced.append(record)

    def _note(self, text: str) -> None:
        self.emit(Note(time=time.time(), severity="info", text=text))

    # --------------------------------------------------------------------------------- of all of them

    @property
    def script_optimizers(self) -> tuple[ObservedOptimizer, ...]:
        """Those that the script has named, or that were found first: not those that joined by themselves."""
        return self.optimizers[: self._script_optimizers]

    def begin_run(self, precision: str) -> None:
        self.has_begun = True
        self.on_first_step(precision)
        for record in self._unannounced:
            self.emit(record)
        self._unannounced.clear()

    def others_await_steps(self) -> bool:
        """Whether another optimizer than the first has gradients of which it may make a step yet."""
        return any(watcher.passes for watcher in self.optimizers[1:]) or any(
            account.passes and account.passed_over < _MAX_PASSED_OVER for account in self.idle.values()
        )

    @property
    def may_update_scale(self) -> bool:
        """Whether no optimizer has gradients of its own that were multiplied by the loss scale of now."""
        return not any(watcher.passes and not watcher.used_by_others for watcher in self.optimizers)

    @harmless
    def take_batch(self, load_start: float, seconds: float, samples: int) -> None:
        """A batch was loaded, from ``load_start`` by ``perf_counter``, for whichever optimizers use it."""
        for watcher in self.optimizers:
            if watcher.active and not watcher.must_not_look:
                watcher.take_batch(load_start, seconds, samples)

    @harmless
    def finish_epoch(self) -> None:
        """Report the epoch, which the first optimizer counts, once its last steps are delivered."""
        self.first.finish_epoch()
        next_epoch = self.first.epoch + 1
        for watcher in self.optimizers:
            watcher.epoch = next_epoch

    def close(self, *, waits: bool = True) -> None:
        """Take the hooks off, and deliver what is left; ``waits`` for the device."""
        self.leave()
        for watcher in self.optimizers:
            watcher.close(waits=waits)

    # --------------------------------------------------------------------------- what the hooks call

    def give_up(self, error: Exception) -> None:
        self.leave()
        for watcher in self.optimizers:
            watcher.stop()
        self.on_fault(error)

    def after_step_of(self, watcher: PassAccount) -> None:
        """See :meth:`Listener.after_step_of`: who has made no step yet may have had a part in its passes."""
        for key, account in list(self.idle.items()):
            account.passed_over += account.used_by_others
            if account.misses > _MAX_MISSES or account.optimizer is None:
                del self.idle[key]
                self._list_accounts()
        if watcher is not self.first:
            self.first.other_stepped()

    def float8_layer_came(self) -> None:
        self.layers_changed()

    def before_clip(self, *_: object) -> None:
        for account in self.accounts:
            account.before_known_edit()

    def after_clip(self, *_: object) -> None:
        for account in self.accounts:
            account.after_known_edit()

    # ----------------------------------------------------------------------- scalers that are enabled

    def after_scale(self, scaler: GradScaler, losses: object, products: object) -> None:
        HOOKS.reader.has_scaled = True
        mark_scaled(scaler, losses, products)
        for watcher in self.optimizers:
            watcher.work_begins()

    def before_unscale(self, _scaler: GradScaler, optimizer: Optimizer) -> None:
        if (watcher := self.by_id.get(id(optimizer))) is not None:
            watcher.before_known_edit()

    def after_unscale(self, scaler: GradScaler, optimizer: Optimizer, _result: object) -> None:
        if (watcher := self.watcher_of(optimizer, scaler)) is not None:
            watcher.after_unscale(scaler, optimizer)

    def before_scaled_step(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        if (watcher := self.watcher_of(optimizer, scaler)) is not None:
            watcher.before_step(optimizer, has_closure=False)

    def after_scaled_step(self, scaler: GradScaler, optimizer: Optimizer, _result: object) -> None:
        if (watcher := self.watcher_of(optimizer)) is not None:
            watcher.after_scaled_step(scaler, optimizer)
            self.after_step_of(watcher)

    def before_update(self, scaler: GradScaler, _new_scale: object) -> None:
        for watcher in self.optimizers:
            watcher.before_update(scaler)

    def after_update(self, scaler: GradScaler, *_: object) -> None:
        for watcher in self.optimizers:
            watcher.after_update(scaler)
        if not self.is_alone:
            self.first.other_stepped()


def _share_groups(one: Optimizer, other: Optimizer) -> bool:
    """Whether two optimizers have a parameter group in common: one, as SAM does, wraps the other."""
    return any(a is b for a in one.param_groups for b in other.param_groups)
