"""The two stores through which ranks talk: the launcher's, and one in rank 0's process.

The launcher's outlives the ranks. It keeps the plan for those that are started again, and tells how each rank
comes on and ends, also if rank 0 does not answer. Rank 0's outlives the launcher: the ranks agree through it,
and can still stop together. Under a launcher without a store, rank 0's at ``MASTER_ADDR`` is both.
"""

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from amptui.base.errors import AmptuiError, DeviceError, RunFolderError
from amptui.base.prompt import complain
from amptui.base.text import one_line
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.orders import poll_seconds
from amptui.ranks.failure import End, RankEnds
from amptui.ranks.world import World
from amptui.recipe.request import HANG_SECONDS

_CONNECTING = timedelta(minutes=30)
"""How long a rank tries to reach a store that is not there yet: a machine may be late."""

_PROBE_SECONDS = 1.0

_LATE_SECONDS = 30.0
"""How long a rank waits for the others to start before it says so."""

STORE_SECONDS = HANG_SECONDS
"""A store that takes so long to answer is lost, and the agreement in it."""

_READ_SECONDS = 2.0
"""How long rank 0 stays with its last word, where the store ends with its process."""

_PLAN, _OVER, _CAUSE = "amptui/plan", "amptui/over", "amptui/cause"

_CALL = "amptui/call"
"""Where rank 0 has opened its store, in the launcher's."""

_RESTART, _ARRIVED, _GO = "restart", "arrived", "go"

STOPPED_WAITING = "asked to stop while waiting for the other ranks"


class LauncherStore:
    """A rank's connection to the launcher's store; what is on its boards is of this start of the ranks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._lasting = _launcher_store(leads=world.leads)
        self.board = Board(self._lasting, world.meeting, timeout_seconds=STORE_SECONDS)
        """What the ranks of this start tell each other."""
        self.ends = RankEnds(self.board, world)

    def share_plan(self, make: Callable[[], str], *, resumes: bool = False) -> str | int:
        """Rank 0's plan on every rank: from ``make``, which only rank 0 calls, or as before a restart.

        The exit status instead if rank 0 has none, and has said why. Raises what ``make`` raises, and
        RunFolderError after a restart that left no plan, unless ``make`` ``resumes`` the run.
        """
        if self.world.leads and self.final_status is None and not self._lasting.check([_PLAN]):
            try:
                if self.world.restart and not resumes:
                    what = "the ranks were started again, and their store no longer knows which run this is"
                    hint = "start with `--run-dir DIR --resume`, which begins a run and resumes it"
                    raise RunFolderError(what, hint=hint)
                self._lasting.set(_PLAN, make())
            except AmptuiError as error:
                self.refuse(error.exit_status)
                raise
        while not self._lasting.check([_PLAN]):
            if self.final_status is not None:
                self._lasting.add(f"{_OVER}/read", 1)
                return self.final_status
            time.sleep(poll_seconds(self.world.size))
        return self._lasting.get(_PLAN).decode()

    def refuse(self, exit_status: int) -> None:
        """Tell all ranks, also those that are started next, that nothing can come of this run."""
        with suppress(RuntimeError):
            self._lasting.set(_OVER, str(exit_status))
            if self.world.leads and not _launcher_has_store():
                # Until the others, who wait for the plan, have read that there is none.
                limit = time.monotonic() + _READ_SECONDS + self.world.size / 1000
                while time.monotonic() < limit:
                    if self._lasting.add(f"{_OVER}/read", 0) >= self.world.size - 1:
                        break
                    time.sleep(0.05)

    @property
    def final_status(self) -> int | None:
        """The exit status of a run that was refused."""
        return int(self._lasting.get(_OVER)) if self._lasting.check([_OVER]) else None

    def tell_end(self, how: End, text: str) -> None:
        """Tell the other ranks that this one ends early and why."""
        rank = self.world.rank
        if how in ("failed", "out of memory"):
            self.tell_cause(f"rank {rank}: {text}")
        elif how == "cut off":
            self.tell_cause(f"rank {rank} lost the others: {text}")
        self.ends.tell(how, text)

    def tell_cause(self, cause: str) -> None:
        """Why these ranks end, for those that are started after them; the first word counts."""
        with suppress(RuntimeError):
            self._lasting.compare_set(_CAUSE, "", cause)


def rank_0_store(world: World) -> Store:
    """A connection to the store in rank 0's process, once the ranks have met."""
    if world.leads:
        return _own_store()
    host, _, port = world.meeting.partition("/")[0].rpartition(":")
    return _client(host, int(port))


def meet_at_start(world: World, stopping: Callable[[], bool] = lambda: False) -> World:
    """``world`` with the place where the ranks of this start meet; waits until all have been started.

    The launcher's store may hold what the ranks before these have told. So rank 0 opens a store of its own
    and calls the others there; a call of a rank 0 that has ended leads to nobody. Launchers of several
    machines may count restarts differently: the highest number counts. Raises DeviceError if rank 0 ends
    meanwhile, or if this process is asked to stop.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # each rank has two connections to every other one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    store = _launcher_store(leads=world.leads)
    try:
        return _call(store, world, stopping) if world.leads else _answer(store, world, stopping)
    except RuntimeError as error:
        what = f"rank {world.rank} lost rank 0's machine before the ranks had met: {error}"
        raise DeviceError(what.splitlines()[0], hint="see what rank 0 or its launcher says") from error


def _call(launcher_store: Store, world: World, stopping: Callable[[], bool]) -> World:
    store, others = _own_store(), world.size - 1
    was_started = launcher_store.check([_PLAN])
    cause = launcher_store.get(_CAUSE).decode() if launcher_store.check([_CAUSE]) else ""
    launcher_store.delete_key(_CAUSE)
    meeting = f"{_own_host()}:{store.port}/{os.urandom(8).hex()}"
    launcher_store.set(_CALL, meeting)
    for _ in _polls(world, stopping, lambda: f"{others - store.add(_ARRIVED, 0):,} more ranks to start"):
        if store.add(_ARRIVED, 0) >= others:
            break
    restarts = store.multi_get([f"{_RESTART}/{rank}" for rank in range(1, world.size)])
    restart = max(world.restart, int(was_started), *map(int, restarts))
    store.set(_GO, json.dumps([restart, world.max_restarts]))
    return replace(world, meeting=meeting, restart=restart, cause=cause)


def _answer(launcher_store: Store, world: World, stopping: Callable[[], bool]) -> World:
    meeting, store = "", None
    for _ in _polls(world, stopping, lambda: "rank 0"):
        call = launcher_store.get(_CALL).decode() if launcher_store.check([_CALL]) else ""
        try:
            if call and (store is None or call != meeting):
                meeting, store = call, _join(call, world)
            if store is not None and store.check([_GO]):
                restart, max_restarts = json.loads(store.get(_GO))
                return replace(world, meeting=meeting, restart=restart, max_restarts=max_restarts)
        except dist.DistError:  # it was a rank 0 that ends
            store = None
    raise AssertionError("polls have no end")


def _join(meeting: str, world: World) -> Store | None:
    """Rank 0's store, which now knows of this rank; None if nobody is there, or all were there before."""
    host, _, port = meeting.partition("/")[0].rpartition(":")
    if not _listens(host, int(port)):
        return None
    store = _client(host, int(port))
    store.set(f"{_RESTART}/{world.rank}", str(world.restart))
    return store if store.add(_ARRIVED, 1) < world.size else None


def _polls(world: World, stopping: Callable[[], bool], awaited: Callable[[], str]) -> Iterator[None]:
    """The polls of a rank that waits; raises DeviceError if this process is asked to stop.

    Says once on each machine what is ``awaited``, if that takes long.
    """
    due = time.monotonic() + _LATE_SECONDS if world.local_rank == 0 else float("inf")
    while True:
        yield
        if stopping():
            raise DeviceError(STOPPED_WAITING)
        if time.monotonic() >= due:
            due = float("inf")
            host, port = _master()
            complain(f"rank {world.rank} waits at {host}:{port} for {awaited()}")
        time.sleep(poll_seconds(world.size))


def _master() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _launcher_has_store() -> bool:
    """Whether there is a store that outlives the ranks."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _launcher_store(*, leads: bool) -> Store:
    """A connection to the store at ``MASTER_ADDR``: the launcher's, or rank 0's if it has none.

    Raises DeviceError.
    """
    host, port = _master()
    hosts = leads and not _launcher_has_store()
    try:
        return _own_store() if hosts else _client(host, port)
    except RuntimeError as error:
        if hosts:
            why = "another program has that port" if "EADDRINUSE" in str(error) else one_line(str(error))
            what = f"rank 0 cannot listen at MASTER_ADDR:MASTER_PORT, {host}:{port}: {why}"
            raise DeviceError(what, hint="set MASTER_PORT to a free port for all ranks") from error
        what = f"no store of the ranks answers at MASTER_ADDR:MASTER_PORT, {host}:{port}"
        raise DeviceError(what, hint="see what rank 0 or its launcher says") from error


@cache
def _own_store() -> TCPStore:
    """Rank 0's store, in this process. It is kept until the process ends: the others may need it as long."""
    host, port = ("localhost", 0) if _launcher_has_store() else _master()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True)


def _own_host() -> str:
    """How the other ranks reach this machine: by the address that leads from here to the launcher's store."""
    host, port = _master()
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS) as connection:
            own, other = connection.getsockname()[0], connection.getpeername()[0]
    except OSError:
        return host
    return host if own == other else own


def _client(host: str, port: int) -> Store:
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_CONNECTING)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _PROBE_SECONDS).close()
    except OSError:
        return False
    return True
