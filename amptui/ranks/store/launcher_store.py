"""The store in the launcher's process: what ranks tell each other before they meet, and after a restart."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from torch.distributed.distributed_c10d import PrefixStore, Store

from amptui.base.errors import AmptuiError, DeviceError, RunFolderError
from amptui.base.prompt import complain
from amptui.ranks.store.steady_store import SteadyStore, connected, is_the_launchers, pauses
from amptui.ranks.world import World

_PLAN, _OVER, _CAUSE = "plan", "over", "cause"

_CALL, _TICKETS, _ARRIVED, _GO, _GENERATION = "call", "tickets", "arrived", "go", "generation"

_LATE_SECONDS = 30.0
"""How long a rank waits for the others to start before it says so."""

_READ_SECONDS = 2.0
"""How long rank 0 stays with its last word, where the store ends with its process."""

ENDED = "ended"
"""How many ranks have told of an early end; below it each tells how."""

FIRST_END = "first end"
"""The first of them that did not only wait for others: its rank, how it ended, and what it said."""


class LauncherStore:
    """A rank's connection to it. What is in ``lasting`` is still there when the ranks are started again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_gone = False
        store = connected(leads=world.leads)
        self.lasting: Store = PrefixStore("amptui", store)
        # The launcher keeps the store when it starts the ranks again.
        self.store = SteadyStore(store, f"amptui/{world.generation}/{world.size}")

    def leave(self) -> None:
        """Turn away from a launcher that is gone, before torch writes how it fails to reach it."""
        self._is_gone = True
        self.store.leave()

    def part_lasting(self) -> None:
        """Give ``lasting`` a connection of its own, unless the launcher is gone: no wait blocks it then."""
        if not self._is_gone:
            with suppress(RuntimeError):
                self.lasting = self.lasting.clone()

    def share_plan(self, make: Callable[[], str], *, resumes: bool = False) -> str | int:
        """Rank 0's plan on every rank: from ``make``, which only rank 0 calls, or as before a restart.

        The exit status instead if rank 0 has none, and has said why. Raises what ``make`` raises, and
        RunFolderError after a restart that left no plan, unless ``make`` ``resumes`` the run.
        """
        if self._world.leads and self.final_status is None and not self.lasting.check([_PLAN]):
            try:
                if self._world.restart and not resumes:
                    raise _no_plan()
                self.lasting.set(_PLAN, make())
            except AmptuiError as error:
                self.refuse(error.exit_status)
                raise
        for seconds in pauses(self._world.size):
            if self.lasting.check([_PLAN]):
                break
            if self.final_status is not None:
                self.lasting.add(f"{_OVER}/read", 1)
                return self.final_status
            time.sleep(seconds)
        return self.lasting.get(_PLAN).decode()

    def refuse(self, exit_status: int) -> None:
        """Tell all ranks, also those that are started next, that nothing can come of this run."""
        with suppress(RuntimeError):
            self.lasting.set(_OVER, str(exit_status))
            if self._world.leads and not is_the_launchers():
                self._stay()

    def _stay(self) -> None:
        """Until the others, who wait for the plan, have read that there is none."""
        limit = time.monotonic() + _READ_SECONDS + self._world.size / 1000
        while time.monotonic() < limit and self.lasting.add(f"{_OVER}/read", 0) < self._world.size - 1:
            time.sleep(0.05)

    @property
    def final_status(self) -> int | None:
        """The exit status of a run that was refused."""
        return int(self.lasting.get(_OVER)) if self.lasting.check([_OVER]) else None

    def tell_end(self, how: str, text: str) -> None:
        """Tell the other ranks that this one ends early and why; without the store nobody is left to tell."""
        rank = self._world.rank
        if how in ("failed", "out of memory"):
            self.tell_cause(f"rank {rank}: {text}")
        elif how == "cut off":
            self.tell_cause(f"rank {rank} lost the others: {text}")
        with suppress(RuntimeError):
            self.store.set(f"{ENDED}/{rank}", json.dumps([how, text]))
            self.store.add(ENDED, 1)
            if how != "waited":
                self.store.compare_set(FIRST_END, "", json.dumps([rank, how, text]))

    def first_end(self) -> tuple[int, str, str] | None:
        """The first rank of all that told of an end of its own: which, how, and its words."""
        if not self.store.check([FIRST_END]):
            return None
        rank, how, text = json.loads(self.store.get(FIRST_END))
        return rank, how, text

    def tell_cause(self, cause: str) -> None:
        """Why these ranks end, for those that are started after them; the first word counts."""
        if self._is_gone:
            return  # nobody is started
        with suppress(RuntimeError):
            self.lasting.compare_set(f"{_CAUSE}/{self._world.generation}", "", cause)

    @property
    def cause_before(self) -> str:
        """Why the ranks before these have ended; empty if they did not say."""
        key = f"{_CAUSE}/{self._world.generation - 1}"
        return self.lasting.get(key).decode() if self.lasting.check([key]) else ""


def agree_on_start(world: World) -> World:
    """``world`` with the restarts that all ranks count alike; waits until all have been started.

    Each launcher counts its own: one that takes the place of another begins at 0, and none counts a restart
    because a machine has joined. The store may hold what the ranks before these have told. So rank 0 calls by
    a name of its own, the others draw tickets for it, and its answer says how many it has seen: a ticket that
    was drawn for an earlier call is not among them. Raises DeviceError if rank 0 ends meanwhile.
    """
    store = SteadyStore(connected(leads=world.leads), "amptui/start")
    try:
        return _call(store, world) if world.leads else _answer(store, world)
    except RuntimeError as error:
        what = f"rank {world.rank} lost rank 0's machine before the ranks had met: {error}"
        raise DeviceError(what.splitlines()[0], hint="see what rank 0 or its launcher says") from error


def _call(store: SteadyStore, world: World) -> World:
    call, others = os.urandom(8).hex(), world.size - 1
    store.set(_CALL, call)
    late = _Late(world)
    for seconds in pauses(1):  # only this rank looks so often
        arrived = store.add(f"{_ARRIVED}/{call}", 0)
        if arrived >= others:
            break
        late.look(f"{others - arrived:,} more ranks to start")
        time.sleep(seconds)
    tickets = range(1, others + 1)
    counted = max(
        world.restart, *map(int, store.multi_get([f"{_TICKETS}/{call}/{ticket}" for ticket in tickets]))
    )
    generation = store.add(_GENERATION, 1)
    restart = max(counted, generation - 1)
    start = generation, restart, restart - counted, world.max_restarts
    store.set(f"{_GO}/{call}", json.dumps([others, start]))
    return _with_start(world, *start)


def _answer(store: SteadyStore, world: World) -> World:
    answered, ticket = "", 0
    late = _Late(world)
    for seconds in pauses(world.size):
        call = store.get(_CALL).decode() if store.check([_CALL]) else ""
        if call != answered:
            answered, ticket = call, store.add(f"{_TICKETS}/{call}", 1)
            store.set(f"{_TICKETS}/{call}/{ticket}", str(world.restart))
            store.add(f"{_ARRIVED}/{call}", 1)
        if call and store.check([f"{_GO}/{call}"]):
            others, start = json.loads(store.get(f"{_GO}/{call}"))
            if ticket <= others:
                return _with_start(world, *start)
        if world.local_rank == 0:
            late.look("rank 0")
        time.sleep(seconds)
    raise AssertionError("pauses have no end")


def _with_start(world: World, generation: int, restart: int, uncounted: int, max_restarts: int) -> World:
    return replace(
        world, generation=generation, restart=restart, uncounted=uncounted, max_restarts=max_restarts
    )


class _Late:
    """Says once for whom a rank waits, if that is long."""

    def __init__(self, world: World) -> None:
        self._rank = world.rank
        self._due = time.monotonic() + _LATE_SECONDS

    def look(self, awaited: str) -> None:
        if time.monotonic() >= self._due:
            self._due = float("inf")
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            complain(f"rank {self._rank} waits at {place} for {awaited}")


def _no_plan() -> RunFolderError:
    what = "the ranks were started again, and what knew which run this is has ended with their store"
    return RunFolderError(what, hint="start with `--run-dir DIR --resume`, which begins a run and resumes it")
