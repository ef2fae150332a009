"""Optimizers of this process that have made no step yet, and the backward passes for their first ones."""

from torch.optim import Optimizer

from amptui.guest.loop.backward_pass import BackwardPass
from amptui.guest.loop.parameter_owner import optimizers_alive
from amptui.guest.loop.pass_account import PassAccount

_MAX_OPTIMIZERS = 64

_MAX_MISSES = 256
"""An optimizer that gets no gradients in so many backward passes is not expected to make a step."""


class IdleOptimizers:
    """Those that exist when it is made, and those that are added; it holds none alive."""

    def __init__(self) -> None:
        self.accounts: dict[int, PassAccount] = {}
        """The backward passes of each, by the ids of the optimizers."""
        for optimizer in optimizers_alive():
            self.add(optimizer, is_new=False)

    def add(self, optimizer: Optimizer, *, is_new: bool) -> PassAccount:
        """Look for the passes of another one; ``is_new``: it was built while the loop was watched."""
        if len(self.accounts) >= _MAX_OPTIMIZERS:
            del self.accounts[next(iter(self.accounts))]
        account = self.accounts[id(optimizer)] = PassAccount(optimizer, is_new=is_new)
        return account

    @property
    def await_steps(self) -> bool:
        """Whether one of them may be about to make its first step: not if others made two instead."""
        accounts = self.accounts.values()
        return any(account.passes.count and account.times_used_elsewhere < 2 for account in accounts)

    def account_of(self, optimizer: Optimizer) -> PassAccount:
        """Its passes; those that nobody has looked at are not attributed."""
        account = self.accounts.get(id(optimizer))
        if account is None or account.optimizer is not optimizer:
            account = self.add(optimizer, is_new=True)
            account.passes.absence = "unattributed"
        return account

    def take(self, optimizer: Optimizer) -> PassAccount | None:
        """Its passes, if it is one of these; it is none from now on."""
        account = self.accounts.pop(id(optimizer), None)
        return None if account is None or account.optimizer is not optimizer else account

    def wrappers_of(self, optimizer: Optimizer) -> list[Optimizer]:
        """Take those that share a parameter group with it, as SAM and Accelerate's do."""
        others = [account.optimizer for account in self.accounts.values()]
        wrappers = [other for other in others if other is not None and shares_groups(optimizer, other)]
        for wrapper in wrappers:
            del self.accounts[id(wrapper)]
        return wrappers

    def before(self, backward: BackwardPass) -> None:
        """A backward pass begins."""
        for account in self.accounts.values():
            dropped_passes = account.before(backward)
            if dropped_passes is not None:
                account.dropped_passes.append(dropped_passes)

    def after(self) -> None:
        """It has ended. Those that no pass has been for in a long time are looked at no more."""
        stale_ids = []
        for key, account in self.accounts.items():
            account.misses = 0 if account.after() else account.misses + 1
            if account.misses > _MAX_MISSES or account.optimizer is None:
                stale_ids.append(key)
        for key in stale_ids:
            del self.accounts[key]


def shares_groups(one: Optimizer | None, other: Optimizer) -> bool:
    """Whether two optimizers have a parameter group in common: one, as SAM does, wraps the other."""
    return one is not None and any(a is b for a in one.param_groups for b in other.param_groups)
