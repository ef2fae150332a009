"""The ranks that train a script together, of which this process is one.

A rank meets the others in a thread of its own, and then does beside its loop what a rank of ours does. None
of it needs the loop's thread: a script whose ranks never meet trains as without us.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch.distributed as dist

from amptui.base.prompt import complain
from amptui.base.text import one_line
from amptui.device.accelerator import properties
from amptui.loops.description import device_name
from amptui.loops.script.observed_optimizer import ObservedOptimizer
from amptui.loops.script.script import ObservedScript, Script, WatchedScript
from amptui.loops.script.script_model import ParallelLayout, layout_of
from amptui.ranks.agreement.board import Board, Place, SignIn, open_board, place_of, ranks_started
from amptui.ranks.agreement.control import LOST, RankControl
from amptui.ranks.agreement.orders import NEVER, poll_seconds
from amptui.ranks.failure import PeerEndedError, RankEnds
from amptui.ranks.meter import RankMeter
from amptui.ranks.progress import HangWatch, RankProgress
from amptui.ranks.world import World, world_of_variables
from amptui.recipe.request import HANG_SECONDS
from amptui.records.control import NO_XRAY
from amptui.records.run import Note, Record, RunStarted
from amptui.records.steps import Steps
from amptui.runs.rundir import RunDir

SIGN_IN_SECONDS = 30.0
"""How long after its first step a rank waits for the others to call amptui."""

_CLOSING_SECONDS = 10.0

_NO_GROUP = "the ranks share no process group: only rank 0 is watched"

NOT_WATCHED = "is no longer watched"
"""What became of a rank on which amptui has failed."""

Emit = Callable[[Record], object]

_runs = count()
"""How many runs this process has opened: all ranks open them in the same order."""


class OneOfRanks:
    """A rank among the others, from :meth:`start` to :meth:`leave`."""

    def __init__(self, world: World) -> None:
        self.world = world
        """Which process of how many this is."""
        self._control: RankControl
        self._watched = False
        """Whether requests reach the loop, which otherwise is only observed."""
        self._emit: Emit
        """Takes rank 0's records, from any thread."""
        self._name = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_runs)}"
        self._parent = os.getppid()
        self._optimizer: ObservedOptimizer
        """The script's first."""
        self._ends: RankEnds | None = None
        self._places: Sequence[Place] = ()
        self._watch: HangWatch | None = None
        self._has_told_loss = False
        self._start_time = math.inf
        self._meter = RankMeter()
        self._training_thread: int | None = None
        self._stopping = threading.Event()
        self._progress = RankProgress(lambda: ("script", self._optimizer.step))
        self._thread = threading.Thread(target=self._meet_others, name="amptui-ranks", daemon=True)

    def continues(self, run_dir: str) -> bool:
        """Whether the run in that folder goes on with this process."""
        if not run_dir:  # each start of the ranks has a run of its own
            self.world = replace(self.world, restart=0, max_restarts=0)
        return self.world.restart > 0 and RunDir(Path(run_dir)).holds_a_run

    def open(self, script: ObservedScript | WatchedScript, emit: Emit) -> tuple[RankControl, Emit]:
        """The control of ``script``, and what takes the records of its loop."""
        self._emit, self._watched = emit, isinstance(script, WatchedScript)
        self._control = RankControl(self.world, emit, counts_alike=False)
        return self._control, self._take

    def layout(self, script: Script) -> ParallelLayout:
        """How the training is shared."""
        return layout_of(script.model, self.world.size)

    def add_to(self, started: RunStarted, layout: ParallelLayout) -> RunStarted:
        """The first record, with what the ranks add to it."""
        samples, data_parallel = started.batch_size, layout.data_parallel
        return replace(
            started,
            refuses={"x-ray": NO_XRAY, **started.refuses},
            world_size=self.world.size,
            parallel="+".join(layout.kinds),
            data_parallel=data_parallel or None,
            global_batch_size=samples * data_parallel if samples and data_parallel else None,
        )

    @property
    def may_stop(self) -> bool:
        """Whether the loop may end: one of several ranks must not end alone."""
        return self._watched and not self._control.over

    @property
    def launcher_pid(self) -> int | None:
        """The process whose signals reach the whole script; None if this one's do."""
        is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() == self._parent
        return self._parent if is_torchrun else None  # once torchrun is gone, another has adopted us

    def start(self, optimizer: ObservedOptimizer) -> None:
        """Begin to meet the others; ``optimizer`` is the script's first."""
        self._optimizer = optimizer
        self._thread.start()

    def begin(self) -> None:
        """The first step ends."""
        self._start_time = time.monotonic()

    def leave(self, why: str, error: str = "") -> None:
        """Tell the others that this process takes no part any more, and the ``error`` of its script."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._control.end(f"rank {self.world.rank} {why}")
        if self._thread.ident is not None:
            self._thread.join(_CLOSING_SECONDS)
        self._control.leave()
        if self._watch is not None:
            self._watch.close()
        self._tell_end(why, error)

    # ---------------------------------------------------------------- the loop's thread

    def _take(self, record: Record) -> None:
        """Take a record of this rank's loop."""
        self._training_thread = threading.get_ident()
        self._measure(record)
        if self.world.leads:
            self._emit(record)

    def _measure(self, record: Record) -> None:
        """Add steps of the first optimizer, which all ranks make together."""
        if type(record) is not Steps or record.optimizer:
            return
        rows = self._control.rows
        due = NEVER if rows is None else rows.due
        if record.first_step < due < record.last_step:
            end = due - record.first_step + 1  # all ranks measure after the same step
            self._measure(record.part(0, end))
            record, due = record.part(end, record.count), NEVER
        self._meter.add(record)
        if rows is not None and record.last_step >= due:
            peak_bytes = getattr(self._optimizer.allocator.sample, "peak_allocated_bytes", None)
            numbers = self._meter.take_numbers(compute_seconds=None, peak_bytes=peak_bytes)
            # Ranks measure norms in steps of their own; after DDP's mean all have the same.
            rows.put(numbers._replace(grad_norm=None))

    # ---------------------------------------------------------------------- other threads

    def _meet_others(self) -> None:
        """Wait until all ranks are there, or nobody waits any more; then begin to train as one of them."""
        try:
            if (board := self._find_board()) is not None:
                self._ends = RankEnds(board, self.world)
                self._join(board)
        except Exception as error:  # noqa: BLE001 - the script goes on
            self._lose(error)

    def _find_board(self) -> Board | None:
        """None if there are no other ranks, or the script ends before."""
        place = self.world.rank, self.world.size
        while not self._stopping.wait(poll_seconds(self.world.size)):
            has_begun = time.monotonic() >= self._start_time  # first: the group may be made in between
            board, world = open_board(self._name), world_of_script()
            if board is None and not has_begun:
                continue
            if board is not None and world is not None and (world.rank, world.size) == place:
                return board
            if self.world.leads:
                self._emit(Note(time=time.time(), severity="info", text=_NO_GROUP))
            self._control.end(_NO_GROUP)
            break
        return None

    def _join(self, board: Board) -> None:
        device = self._optimizer.device
        place = place_of(self.world.rank, device, device_name(device), properties(device).uuid)
        sign_in = SignIn(board, self.world, place)
        self._watch = watch = HangWatch(
            board,
            self.world,
            RankEnds(board, self.world),
            self._progress,
            hang_seconds=HANG_SECONDS,
            thread_id=lambda: self._training_thread,
            emit=self._emit,
            end=self._end_with,
            gives_up=False,
        )
        while (verdict := self._verdict(sign_in)) is None:
            if self._stopping.wait(poll_seconds(self.world.size)):
                return
        if isinstance(verdict, str):
            if self.world.leads:
                loss = "precision, pause and stop need all ranks" if self._watched else "only rank 0 is shown"
                complain(f"{verdict}: {loss}")
                self._emit(Note(time=time.time(), severity="warning", text=f"{verdict}: {loss}"))
            self._control.end(verdict)
            return
        self._places = verdict
        if self.world.leads:
            self._emit(ranks_started(self.world, verdict))
        watch.start()
        self._control.connect(board, self._progress, self._lose)

    def _verdict(self, sign_in: SignIn) -> Sequence[Place] | str | None:
        waited = time.monotonic() - self._start_time
        verdict = sign_in.verdict() if waited > 0 else None
        if verdict is None and waited > SIGN_IN_SECONDS:
            sign_in.end()
            verdict = sign_in.verdict()
        return verdict

    def _lose(self, error: Exception) -> None:
        """A thread beside the loop cannot go on: the store's process has ended, or amptui has failed."""
        if isinstance(error, RuntimeError):
            self._control.end(LOST)
            return
        complain(one_line(f"the ranks are not shown: {type(error).__name__}: {error}"))
        self._control.end(f"rank {self.world.rank} {NOT_WATCHED}")
        self._tell_end(NOT_WATCHED)  # the others would wait for it after every request

    def _tell_end(self, why: str, error: str = "") -> None:
        if self._ends is None:
            return
        self._ends.tell("failed" if error else "left", error or why)
        if (ended := self._ends.first()) is not None:
            self._end_with(ended)
        if self.world.leads and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            time.sleep(2 * poll_seconds(self.world.size))  # the store ends with this process

    def _end_with(self, ended: PeerEndedError, _records: Sequence[Record] = ()) -> None:
        """Another rank was the first to go; rank 0 records it if it failed."""
        if self.world.leads and ended.how == "failed" and self._places and not self._has_told_loss:
            self._has_told_loss = True
            self._emit(ended.record(self._optimizer.step, [place.host for place in self._places]))
        self._control.end(ended.what)


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


def ranks_of_script() -> OneOfRanks | None:
    """The ranks that train the script; None for a process alone. Raises as :func:`world_of_script`."""
    world = world_of_script()
    return None if world is None else OneOfRanks(world)
