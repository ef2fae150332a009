"""The processes of a run: they meet, exchange rows on a gloo group of their own, and part in order."""

import json
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from amptui.engine.distributed.all_gather import all_gather
from amptui.engine.distributed.descriptors import make_room
from amptui.engine.distributed.launcher_store import ENDED, LauncherStore
from amptui.engine.distributed.place import Place, is_alive
from amptui.engine.distributed.rank_rows import ROW_VALUES, Table
from amptui.engine.distributed.steady_store import is_the_launchers, pauses
from amptui.engine.distributed.world import World
from amptui.errors import DataError, DeviceError

R = TypeVar("R")

HANG_SECONDS = 40.0
"""A rank that makes all others wait so long is given up: with the search for it, within a minute."""

BUSY_SECONDS = 1200.0
"""How long a rank that compiles, or takes an X-ray, may make the others wait. Inside a backward pass on a CPU
gloo waits, which cannot tell compiling from hanging: in a compiled run it waits so long for both."""

_MEETING_SECONDS = 0.05

_COMPILING_SECONDS = 1.0
"""How often a rank that waits for rows looks whether another one compiles."""

_SEARCH_SECONDS = 4.0
"""How long rank 0 looks for the rank that made an operation fail: others say so within that time."""

_BAD_LOSS, _PLACES = "bad loss", "places"

_COMPILING = "compiling"

End = Literal["stopped", "failed", "out of memory", "waited"]
"""How a rank ended early: asked to before the first step, by an error of its own, or because others did."""


class PeerEndedError(DeviceError):
    """Another rank ended, so that this one cannot go on either."""

    def __init__(
        self, rank: int, how: End | Literal["killed", "hung"], detail: str, text: str, hint: str = ""
    ) -> None:
        super().__init__(text, hint=hint)
        self.rank = rank
        self.how = how
        """``waited`` where no rank is known to have ended first; ``rank`` is -1."""
        self.detail = detail


class RankGroup:
    """The connection to the other ranks. Raises :class:`PeerEndedError` wherever another one has ended."""

    def __init__(
        self,
        world: World,
        device: torch.device,
        place: Place,
        *,
        stopping: Callable[[], bool],
        compiles: bool = False,
    ) -> None:
        self.world = world
        self.compiles = compiles
        """Whether the model is compiled, for which ranks have to wait longer."""
        self._gathers = 0
        self._compiling = False
        self._stopping = stopping
        self._device = device
        self._launcher = LauncherStore(world)
        self._store = self._launcher.store
        self._store.set(f"place/{world.rank}", json.dumps(asdict(place)))
        self._gloo: Any = None
        self._out = torch.empty(0, dtype=torch.float64, device="cpu")
        self._work: Any = None
        self._row = self._out
        self._places: list[Place] = []
        self._neighbours: dict[int, int] = {}
        """The processes of this machine's ranks."""

    def connect(self) -> None:
        """Wait until all ranks are there, and connect to them."""
        world = self.world
        make_room(world.size, keeps_store=world.leads)
        if world.leads and is_the_launchers():
            self._store.open_spare()
        self.meet("start")
        self._store.know_spare()
        self._places, host = self._all_places(), socket.gethostname()
        self._neighbours = {rank: place.pid for rank, place in enumerate(self._places) if place.host == host}
        timeout, on_cuda = timedelta(seconds=HANG_SECONDS), self._device.type == "cuda"
        if self.compiles:
            timeout = timedelta(seconds=BUSY_SECONDS)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
            store=PrefixStore("torch", self._store.torch_store),
            rank=world.rank,
            world_size=world.size,
            # NCCL's watchdog aborts the process, which could not tell who hung: the rows tell it earlier.
            timeout=None if on_cuda and not self.compiles else timeout,
        )
        self._gloo = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def places(self) -> Sequence[Place]:
        """Where each rank runs, in their order."""
        return self._places

    def _all_places(self) -> list[Place]:
        """Where the ranks run; all of it at rank 0, host and process elsewhere: so many read it at once."""
        if self.world.leads:
            told = self._store.multi_get([f"place/{rank}" for rank in range(self.world.size)])
            places = [Place(**json.loads(each)) for each in told]
            brief = json.dumps([[place.host, place.pid] for place in places])
            self._store.set(_PLACES, zlib.compress(brief.encode()))
            return places
        self._wait_until(lambda: self._store.check([_PLACES]))
        brief = zlib.decompress(self._store.get(_PLACES)).decode()
        return [Place.of_process(host, pid) for host, pid in json.loads(brief)]

    def meet(self, where: str, *, patience_seconds: float | None = None) -> None:
        """Wait until all ranks have come to this point; without ``patience_seconds`` however long it takes.

        So it is before the first step: raises DeviceError if this rank is asked to stop meanwhile. Later it
        waits for the others whatever it is asked; time in which one of them compiles does not count.
        """
        key = f"meeting/{where}"
        self._store.add(key, 1)
        self._wait_until(lambda: self._store.add(key, 0) >= self.world.size, patience_seconds)

    def tell(self, name: str, text: str) -> None:
        """Tell the other ranks something of their preparations."""
        self._store.set(f"told/{name}", text)

    def hear(self, name: str) -> str:
        """What another rank tells; waits as :meth:`meet` does."""
        key = f"told/{name}"
        self._wait_until(lambda: self._store.check([key]))
        return self._store.get(key).decode()

    def _wait_until(self, done: Callable[[], bool], patience_seconds: float | None = None) -> None:
        waiting, longer = time.monotonic(), pauses(self.world.size)
        while not done():
            # First: a launcher that lost a rank stops the others.
            stopping = patience_seconds is None and self._stopping()
            if (found := self._ended_first()) is not None:
                raise found
            if stopping:
                raise DeviceError("asked to stop while waiting for the other ranks")
            if patience_seconds is not None:
                waiting = self._waiting_since(waiting, patience_seconds)
            time.sleep(next(longer))

    def in_turn(self, load: Callable[[], Any], what: str = "loaded") -> Any:
        """What ``load`` returns; rank 0 goes first, so that only it downloads a file, or refuses one."""
        if not self.world.leads:
            self.meet(f"{what} by rank 0")
            return load()
        loaded = load()
        self.meet(f"{what} by rank 0")
        return loaded

    def on_rank_0(self, where: str, work: Callable[[], R]) -> R | None:
        """What ``work`` returns at rank 0; the others wait, and no collective waits with them."""
        found = work() if self.world.leads else None
        self.meet(where, patience_seconds=BUSY_SECONDS)
        return found

    def check_equal(self, facts: dict[str, float]) -> None:
        """Raise DataError if one of ``facts`` differs from rank 0's: the ranks would wait for each other."""
        everybody: list[dict[str, float]] = [{}] * self.world.size
        dist.all_gather_object(everybody, facts, group=self._gloo)
        for rank, theirs in enumerate(everybody):
            for name, value in everybody[0].items():
                if theirs.get(name) != value:
                    what = f"rank {rank} has {theirs.get(name):,} {name}, rank 0 has {value:,}"
                    raise DataError(what, hint="let build_model() and load_data() give all ranks the same")

    # ------------------------------------------------------------------ while training

    def send(self, row: Sequence[float]) -> None:
        """Send this rank's row without waiting for the others'."""
        self._row = torch.tensor(row, dtype=torch.float64, device="cpu")
        self._out = torch.empty(self.world.size * ROW_VALUES, dtype=torch.float64, device="cpu")
        self._work = all_gather(self._out, self._row, group=self._gloo, async_op=True)

    def receive(self) -> Table:
        """The rows of all ranks; waits until the last has sent its own."""
        work, self._work = self._work, None
        if work is None:
            return []
        waiting = time.monotonic()
        while not self._arrives(work):
            waiting = self._waiting_since(waiting, HANG_SECONDS)
        table: Table = self._out.view(self.world.size, ROW_VALUES).numpy()
        return table

    def _arrives(self, work: Any) -> bool:
        """Whether all rows come in a moment; gloo gives up by itself where nothing is compiled."""
        if not self.compiles:
            work.wait()
            return True
        try:
            work.wait(timedelta(seconds=_COMPILING_SECONDS))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # the rows came just now; raises if they never will
        return True

    def _waiting_since(self, waiting: float, patience_seconds: float) -> float:
        """Since when this rank waits: now if another compiles. Raises what gloo would if it is too long."""
        now = time.monotonic()
        with suppress(RuntimeError):
            if self._store.add(_COMPILING, 0) > self._compiling:
                return now
        if now - waiting > patience_seconds:
            raise RuntimeError(f"gloo: no rank came within {patience_seconds:g} s")
        return waiting

    def tell_compiling(self, compiling: bool) -> None:
        """Tell the others that they must wait for this rank, which begins or ends to compile."""
        with suppress(RuntimeError):
            if compiling != self._compiling:
                self._store.add(_COMPILING, 1 if compiling else -1)
                self._compiling = compiling

    def agree(self, trouble: str) -> str:
        """The ``trouble`` of the first rank that has one, which it names; "" if none has. Waits for all."""
        for rank, theirs in enumerate(self.gather(trouble)):
            if theirs:
                return f"rank {rank}: {theirs}"
        return ""

    def gather(self, value: Any) -> list[Any]:
        """The ``value`` of each rank; waits for all."""
        if self.compiles:  # gloo would wait as long for one that hangs
            self._gathers += 1
            self.meet(f"gather {self._gathers}", patience_seconds=HANG_SECONDS)
        everybody = [None] * self.world.size
        dist.all_gather_object(everybody, value, group=self._gloo)
        return everybody

    def leave(self) -> None:
        """Part from the others after the last step.

        In this order: with a group destroyed before all had left it, runs of four processes ended in SIGABRT.
        """
        dist.barrier(group=self._gloo)
        dist.destroy_process_group(self._gloo)
        dist.barrier()
        dist.destroy_process_group()

    # ------------------------------------------------------------------ through the store

    def hand_in(self, name: str, value: bytes) -> None:
        """Give rank 0 this rank's ``value``, for :meth:`collect`; from any thread."""
        self._store.set(f"{name}/{self.world.rank}", value)

    def collect(
        self, name: str, given_up: Callable[[], bool], patience_seconds: float | None = None
    ) -> list[bytes]:
        """What the other ranks have handed in as ``name``, from rank 1 on; waits for it, in any thread.

        Raises :class:`PeerEndedError` for a rank that has ended, or if the wait is ``given_up`` or too long.
        """
        limit = time.monotonic() + (patience_seconds or HANG_SECONDS)
        return [self._take(f"{name}/{rank}", rank, given_up, limit) for rank in range(1, self.world.size)]

    def _take(self, key: str, rank: int, given_up: Callable[[], bool], limit: float) -> bytes:
        while True:
            ended = self._ended_first()
            over = given_up() or time.monotonic() > limit
            if self._store.check([key]):  # last: a rank may hand it in and end
                value = self._store.get(key)
                self._store.delete_key(key)
                return value
            if ended is not None:
                raise ended
            if over:
                text = f"rank {rank} has not sent its part of the checkpoint"
                raise PeerEndedError(rank, "waited", "", text)
            time.sleep(_MEETING_SECONDS)

    # ------------------------------------------------------------------ ends

    def tell_end(self, how: End, text: str) -> None:
        """Tell the others that this rank ends early, and why."""
        self._launcher.tell_end(how, text)

    def tell_bad_loss(self, step: int) -> None:
        """Tell the others of the first step whose loss was not finite on this rank."""
        with suppress(RuntimeError):
            self._store.set(f"{_BAD_LOSS}/{self.world.rank}", str(step))

    def bad_losses(self) -> dict[int, int]:
        """What each rank has told of that, by rank."""
        with suppress(RuntimeError):
            keys = {rank: f"{_BAD_LOSS}/{rank}" for rank in range(self.world.size)}
            return {rank: int(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}
        return {}

    def find_ended(self) -> PeerEndedError:
        """Who made an operation of all ranks fail; looks for a few seconds."""
        limit, longer = time.monotonic() + _SEARCH_SECONDS, pauses(self.world.size)
        while (found := self._ended_first()) is None and time.monotonic() < limit:
            time.sleep(next(longer))
        if found is not None:
            return found
        silent = self._silent()
        if len(silent) == 1:
            rank = silent[0]
            detail = f"it made the others wait for {HANG_SECONDS:g} s"
            return PeerEndedError(rank, "hung", detail, f"rank {rank} hung: {detail}")
        if not silent:
            text = "no rank ended, but they waited for each other: does loss() run the same layers on all?"
            return PeerEndedError(-1, "waited", "", text)
        return PeerEndedError(-1, "waited", "", "another rank ended or hung")

    @property
    def one_has_ended(self) -> bool:
        """Whether another rank has ended; for any thread."""
        return self._ended_first() is not None

    def _silent(self) -> list[int]:
        """The other ranks that have not told of an early end."""
        with suppress(RuntimeError):
            return self._launcher.silent()
        return [rank for rank in range(self.world.size) if rank != self.world.rank]

    def _ended_first(self) -> PeerEndedError | None:
        """The rank that told of an error, or whose process of this machine is gone without a word."""
        first: tuple[int, Any, str] | None = None
        with suppress(RuntimeError):
            first = self._launcher.first_end()
        if first is not None and first[0] != self.world.rank:
            rank, how, text = first
            return PeerEndedError(rank, how, text, f"rank {rank}: {text}")
        for rank, pid in self._neighbours.items():
            if not is_alive(pid) and not self._has_told(rank):
                detail = f"pid {pid} is gone"
                return PeerEndedError(rank, "killed", detail, f"rank {rank} was killed: {detail}")
        return None

    def _has_told(self, rank: int) -> bool:
        """Whether that rank has told of its end."""
        with suppress(RuntimeError):
            return self._store.check([f"{ENDED}/{rank}"])
        return False

    def tell_cause(self, ended: PeerEndedError) -> None:
        """Tell the ranks that the launcher may start next why these ended."""
        self._launcher.tell_cause(ended.what)

    def leave_launcher(self) -> None:
        """The launcher is gone, and its store: from any thread."""
        self._launcher.leave()

    @property
    def cause_before(self) -> str:
        """Why the ranks before these ended; empty if they did not say."""
        return self._launcher.cause_before

    def kill_hung(self, rank: int) -> None:
        """Kill a rank of this machine that hung: its launcher would wait for it."""
        place = self._places[rank]
        if place.host == socket.gethostname():
            with suppress(OSError):
                os.kill(place.pid, signal.SIGKILL)


def is_of_a_group(error: BaseException) -> bool:
    """Whether an operation of several ranks failed: gloo and NCCL raise plain RuntimeErrors."""
    if isinstance(error, PeerEndedError | dist.DistError):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return any(
        sign in text
        for sign in ("gloo", "nccl", "connection closed by peer", "pair closure", "process group")
    )
