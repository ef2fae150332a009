"""Optimizers of this process that have made no step yet, and the backward passes for their first ones."""

import weakref
from collections import deque
from collections.abc import Iterator

from torch.optim import Optimizer

from amptui.guest.loop.backward_pass import BackwardPass
from amptui.guest.loop.parameter_owner import optimizers_alive
from amptui.guest.loop.pass_account import DroppedPasses, PassAccount

_MAX_OPTIMIZERS = 64

_MAX_DROPPED = 8

_MAX_MISSES = 256
"""An optimizer that gets no gradients in so many backward passes is not expected to make a step."""


class _IdleOptimizer:
    def __init__(self, optimizer: Optimizer, *, is_new: bool) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.is_new = is_new
        """Whether it was built while the loop was watched."""
        self.account = PassAccount(optimizer)
        self.misses = 0
        """Backward passes in a row that gave it no gradients."""
        self.dropped_passes: deque[DroppedPasses] = deque(maxlen=_MAX_DROPPED)
        """The newest whose gradients were cleared."""


class IdleOptimizers:
    """Those that exist when it is made, and those that are added; it holds none alive."""

    def __init__(self) -> None:
        self.by_id: dict[int, _IdleOptimizer] = {}
        """They, by their ids."""
        for optimizer in optimizers_alive():
            self.add(optimizer, is_new=False)

    @property
    def accounts(self) -> Iterator[PassAccount]:
        """The backward passes of each."""
        return (idle.account for idle in self.by_id.values())

    @property
    def new_accounts(self) -> list[PassAccount]:
        """Those of optimizers that were built while the loop was watched, the oldest first."""
        return [idle.account for idle in self.by_id.values() if idle.is_new]

    def add(self, optimizer: Optimizer, *, is_new: bool) -> PassAccount:
        """Look for the passes of another one."""
        if len(self.by_id) >= _MAX_OPTIMIZERS:
            del self.by_id[next(iter(self.by_id))]
        idle = self.by_id[id(optimizer)] = _IdleOptimizer(optimizer, is_new=is_new)
        return idle.account

    @property
    def await_steps(self) -> bool:
        """Whether one of them may be about to make its first step: not if others made two instead."""
        accounts = (idle.account for idle in self.by_id.values())
        return any(account.passes.count and account.times_used_elsewhere < 2 for account in accounts)

    def account_of(self, optimizer: Optimizer) -> PassAccount:
        """Its passes; those that nobody has looked at are not attributed."""
        idle = self.by_id.get(id(optimizer))
        if idle is not None and idle.optimizer() is optimizer:
            return idle.account
        account = self.add(optimizer, is_new=True)
        account.passes.absence = "unattributed"
        return account

    def take(self, optimizer: Optimizer) -> PassAccount | None:
        """Its passes, if it is one of these; it is none from now on."""
        idle = self.by_id.pop(id(optimizer), None)
        return None if idle is None or idle.optimizer() is not optimizer else idle.account

    def wrappers_of(self, optimizer: Optimizer) -> list[Optimizer]:
        """Take those that share a parameter group with it, as SAM and Accelerate's do."""
        wrappers = [idle.optimizer() for idle in self.by_id.values()]
        shared = [other for other in wrappers if other is not None and shares_groups(optimizer, other)]
        for wrapper in shared:
            del self.by_id[id(wrapper)]
        return shared

    def dropped_of(self, optimizer: Optimizer) -> list[DroppedPasses]:
        """The passes for it whose gradients were cleared before it made a step."""
        idle = self.by_id.get(id(optimizer))
        return [] if idle is None else list(idle.dropped_passes)

    def before(self, backward: BackwardPass) -> None:
        """A backward pass begins."""
        for idle in self.by_id.values():
            dropped_passes = idle.account.before(backward)
            if dropped_passes is not None:
                idle.dropped_passes.append(dropped_passes)

    def after(self) -> None:
        """It has ended. Those that no pass has been for in a long time are looked at no more."""
        stale_ids = []
        for key, idle in self.by_id.items():
            idle.misses = 0 if idle.account.after() else idle.misses + 1
            if idle.misses > _MAX_MISSES or idle.optimizer() is None:
                stale_ids.append(key)
        for key in stale_ids:
            del self.by_id[key]


def shares_groups(one: Optimizer | None, other: Optimizer) -> bool:
    """Whether two optimizers have a parameter group in common: one, as SAM does, wraps the other."""
    return one is not None and any(a is b for a in one.param_groups for b in other.param_groups)
