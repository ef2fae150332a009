"""The processes that train a script: this one alone, or ranks of which it is one; nobody above asks which.

A rank has a thread that meets the others and tells them what this one measures; rank 0's makes records of it.
None of it needs the loop's thread: a script whose ranks never meet trains as without us.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist

from amptui.base.prompt import complain
from amptui.base.text import one_line
from amptui.guest.loop.observed_optimizer import ObservedOptimizer
from amptui.guest.loop.parallel_layout import ParallelLayout, layout_of
from amptui.guest.loop.script import ObservedScript, Script, WatchedScript
from amptui.loops.description import device_name, gpu_uuid
from amptui.ranks.agreement.board import Board, open_board
from amptui.ranks.agreement.guest_control import NO_SCRIPT_XRAY, GuestControl
from amptui.ranks.agreement.orders import NEVER, Pace, poll_seconds
from amptui.ranks.agreement.rows import PostedRows
from amptui.ranks.ends.progress import PeerProgress
from amptui.ranks.launchers import world_of_variables
from amptui.ranks.numbers.meter import RankMeter, RankReport
from amptui.ranks.store.place import Place, place_of
from amptui.ranks.world import World
from amptui.records.control import Control
from amptui.records.ranks import RankLost, RanksStarted
from amptui.records.run import Note, Record, RunStarted
from amptui.records.steps import Steps
from amptui.runs.rundir import RunDir

SIGN_IN_SECONDS = 30.0
"""How long after its first step a rank waits for the others to call amptui."""

_LATER_SECONDS = 10.0
"""How much longer the others wait for rank 0."""

_NO_LEADER = "rank 0 has not called amptui, so nothing is recorded"

_CLOSING_SECONDS = 10.0

_NO_GROUP = "the ranks share no process group: only rank 0 is watched"

NOT_WATCHED = "is no longer watched"
"""What became of a rank on which amptui has failed."""

Emit = Callable[[Record], object]

_runs = count()
"""How many runs this process has opened: all ranks open them in the same order."""


class OneProcess:
    """A script that trains in this process alone."""

    size = 1
    """How many processes train together."""
    leads = True
    """Whether this process keeps the run, and takes requests."""
    restart = max_restarts = 0
    """How often the ranks have been started again, and how often that happens at most."""
    starts_again = False
    """Whether the ranks are started again if this one fails."""

    def continues(self, _run_dir: str) -> bool:
        """Whether the run in that folder goes on with this process."""
        return False

    def open(self, script: ObservedScript | WatchedScript, emit: Emit) -> tuple[Control | None, Emit]:
        """The control of ``script``, None if it is only observed, and what takes the records of its loop."""
        return Control(emit) if isinstance(script, WatchedScript) else None, emit

    def layout(self, _script: Script) -> ParallelLayout:
        """How the training is shared; a single process takes all samples."""
        return ParallelLayout(1)

    def add_to(self, started: RunStarted, _layout: ParallelLayout) -> RunStarted:
        """The first record, with what the processes add to it."""
        return started

    def start(self, optimizer: ObservedOptimizer) -> None:
        """Begin to meet the others; ``optimizer`` is the script's first."""

    def begin(self) -> None:
        """The first step ends."""

    def leave(self, why: str, error: str = "") -> None:
        """Tell the others that this process takes no part any more, and the ``error`` of its script."""

    @property
    def may_stop(self) -> bool:
        """Whether the loop may end: one of several ranks must not end alone."""
        return True

    @property
    def launcher_pid(self) -> int | None:
        """The process whose signals reach the whole script; None if this one's do."""
        return None


class OneOfRanks(OneProcess):
    """A rank among the others: in its thread from :meth:`start` to :meth:`leave`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._control: GuestControl | None = None
        """None where the loop is only observed."""
        self._emit: Emit
        """Takes rank 0's records, from any thread."""
        self._progress: PeerProgress
        self._name = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_runs)}"
        self._parent = os.getppid()
        self.size, self.leads, self.restart = world.size, world.leads, world.restart
        self.max_restarts, self.starts_again = world.max_restarts, world.starts_again
        self._optimizer: ObservedOptimizer | None = None
        """The script's first, once there is a thread."""
        self._board: Board | None = None
        self._connected = self._has_posted_over = self._ended = False
        self._start_time = math.inf
        self._meter, self._pace = RankMeter(), Pace()
        self._rows: PostedRows | None = None
        """Where this rank's numbers go, once there is a board."""
        self._seconds = poll_seconds(world.size)
        self._training_thread: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="amptui-ranks", daemon=True)

    def continues(self, run_dir: str) -> bool:
        if not run_dir:  # each start of the ranks has a run of its own
            self.restart = self.max_restarts = 0
            self.starts_again = False
            self._world = replace(self._world, restart=0, max_restarts=0)
        return self.restart > 0 and RunDir(Path(run_dir)).holds_a_run

    def open(self, script: ObservedScript | WatchedScript, emit: Emit) -> tuple[Control | None, Emit]:
        self._emit, self._progress = emit, PeerProgress(self._world, emit)
        self._control = GuestControl(self._world, emit) if isinstance(script, WatchedScript) else None
        return self._control, self._take

    def layout(self, script: Script) -> ParallelLayout:
        layout, data_parallel = layout_of(script.model, self.size), script.data_parallel
        if data_parallel is None:
            return layout
        is_odd = self.size % data_parallel
        why = f"{self.size} ranks cannot be {data_parallel} times as many" if is_odd else ""
        return replace(layout, data_parallel=0 if why else data_parallel, unknown=why)

    def add_to(self, started: RunStarted, layout: ParallelLayout) -> RunStarted:
        samples, data_parallel = started.batch_size, layout.data_parallel
        return replace(
            started,
            refuses={"x-ray": NO_SCRIPT_XRAY, **started.refuses},
            world_size=self.size,
            parallel="+".join(layout.kinds),
            data_parallel=data_parallel or None,
            global_batch_size=samples * data_parallel if samples and data_parallel else None,
        )

    @property
    def may_stop(self) -> bool:
        return self._control is not None and not self._control.over

    @property
    def launcher_pid(self) -> int | None:
        is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() == self._parent
        return self._parent if is_torchrun else None  # once torchrun is gone, another has adopted us

    def start(self, optimizer: ObservedOptimizer) -> None:
        self._optimizer = optimizer
        self._thread.start()

    def begin(self) -> None:
        self._start_time = time.monotonic()

    def leave(self, why: str, error: str = "") -> None:
        self._stopping.set()
        if self._control is not None:
            self._control.end(f"rank {self._world.rank} {why}")
        if self._optimizer is not None:
            self._thread.join(_CLOSING_SECONDS)
            self._progress.end(self._optimizer.step)
        if not self._ended:
            self._tell_gone(why, error)
        self._ended = True

    # ---------------------------------------------------------------- the loop's thread

    def _take(self, record: Record) -> None:
        """Take a record of this rank's loop."""
        self._training_thread = threading.get_ident()
        self._measure(record)
        if self.leads:
            self._emit(record)

    def _measure(self, record: Record) -> None:
        """Add steps of the first optimizer, which all ranks make together."""
        if type(record) is not Steps or record.optimizer or self._optimizer is None:
            return
        rows, due = self._rows, NEVER if self._rows is None else self._rows.due
        if record.first_step < due < record.last_step:
            end = due - record.first_step + 1  # all ranks measure after the same step
            self._measure(record.part(0, end))
            record, due = record.part(end, record.count), NEVER
        self._meter.add(record)
        if rows is not None and record.last_step >= due:
            peak_bytes = getattr(self._optimizer.allocator.sample, "peak_allocated_bytes", None)
            numbers = self._meter.take_numbers(compute_seconds=None, peak_bytes=peak_bytes)
            # Ranks measure norms in steps of their own; after DDP's mean all have the same.
            rows.put(numbers._replace(grad_norm=math.nan))

    # ------------------------------------------------------------------ the rank's thread

    def _tell_gone(self, why: str, error: str = "") -> None:
        if self._board is None:
            return
        with suppress(RuntimeError):  # nobody is left
            self._tell_lost(self._board, self._board.decide("gone", [self._world.rank, why, error]))
            if self.leads and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                time.sleep(2 * poll_seconds(self.size))  # the store ends with this process

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
        board, optimizer = self._board, self._optimizer
        assert optimizer is not None, "the thread is started with it"
        if board is None:
            self._find_board()
            return
        if self._rows is None:
            self._rows = self._sign_in(board, optimizer)
        elif not self._connected:
            self._await_others(board, optimizer)
        else:
            self._talk(board, self._rows, optimizer.step)
        if self._connected and not self._ended:
            self._progress.tick(board, step=optimizer.step, thread_id=self._training_thread)

    def _find_board(self) -> None:
        has_begun = time.monotonic() >= self._start_time  # first: the group may be made in between
        self._board, world = open_board(self._name), world_of_script()
        if self._board is None and not has_begun:
            return
        if self._board is None or world is None or (world.rank, world.size) != (self._world.rank, self.size):
            if self.leads:
                self._emit(Note(time=time.time(), severity="info", text=_NO_GROUP))
            if self._control is not None:
                self._control.be_alone()
            self._board, self._ended = None, True

    def _sign_in(self, board: Board, optimizer: ObservedOptimizer) -> PostedRows:
        rank, device = self._world.rank, optimizer.device
        place = place_of(device, device_name(device), gpu_uuid(device))
        board.post(f"place/{rank}", [self._control is not None, asdict(place)])
        board.post(f"at/{rank}", [0, 0, {}])
        board.post(f"near/{rank}", [0, {}, 0])
        report = RankReport(self._emit) if self.leads else None
        rows = PostedRows(board, rank, self.size, report)
        self._progress.post(board, optimizer.step)
        if self.leads:
            board.post("call", 0)
            board.post("over", "")
        board.count("signed", 1)
        return rows

    def _await_others(self, board: Board, optimizer: ObservedOptimizer) -> None:
        """Until all ranks are there, or nobody waits any more: all decide the same."""
        verdict = self._verdict(board, time.monotonic() - self._start_time)
        if verdict:
            if self.leads:
                loss = "precision, pause and stop need all ranks" if self._control else "only rank 0 is shown"
                complain(f"{verdict}: {loss}")
                self._emit(Note(time=time.time(), severity="warning", text=f"{verdict}: {loss}"))
            self._end(verdict)
        elif verdict is not None:
            self._connected = True
            if self.leads:
                places = tuple(place.of_rank(rank) for rank, (_, place) in enumerate(self._places(board)))
                restarts = {"restarts": self._world.restart, "max_restarts": self._world.max_restarts}
                self._emit(RanksStarted(time=time.time(), ranks=places, **restarts))
            if self._control is not None:
                self._control.connect(board, lambda: optimizer.step)

    def _verdict(self, board: Board, wait_seconds: float) -> str | None:
        """Why the ranks do not train together, or nothing if they do; None while some may come."""
        if not self.leads:
            verdict = board.look("members")
            if verdict is None and wait_seconds > SIGN_IN_SECONDS + _LATER_SECONDS:
                verdict = board.decide("members", _NO_LEADER)
                if verdict == _NO_LEADER and board.count("told", 1) == 1:
                    complain(_NO_LEADER)
            return None if verdict is None else str(verdict)
        if board.count("signed") >= self.size and wait_seconds > 0:
            functions = [calls_watch for calls_watch, _ in self._places(board)]
            unlike = [rank for rank, function in enumerate(functions) if function != functions[0]]
            why = f"rank {unlike[0]} calls another function of amptui's than rank 0" if unlike else ""
            return str(board.decide("members", why))
        if wait_seconds > SIGN_IN_SECONDS:
            absent = [rank for rank in range(self.size) if board.look(f"place/{rank}") is None]
            who = f"rank {absent[0]}" if absent else "a rank"
            return str(board.decide("members", f"{who} has not called amptui"))
        return None

    def _places(self, board: Board) -> list[tuple[bool, Place]]:
        """Of each rank whether it calls watch(), and where it runs."""
        posts = board.read([f"place/{rank}" for rank in range(self.size)])
        return [(calls_watch, Place(**place)) for calls_watch, place in posts]

    # ------------------------------------------------------------------ while training

    def _talk(self, board: Board, rows: PostedRows, step: int) -> None:
        """Tell the others and hear from them; rank 0 asks and takes, the others answer."""
        if self.leads:
            if self._end_with_another(board):
                return
            if self._control is not None:
                self._seconds = self._control.talk()
                if self._control.over and not self._has_posted_over:
                    self._has_posted_over = True
                    board.post("over", self._control.over)
            now = time.monotonic()
            self._pace.note(now, step)
            rows.announce(self._pace.point_ahead(now, step, self.size))
            return
        call, (number, point), over = board.read(["call", "sample", "over"])
        if self._control is not None:
            self._seconds = self._control.talk(call)
            if over:
                self._control.end(over)
        self._end_with_another(board)
        rows.follow(number, point)

    def _end_with_another(self, board: Board) -> bool:
        """Whether another rank was the first to go; rank 0 records how."""
        end = board.look("gone")
        if end:
            self._tell_lost(board, end)
            self._end(f"rank {end[0]} {end[1]}")
        return bool(end)

    def _tell_lost(self, board: Board, end: Sequence[Any]) -> None:
        """Rank 0's: record that another rank was the first to go, if it failed."""
        rank, _, error = end
        if not (self.leads and self._optimizer is not None and self._connected and error and rank):
            return
        step, (_, place) = self._optimizer.step, self._places(board)[rank]
        self._emit(
            RankLost(time=time.time(), step=step, rank=rank, host=place.host, cause="failed", detail=error)
        )

    def _end(self, why: str) -> None:
        self._ended = True
        if self._control is not None:
            self._control.end(why)


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


def processes_of_script() -> OneProcess:
    """The processes that train the script. Raises UsageError if a variable of torchrun's is not a number."""
    world = world_of_script()
    return OneProcess() if world is None else OneOfRanks(world)
