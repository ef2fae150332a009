"""The thread in each rank of a script that meets the other ranks and tells them what this one measures.

Rank 0's makes records of it. None of it needs the loop's thread: a script whose ranks never meet trains as
without us.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from typing import Any

import torch.distributed as dist

from amptui.base.prompt import complain
from amptui.base.text import one_line
from amptui.engine.description import device_name, gpu_uuid
from amptui.guest.loop.observed_optimizer import ObservedOptimizer
from amptui.ranks.agreement.board import Board, open_board
from amptui.ranks.agreement.guest_control import GuestControl
from amptui.ranks.agreement.orders import poll_seconds
from amptui.ranks.agreement.rows import RankNumbers, RankRows
from amptui.ranks.ends.progress import PeerProgress
from amptui.ranks.launchers import world_of_variables
from amptui.ranks.numbers.meter import SAMPLE_SECONDS, RankMeter, RankReport
from amptui.ranks.store.place import Place, place_of
from amptui.ranks.world import World
from amptui.records.ranks import RankLost, RanksStarted
from amptui.records.run import Note, Record
from amptui.records.steps import Steps

SIGN_IN_SECONDS = 30.0
"""How long after its first step a rank waits for the others to call amptui."""

_LATER_SECONDS = 10.0
"""How much longer the others wait for rank 0."""

_NO_LEADER = "rank 0 has not called amptui, so nothing is recorded"

_CLOSING_SECONDS = 10.0

_NO_GROUP = "the ranks share no process group: only rank 0 is watched"

NOT_WATCHED = "is no longer watched"
"""What became of a rank on which amptui has failed."""

_NEVER = 1 << 62

Emit = Callable[[Record], object]

_runs = count()
"""How many runs this process has opened: all ranks open them in the same order."""


def world_of_script() -> World | None:
    """Which rank of the script this process is; None if it trains alone.

    Raises UsageError if a variable of torchrun's is not a number.
    """
    launched = world_of_variables(os.environ)
    if not (dist.is_available() and dist.is_initialized()):
        return launched
    rank, size = dist.get_rank(), dist.get_world_size()
    if launched is not None and size > 1:
        return replace(launched, rank=rank, size=size)
    local = os.environ.get("LOCAL_RANK", "")
    return World(rank, int(local) if local.isdigit() else rank, size) if size > 1 else None


class _Sampling:
    """One rank's numbers up to a step that rank 0 has announced; filled by the loop's thread."""

    def __init__(self) -> None:
        self._meter = RankMeter()
        self._number = 0
        self._due = _NEVER
        self.peak_bytes: Callable[[], int | None] = lambda: None
        self.row: tuple[int, RankNumbers] | None = None

    def announce(self, number: int, step: int) -> None:
        """Sample ``number`` ends with ``step``, or with the next step if that is past."""
        if number > self._number:
            self._number, self._due = number, step

    def add(self, record: Record) -> None:
        """Add steps of the first optimizer, which all ranks make together."""
        if type(record) is not Steps or record.optimizer:
            return
        if record.first_step < self._due < record.last_step:
            end = self._due - record.first_step + 1  # all ranks end the sample with the same step
            self.add(record.part(0, end))
            record = record.part(end, record.count)
        self._meter.add(record)
        if record.last_step >= self._due:
            self._due = _NEVER
            numbers = self._meter.take_numbers(compute_seconds=None, peak_bytes=self.peak_bytes())
            # Ranks measure norms in steps of their own; after DDP's mean all have the same.
            self.row = self._number, numbers._replace(grad_norm=math.nan)

    def take(self) -> tuple[int, RankNumbers] | None:
        """The newest numbers, once."""
        row, self.row = self.row, None
        return row


class RankPeer:
    """A rank among the others, from its first step to :meth:`close`.

    ``control`` is None where the loop is only observed. ``emit`` takes rank 0's records, from any thread.
    """

    def __init__(self, world: World, control: GuestControl | None, emit: Emit) -> None:
        self._world = world
        self._control = control
        self._emit = emit
        self._name = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_runs)}"
        self._optimizer: ObservedOptimizer | None = None
        self._board: Board | None = None
        self._signed = self._connected = self._has_posted_over = self._ended = False
        self._start_time = math.inf
        self._sampling = _Sampling()
        self._report = RankReport(emit)
        self._sample, self._sample_due = 0, 0.0
        self._own_row: tuple[int, RankNumbers] | None = None
        self._seen_step, self._seen_at = 0, time.monotonic()
        self._seconds = poll_seconds(world.size)
        self._progress = PeerProgress(world, emit)
        self._training_thread: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="amptui-ranks", daemon=True)

    def take(self, record: Record) -> None:
        """Take a record of this rank's loop; called by the loop's thread."""
        self._training_thread = threading.get_ident()
        self._sampling.add(record)
        if self._world.leads:
            self._emit(record)

    def start(self, optimizer: ObservedOptimizer) -> None:
        """Begin to look for the others; ``optimizer`` is the script's first."""
        self._optimizer = optimizer
        allocator = optimizer.allocator
        self._sampling.peak_bytes = lambda: getattr(allocator.sample, "peak_allocated_bytes", None)
        self._thread.start()

    def begin(self) -> None:
        """The rank has made its first step."""
        self._start_time = time.monotonic()

    def close(self, why: str, error: str = "") -> None:
        """Tell the others that this rank takes no part any more, and end the thread; called by another.

        ``error`` is what the script failed with: rank 0, which then fails too, tells of it.
        """
        self._stopping.set()
        if self._control is not None:
            self._control.end(f"rank {self._world.rank} {why}")
        self._thread.join(_CLOSING_SECONDS)
        if self._optimizer is not None:
            self._progress.end(self._optimizer.step)
        if not self._ended:
            self._tell_gone(why, error)
        self._ended = True

    def _tell_gone(self, why: str, error: str = "") -> None:
        if self._board is None:
            return
        with suppress(RuntimeError):  # nobody is left
            self._tell_lost(self._board, self._board.decide("gone", [self._world.rank, why, error]))
            if self._world.leads and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                time.sleep(2 * poll_seconds(self._world.size))  # the store ends with this process

    def _work(self) -> None:
        while not self._ended and not self._stopping.wait(self._seconds):
            try:
                self._tick()
            except RuntimeError:  # the store's: its process has ended
                self._end("the connection between the ranks was lost")
            except Exception as error:  # noqa: BLE001 - the script goes on
                complain(one_line(f"the ranks are not shown: {type(error).__name__}: {error}"))
                self._tell_gone(NOT_WATCHED)  # the others would wait for it after every request
                self._end(f"rank {self._world.rank} {NOT_WATCHED}")

    def _tick(self) -> None:
        if self._board is None:
            self._find_board()
        elif not self._signed:
            self._sign_in(self._board)
        elif not self._connected:
            self._await_others(self._board)
        elif self._world.leads:
            self._lead(self._board)
        else:
            self._follow(self._board)
        if self._connected and not self._ended and self._board is not None and self._optimizer is not None:
            self._progress.tick(self._board, step=self._optimizer.step, thread_id=self._training_thread)

    def _find_board(self) -> None:
        has_begun = time.monotonic() >= self._start_time  # first: the group may be made in between
        self._board, world = open_board(self._name), world_of_script()
        if self._board is None and not has_begun:
            return
        if (
            self._board is None
            or world is None
            or (world.rank, world.size) != (self._world.rank, self._world.size)
        ):
            if self._world.leads:
                self._emit(Note(time=time.time(), severity="info", text=_NO_GROUP))
            if self._control is not None:
                self._control.be_alone()
            self._board, self._ended = None, True

    def _sign_in(self, board: Board) -> None:
        optimizer, rank = self._optimizer, self._world.rank
        assert optimizer is not None, "started with it"
        device = optimizer.device
        place = place_of(device, device_name(device), gpu_uuid(device))
        board.post(f"place/{rank}", [self._control is not None, asdict(place)])
        board.post(f"at/{rank}", [0, 0, {}])
        board.post(f"near/{rank}", [0, {}, 0])
        board.post(f"row/{rank}", [0, 0, []])
        self._progress.post(board, optimizer.step)
        if self._world.leads:
            for name, value in (("call", 0), ("sample", [0, 0]), ("over", "")):
                board.post(name, value)
        board.count("signed", 1)
        self._signed = True

    def _await_others(self, board: Board) -> None:
        """Until all ranks are there, or nobody waits any more: all decide the same."""
        wait_seconds = time.monotonic() - self._start_time
        verdict = (
            self._verdict(board, wait_seconds)
            if self._world.leads
            else self._verdict_of_leader(board, wait_seconds)
        )
        if verdict:
            if self._world.leads:
                loss = "precision, pause and stop need all ranks" if self._control else "only rank 0 is shown"
                complain(f"{verdict}: {loss}")
                self._emit(Note(time=time.time(), severity="warning", text=f"{verdict}: {loss}"))
            self._end(verdict)
        elif verdict is not None:
            self._connected = True
            if self._world.leads:
                self._tell_places(board)
            if self._control is not None and self._optimizer is not None:
                optimizer = self._optimizer
                self._control.connect(board, lambda: optimizer.step)

    def _verdict(self, board: Board, wait_seconds: float) -> str | None:
        """Rank 0's: why the ranks do not train together, or nothing if they do; None while some may come."""
        if board.count("signed") >= self._world.size and wait_seconds > 0:
            return str(board.decide("members", self._unlike(board)))
        if wait_seconds > SIGN_IN_SECONDS:
            return str(board.decide("members", f"{self._absent(board)} has not called amptui"))
        return None

    def _verdict_of_leader(self, board: Board, wait_seconds: float) -> str | None:
        """Another rank's: what rank 0 has decided; if it never does, one rank tells the terminal."""
        verdict = board.look("members")
        if verdict is None and wait_seconds > SIGN_IN_SECONDS + _LATER_SECONDS:
            verdict = board.decide("members", _NO_LEADER)
            if verdict == _NO_LEADER and board.count("told", 1) == 1:
                complain(_NO_LEADER)
        return None if verdict is None else str(verdict)

    def _absent(self, board: Board) -> str:
        ranks = [rank for rank in range(self._world.size) if board.look(f"place/{rank}") is None]
        return f"rank {ranks[0]}" if ranks else "a rank"

    def _unlike(self, board: Board) -> str:
        """The first rank that does not do as rank 0 does; empty if all do."""
        functions = [calls_watch for calls_watch, _ in self._places(board)]
        for rank, function in enumerate(functions):
            if function != functions[0]:
                return f"rank {rank} calls another function of amptui's than rank 0"
        return ""

    def _places(self, board: Board) -> list[tuple[bool, Place]]:
        """Of each rank whether it calls watch(), and where it runs."""
        posts = board.read([f"place/{rank}" for rank in range(self._world.size)])
        return [(calls_watch, Place(**place)) for calls_watch, place in posts]

    def _tell_places(self, board: Board) -> None:
        places = tuple(place.of_rank(rank) for rank, (_, place) in enumerate(self._places(board)))
        restarts = {"restarts": self._world.restart, "max_restarts": self._world.max_restarts}
        self._emit(RanksStarted(time=time.time(), ranks=places, **restarts))

    # ------------------------------------------------------------------ while training

    def _follow(self, board: Board) -> None:
        call, (number, step), over = board.read(["call", "sample", "over"])
        if self._control is not None:
            self._seconds = self._control.talk(call)
        if over and self._control is not None:
            self._control.end(over)
        if end := self._end_of_another(board):
            self._end(end)
        self._sampling.announce(number, step)
        if row := self._sampling.take():
            number, numbers = row
            board.post(f"row/{self._world.rank}", [number, numbers.last_step, numbers])

    def _lead(self, board: Board) -> None:
        if end := self._end_of_another(board):
            self._end(end)
            return
        if self._control is not None:
            self._seconds = self._control.talk()
        if not self._has_posted_over and self._control is not None and self._control.over:
            self._has_posted_over = True
            board.post("over", self._control.over)
        if self._own_row is None:
            self._own_row = self._sampling.take()
        if self._own_row is not None:
            self._take_rows(board, self._own_row)
        elif self._sample_due and time.monotonic() >= self._sample_due:
            self._announce_sample(board)
        elif not self._sample_due:
            self._sample_due = time.monotonic()

    def _end_of_another(self, board: Board) -> str:
        """Which rank was the first to go, and how; empty if none has."""
        end = board.look("gone")
        if end:
            self._tell_lost(board, end)
        return f"rank {end[0]} {end[1]}" if end else ""

    def _tell_lost(self, board: Board, end: Sequence[Any]) -> None:
        """Rank 0's: record that another rank was the first to go, if it failed."""
        rank, _, error = end
        if not (self._world.leads and self._optimizer is not None and self._connected and error and rank):
            return
        step, (_, place) = self._optimizer.step, self._places(board)[rank]
        self._emit(
            RankLost(time=time.time(), step=step, rank=rank, host=place.host, cause="failed", detail=error)
        )

    def _announce_sample(self, board: Board) -> None:
        """Take the next sample at a step that every rank hears of before."""
        assert self._optimizer is not None, "started with it"
        now, step = time.monotonic(), self._optimizer.step
        pace = (step - self._seen_step) / max(now - self._seen_at, 1e-3)
        self._seen_step, self._seen_at = step, now
        self._sample += 1
        self._sample_due = math.inf
        due = step + math.ceil(pace * (2 * poll_seconds(self._world.size) + 0.1))
        board.post("sample", [self._sample, due])
        self._sampling.announce(self._sample, due)

    def _take_rows(self, board: Board, own: tuple[int, RankNumbers]) -> None:
        rows = board.read([f"row/{rank}" for rank in range(1, self._world.size)])
        if any(number != own[0] for number, _, _ in rows):
            return
        self._report.take(RankRows([own[1], *[numbers for _, _, numbers in rows]]))
        self._own_row = None
        self._sample_due = self._seen_at + SAMPLE_SECONDS

    def _end(self, why: str) -> None:
        self._ended = True
        if self._control is not None:
            self._control.end(why)
