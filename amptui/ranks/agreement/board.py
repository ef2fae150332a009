"""What ranks post for each other to read in a store that they share: where each runs, and that it has come.

Short texts under names; no collective, so that nobody waits for a rank that does not come.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from amptui.base.errors import DeviceError
from amptui.device.accelerator import default_device, device_count, properties
from amptui.ranks.world import World
from amptui.records.ranks import RankPlace, RanksStarted

_STORE_SECONDS = 5.0
"""A store that takes so long to answer is lost to a script; one over a network takes 0.1 ms."""

_MEMBERS = "members"

MEETING_SECONDS = 10.0
"""How long a rank waits after the step of an order. It then goes on, and so do all."""

_SUSPICIOUS_SECONDS = 0.3
"""Ranks that train together mostly come to the same step within that time."""

APART = "the ranks are not at the same step: did one take fewer batches, or call amptui later?"


class Board:
    """One run's part of ``store``; may be used by several threads.

    Raises RuntimeError, as the store does, once that cannot be reached: it may live in rank 0's process.
    """

    def __init__(self, store: Store, name: str, *, timeout_seconds: float = _STORE_SECONDS) -> None:
        own = store.clone()  # a connection of its own: the training may wait on the other for minutes
        own.set_timeout(timedelta(seconds=timeout_seconds))
        self._store = PrefixStore(f"amptui/{name}", own)

    def post(self, name: str, value: Any) -> None:
        """Put ``value``, which JSON can hold, in the place of the last one."""
        self._store.set(name, json.dumps(value))

    def read(self, names: Sequence[str]) -> list[Any]:
        """What was posted under ``names``, all of which must have been."""
        return [json.loads(text) for text in self._store.multi_get(list(names))]

    def look(self, name: str) -> Any:
        """What was posted under ``name``; None if nothing was."""
        return json.loads(self._store.get(name)) if self._store.check([name]) else None

    def decide(self, name: str, value: Any) -> Any:
        """Post ``value`` unless something was; return what stands there, on all ranks the same."""
        return json.loads(self._store.compare_set(name, "", json.dumps(value)))

    def count(self, name: str, more: int = 0) -> int:
        """Add ``more`` to a number that all ranks share; return it."""
        return int(self._store.add(name, more))

    def remove(self, name: str) -> None:
        """Take away what was posted, if anything."""
        self._store.delete_key(name)

    def hand_in(self, name: str, value: bytes) -> None:
        """Put bytes there, for :meth:`take`."""
        self._store.set(name, value)  # type: ignore[arg-type]  # it takes bytes too

    def take(self, name: str) -> bytes | None:
        """Take away the bytes that were put there, if any."""
        if not self._store.check([name]):
            return None
        value = self._store.get(name)
        self._store.delete_key(name)
        return value


def open_board(name: str) -> Board | None:
    """The board of the script's process group; None while there is no group.

    Raises RuntimeError if its store cannot be reached.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return Board(dist.distributed_c10d._get_default_store(), name)


def collectives_by_group() -> dict[str, int]:
    """How many collectives this rank has begun on each process group that it is in, if its backend counts.

    Equal on all ranks that are at the same place of the training, however many steps each has counted.
    """
    counts: dict[str, int] = {}
    groups: Mapping[Any, str] = dist.distributed_c10d._world.pg_names
    for group, name in list(groups.items()):
        with suppress(RuntimeError, ValueError):  # not every backend counts
            counts[name] = int(group._get_sequence_number_for_group())
    return counts


def is_same_place(places: Sequence[tuple[int, Mapping[str, int]]]) -> bool:
    """Whether ranks are at the same place of the training: each with its steps and its collectives."""
    counts: dict[str, set[int]] = {}
    for _, collectives in places:
        for group, count in collectives.items():
            counts.setdefault(group, set()).add(count)
    return len({step for step, _ in places}) == 1 and all(len(values) == 1 for values in counts.values())


def is_ahead(other: Mapping[str, int], this: Mapping[str, int]) -> bool:
    """Whether the other rank has begun a collective that this one has not come to."""
    return any(other.get(group, 0) > count for group, count in this.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(RankPlace):
    """Where a rank runs, and its process there."""

    pid: int
    machine: str = ""
    """What its process number belongs to, see :func:`here`."""
    started_ticks: int = 0
    """When its process began, in clock ticks since the boot: another process of its number began later."""

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended; False if this one cannot know that."""
        return self.machine == here() != "" and started_ticks(self.pid) != self.started_ticks

    def kill(self) -> None:
        """Kill its process, if this one can and no other has its number by now."""
        if self.machine == here() != "" and started_ticks(self.pid) == self.started_ticks and self.pid > 0:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


def place_of(rank: int, device: torch.device, device_name: str, gpu_uuid: str | None) -> Place:
    """Where this process runs."""
    return Place(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(device),
        device_name=device_name,
        gpu_uuid=gpu_uuid,
        memory_total_bytes=properties(device).memory_bytes,
        machine=here(),
        started_ticks=started_ticks(os.getpid()) or 0,
    )


def device_of(world: World, name: str) -> str:
    """The GPU of this rank's number on its machine, or the CPU; ``name`` is "auto" or a type of device.

    Raises DeviceError if there is no GPU of that number.
    """
    kind = default_device().type if name == "auto" else name.partition(":")[0]
    if kind == "mps":  # no backend of torch.distributed moves its tensors
        if name == "auto":
            return "cpu"
        raise DeviceError("ranks cannot train together on MPS", hint="start one process, or use --device cpu")
    if kind == "cpu":
        return "cpu"
    count, local = device_count(kind), world.local_rank
    if count == 1 and world.launcher != "torchrun":
        return f"{kind}:0"  # srun and mpirun may show each task the GPU that it is given
    if 0 < count <= local:
        what = f"each rank needs a GPU of its own: this machine has {count:,}"
        raise DeviceError(what, hint=f"start {count:,} ranks here, or use --device cpu")
    return f"{kind}:{local}"


@cache
def here() -> str:
    """What this process's number belongs to; "" if the system does not say.

    A boot and a PID namespace: two containers on one machine number their processes from 1 each. Nor does it
    say if ``/proc`` is that of another namespace.
    """
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def started_ticks(pid: int) -> int | None:
    """When the process ``pid`` began (proc(5), field 22 of ``stat``); None if it has ended.

    A dead one that nobody has waited for has ended.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class SignIn:
    """One rank's part: it tells ``place``; all hear the same verdict."""

    def __init__(self, board: Board, world: World, place: Place) -> None:
        self._board = board
        self._world = world
        board.post(f"place/{world.rank}", asdict(place))
        board.count("signed", 1)

    def verdict(self) -> Sequence[Place] | str | None:
        """Where all ranks run, or why they do not train together; None while some may come."""
        board, size = self._board, self._world.size
        if self._world.leads and board.count("signed") >= size:
            board.decide(_MEMBERS, board.read([f"place/{rank}" for rank in range(size)]))
        members = board.look(_MEMBERS)
        return [Place(**place) for place in members] if isinstance(members, list) else members

    def end(self) -> None:
        """Nobody waits any more for ranks that have not come."""
        absent = [rank for rank in range(self._world.size) if self._board.look(f"place/{rank}") is None]
        who = f"rank {absent[0]}" if absent else "a rank"
        self._board.decide(_MEMBERS, f"{who} has not called amptui")


def ranks_started(world: World, places: Sequence[Place]) -> RanksStarted:
    """The record of ranks that have met."""
    names = [field.name for field in fields(RankPlace)]
    ranks = tuple(RankPlace(**{name: getattr(place, name) for name in names}) for place in places)
    restarts = {"restarts": world.restart, "max_restarts": world.max_restarts}
    return RanksStarted(time=time.time(), ranks=ranks, **restarts)


def meet(board: Board, world: World, number: int, *, point: int, step: int, over: Callable[[], str]) -> str:
    """Wait for the other ranks after ``step``; return why none obeys the order ``number``, or "" if all do.

    It is for ``point``. ``over`` says why this rank waits no more. Raises RuntimeError, as the board does.
    """
    place, go, began = [step, collectives_by_group()], f"go/{number}", time.monotonic()
    board.post(f"at/{world.rank}", [number, *place])
    board.count(f"met/{number}", 1)
    while True:
        waited = time.monotonic() - began
        verdict = _compare(board, world, number, place, waited) if world.leads else board.look(go)
        if verdict is None and waited > MEETING_SECONDS:
            places = [board.look(f"at/{rank}") for rank in range(world.size)]
            missing = [rank for rank, at in enumerate(places) if not at or at[0] != number]
            who = f"rank {missing[0]}" if missing else "a rank"
            verdict = f"{who} did not come to step {point:,} within {MEETING_SECONDS:g} s"
        verdict = verdict if verdict is not None else over() or None
        if verdict is not None:
            return str(board.decide(go, verdict))
        time.sleep(min(0.0005 + waited / 20, 0.05))


def _compare(board: Board, world: World, number: int, place: list[Any], waited: float) -> str | None:
    """Rank 0's: whether all ranks have come to the same place; None while some have not."""
    ranks = range(world.size)
    if board.count(f"met/{number}") >= world.size:
        places = [place for _, *place in board.read([f"at/{rank}" for rank in ranks])]
        board.remove(f"met/{number - 1}")
        board.remove(f"go/{number - 1}")
        return "" if is_same_place(places) else APART
    if waited > _SUSPICIOUS_SECONDS:
        beats = [board.look(f"beat/{rank}") for rank in ranks[1:]]
        if any(beat and is_ahead(beat[1], place[1]) for beat in beats):
            return APART  # it waits for this rank in a collective of the next step
    return None
