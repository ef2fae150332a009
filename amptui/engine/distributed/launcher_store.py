"""The store in the launcher's process: what ranks tell each other before they meet, and after a restart."""

import json
import time
from collections.abc import Callable
from contextlib import suppress

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from amptui.engine.distributed.world import World
from amptui.errors import AmptuiError

_POLL_SECONDS = 0.05

_PLAN, _OVER, _CAUSE = "plan", "over", "cause"

ENDED = "ended"
"""How many ranks have told of an early end; below it each tells how."""


class LauncherStore:
    """A rank's connection to it. What is in ``lasting`` is still there when the ranks are started again."""

    def __init__(self, world: World) -> None:
        self._world = world
        store, _, _ = next(rendezvous("env://", world.rank, world.size))
        self.lasting: Store = PrefixStore("amptui", store)
        # The launcher keeps the store when it starts the ranks again.
        self.store: Store = PrefixStore(f"amptui/{world.restart}/{world.size}", store)

    def share_plan(self, make: Callable[[], str]) -> str | int:
        """Rank 0's plan on every rank: from ``make``, which only rank 0 calls, or as before a restart.

        The exit status instead if rank 0 has none, and has said why. Raises what ``make`` raises.
        """
        if self._world.leads and self.final_status is None and not self.lasting.check([_PLAN]):
            try:
                self.lasting.set(_PLAN, make())
            except AmptuiError as error:
                self.refuse(error.exit_status)
                raise
        while not self.lasting.check([_PLAN]):
            if self.final_status is not None:
                return self.final_status
            time.sleep(_POLL_SECONDS)
        return self.lasting.get(_PLAN).decode()

    def refuse(self, exit_status: int) -> None:
        """Tell all ranks, also those that are started next, that nothing can come of this run."""
        with suppress(RuntimeError):
            self.lasting.set(_OVER, str(exit_status))

    @property
    def final_status(self) -> int | None:
        """The exit status of a run that was refused."""
        return int(self.lasting.get(_OVER)) if self.lasting.check([_OVER]) else None

    def tell_end(self, how: str, text: str) -> None:
        """Tell the other ranks that this one ends early and why; without the store nobody is left to tell."""
        if how in ("failed", "out of memory"):
            self.tell_cause(f"rank {self._world.rank}: {text}")
        with suppress(RuntimeError):
            self.store.set(f"{ENDED}/{self._world.rank}", json.dumps([how, text]))
            self.store.add(ENDED, 1)

    def tell_cause(self, cause: str) -> None:
        """Why these ranks end, for those that are started after them; the first word counts."""
        with suppress(RuntimeError):
            self.lasting.compare_set(f"{_CAUSE}/{self._world.restart}", "", cause)

    @property
    def cause_before(self) -> str:
        """Why the ranks before these have ended; empty if they did not say."""
        key = f"{_CAUSE}/{self._world.restart - 1}"
        return self.lasting.get(key).decode() if self.lasting.check([key]) else ""
