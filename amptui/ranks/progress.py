"""How far each rank has come, as it tells the others once a second, and who makes whom wait.

A rank's place counts the collectives that it has begun in each of its process groups, and its meetings. All
members of a group begin the same ones in the same order: whoever has begun fewer than another one, and in no
group more, while nobody comes further, makes the others wait.

A thread in each rank sees that, also while a collective blocks the trainer, over a connection of its own to a
store that should outlive the ranks. Each looks at everybody's progress as often as it is told. Who finds that
nothing has moved for ``--hang-timeout`` posts that, and the first post counts for all; each rank then posts
the stack of its trainer, and rank 0 tells of all if it answers.
"""

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from amptui.base import units
from amptui.ranks.agreement.board import Board, collectives_by_group
from amptui.ranks.failure import PeerEndedError, RankEnds
from amptui.ranks.world import World
from amptui.records.ranks import PHASE_WORDS, RankPhase, RanksAwaited, RankStack, StacksTaken
from amptui.records.run import Record

AWAITED_SECONDS = 10.0
"""How long nobody may come further before it is told who makes the others wait."""

BUSY_SECONDS = 1200.0
"""How long a rank may compile, or write at the end, if ``--hang-timeout`` is shorter."""

_SILENT_BEATS = 5
"""After the time of so many a process is said not to answer, if nobody comes further meanwhile."""

_TOLD_AGAIN = 1.25
"""By what factor a wait has grown when it is told again."""

MAX_NAMED = 8
"""Ranks that a record names of those that make others wait."""

_MAX_STACKS, _MAX_STACK_CHARACTERS = 64, 8000

_BUSY: tuple[RankPhase, ...] = ("compiling", "saving")

GRACE_SECONDS = 6.0
"""How long the trainer has to notice by itself that another rank has ended: a collective of gloo's fails at
once. It is less than what a process is waited for that others have left."""

_STACKS_SECONDS = 4.0
"""How long, beside the time of a beat, rank 0 waits for stacks."""

_TELLING_SECONDS = 10.0
"""How long the others wait for it to have told."""

_POLL_SECONDS, _CLOSING_SECONDS = 0.1, 2.0

_HANG, _TOLD = "hang", "hang/told"


def beat_seconds(ranks: int) -> float:
    """How often a rank tells its progress and reads that of all: all ``ranks`` at most 64 times a second."""
    return max(1.0, ranks / 64)


class Heartbeat(NamedTuple):
    """What a rank tells of itself."""

    number: int = 0
    """Of the beat: one that stays the same comes from a process that does not run."""
    place: Mapping[str, int] = {}
    """By the names of process groups; meetings are by the empty name."""
    batches: int = 0
    """Whose loss it has begun to compute."""
    step: int = 0
    phase: RankPhase = "preparing"
    waits: bool = False
    """Whether it waits for other ranks and knows it. Inside a backward pass it does not."""
    left: bool = False
    """Whether it is done with the others."""
    idle: bool = False
    """Whether it waits in a pause, for no rank."""


class RankProgress:
    """What one rank is doing: plain attributes, which the trainer sets and another thread reads."""

    def __init__(self, activity: Callable[[], tuple[RankPhase, int]]) -> None:
        self.activity = activity
        """What the trainer is doing, and its step."""
        self.place = 0
        """Meetings and exchanges so far."""
        self.batches = 0
        self.waits = False
        self.left = False
        self.idle = False

    def beat(self, number: int) -> Heartbeat:
        """It as of now."""
        phase, step = self.activity()
        place = collectives_by_group()
        if phase != "script":
            place[""] = self.place
        elif not place:  # where nobody counts collectives, steps have to do
            place[""] = step
        return Heartbeat(number, place, self.batches, step, phase, self.waits, self.left, self.idle)

    @contextmanager
    def waiting(self, *, idle: bool = False) -> Iterator[None]:
        """While entered, this rank waits for others, and makes none wait; ``idle``: for no rank."""
        self.waits, self.idle = True, idle
        try:
            yield
        finally:
            self.waits = self.idle = False


class Awaited(NamedTuple):
    """The ranks that all others wait for, what the first of them is doing, and since when nobody moves."""

    ranks: tuple[int, ...]
    phase: RankPhase
    step: int
    seconds: float


class ProgressTable:
    """The newest beat of each rank, and when it changed by this process's clock.

    ``hang_seconds`` is ``--hang-timeout``: 0 never gives a rank up.
    """

    def __init__(self, ranks: int, hang_seconds: float) -> None:
        self._hang_seconds = hang_seconds or math.inf
        self._interval_seconds = beat_seconds(ranks)
        self.beats: list[Heartbeat] = [Heartbeat()] * ranks
        self._answer_times = [0.0] * ranks
        self._move_times = [0.0] * ranks
        self._look_time: float | None = None

    def take(self, now: float, beats: Sequence[Heartbeat]) -> None:
        """Take all ranks' ``beats``, looked at as often as they are told."""
        interval = self._interval_seconds
        if self._look_time is None:
            self._answer_times, self._move_times = [now] * len(beats), [now] * len(beats)
        elif (paused := now - self._look_time - interval) > _SILENT_BEATS * interval / 2:
            # This process did not run. The others may not have either: nobody is blamed for that time.
            self._answer_times = [seconds + paused for seconds in self._answer_times]
            self._move_times = [seconds + paused for seconds in self._move_times]
        for rank, (beat, before) in enumerate(zip(beats, self.beats, strict=True)):
            if beat.number != before.number:
                self._answer_times[rank] = now
            if beat[1:] != before[1:]:
                self._move_times[rank] = now
        self.beats, self._look_time = list(beats), now
        if all(self.beats[rank].idle for rank in self._running()):
            self._move_times = [now] * len(beats)  # in a pause nobody makes anybody wait

    def awaited(self, now: float, *, after: float | None = None) -> Awaited | None:
        """Who makes the others wait, once nobody has come further for so long; None if none stands out."""
        seconds, after = self.still_seconds(now), after or AWAITED_SECONDS
        if seconds < after:
            return None
        running = self._running()
        silent_seconds = max(now - self._answer_times[rank] for rank in running)
        if silent_seconds >= min(_SILENT_BEATS, after / 2) * self._interval_seconds:
            # On a busy machine a healthy process may be late as well, but not by as much.
            limit = now - 0.75 * silent_seconds
            silent = tuple([rank for rank in running if self._answer_times[rank] <= limit])
            return Awaited(silent, "silent", self.beats[silent[0]].step, silent_seconds)
        behind = self._behind(running)
        if not behind or len(behind) == len(running):
            return None
        first = self.beats[behind[0]]
        return Awaited(tuple(behind), first.phase, first.step, seconds)

    def hung(self, now: float) -> Awaited | None:
        """Who is given up; without ranks if nobody moves and nobody can be told to be the cause."""
        if self.still_seconds(now) < self._hang_seconds:
            return None
        awaited = self.awaited(now, after=self._hang_seconds)
        if awaited is not None and (awaited.phase == "silent" or not self._may_go_on(now, awaited.ranks)):
            return awaited
        running = self._running()
        if awaited is not None or self._may_go_on(now, running):
            return None
        if any(not self.beats[rank].waits and self.beats[rank].phase != "training" for rank in running):
            return None  # each is busy by itself: none waits for another
        first = self.beats[running[0]]
        return Awaited((), first.phase, first.step, self.still_seconds(now))

    def _may_go_on(self, now: float, suspects: Sequence[int]) -> bool:
        """Whether one of them does what may take longer than anything else."""
        phases = {self.beats[rank].phase for rank in suspects if not self.beats[rank].waits}
        busy = any(phase in _BUSY for phase in phases) and self.still_seconds(now) < BUSY_SECONDS
        return busy or "preparing" in phases  # loading may take hours

    def still_seconds(self, now: float) -> float:
        """How long no rank has come further; 0 once fewer than two train together."""
        running = self._running()
        return now - max(self._move_times[rank] for rank in running) if len(running) > 1 else 0.0

    def _running(self) -> list[int]:
        return [rank for rank, beat in enumerate(self.beats) if not beat.left]

    def _behind(self, running: Sequence[int]) -> list[int]:
        """Those behind another one and ahead of none; of ranks at one place those that do not wait."""
        lowest, highest = dict[str, int](), dict[str, int]()
        for rank in running:
            for group, count in self.beats[rank].place.items():
                lowest[group] = min(count, lowest.get(group, count))
                highest[group] = max(count, highest.get(group, count))
        last = [
            rank
            for rank in running
            if all(count == lowest[group] for group, count in self.beats[rank].place.items())
        ]
        if lowest != highest:
            behind = [
                rank
                for rank in last
                if any(count < highest[group] for group, count in self.beats[rank].place.items())
            ]
            last = behind or last
        return [rank for rank in last if not self.beats[rank].waits] or last


class AwaitedNews:
    """Makes records of who makes the others wait: when it begins, as it goes on, and when it is over."""

    def __init__(self) -> None:
        self._record: RanksAwaited | None = None
        """The last one."""
        self._seconds = 0.0

    def judge(self, awaited: Awaited | None, still_seconds: float) -> RanksAwaited | None:
        """The next record, if there is one; nobody has come further for ``still_seconds``."""
        last = self._record
        if awaited is None:
            if last is None or still_seconds >= AWAITED_SECONDS:
                return None
            self._record = None
            return replace(last, time=time.time(), seconds=self._seconds, over=True)
        self._seconds = awaited.seconds
        record = RanksAwaited(
            time=time.time(),
            step=awaited.step,
            ranks=awaited.ranks[:MAX_NAMED],
            count=len(awaited.ranks),
            phase=awaited.phase,
            seconds=awaited.seconds,
        )
        same = last is not None and (last.ranks, last.phase) == (record.ranks, record.phase)
        if last is not None and same and awaited.seconds < last.seconds * _TOLD_AGAIN:
            return None
        self._record = record
        return record


def hang_error(hang: Awaited) -> PeerEndedError:
    """Why the ranks end that wait for those of ``hang``."""
    words, seconds = PHASE_WORDS[hang.phase], units.count(round(hang.seconds))
    if not hang.ranks:
        text = f"no rank came further for {seconds} s, and none is behind: {words}, step {hang.step:,}"
        return PeerEndedError(-1, "waited", "", text)
    detail = f"it made the others wait for {seconds} s, {words}, step {hang.step:,}"
    if hang.phase == "silent":
        detail = f"{words} for {seconds} s"
    others = f" and {len(hang.ranks) - 1:,} others" if len(hang.ranks) > 1 else ""
    return PeerEndedError(hang.ranks[0], "hung", detail, f"rank {hang.ranks[0]}{others} hung: {detail}")


class HangWatch:
    """Watches the progress of all ranks for one of them.

    ``thread_id`` is that of the thread that trains, whose stack is posted. ``emit`` gets rank 0's records.
    ``end`` is called once, in the watching thread, when another rank has ended, or hung: with that rank, and,
    at rank 0, with the records of a hang. Without ``gives_up`` no rank is ever ended
    for others: a hang is only told, once, and goes on.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        board: Board,
        world: World,
        ends: RankEnds,
        progress: RankProgress,
        *,
        hang_seconds: float,
        thread_id: Callable[[], int | None],
        emit: Callable[[Record], object],
        end: Callable[[PeerEndedError, Sequence[Record]], object],
        gives_up: bool = True,
    ) -> None:
        self._board, self._ends = board, ends
        self._world, self._progress = world, progress
        self._table, self._news = ProgressTable(world.size, hang_seconds), AwaitedNews()
        self._thread_id, self._emit, self._end = thread_id, emit, end
        self._gives_up = gives_up
        self._beats = self._told_step = 0
        """The step is this rank's when somebody was last told to make the others wait."""
        self._has_told_stack = False
        self._beat_interval = beat_seconds(world.size)
        self._lost_since: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="amptui-hang-watch", daemon=True)
        self.post_beat()

    def start(self) -> None:
        """Begin to watch, once all ranks have one of these."""
        self._thread.start()

    def close(self) -> None:
        """Watch no more; a last beat tells the others whether this rank is done with them."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_SECONDS)
        _, step = self._progress.activity()
        if step > self._told_step and (record := self._news.judge(None, 0.0)) is not None:
            self._emit(record)

    def _work(self) -> None:
        with suppress(RuntimeError):  # the store is gone with the launcher: the trainer notices by itself
            while not self._stopping.wait(self._beat_interval):
                if self._tick():
                    return
            self.post_beat()

    def _tick(self) -> bool:
        """Tell and look; whether the run has ended."""
        self.post_beat()
        if self._progress.left:
            return False
        if not self._has_told_stack and (hang := self._board.look(_HANG)):
            self._has_told_stack = True
            ranks, *rest = hang
            self._obey(Awaited(tuple(ranks), *rest))
            return self._gives_up
        ended, now = self._ends.first(), time.monotonic()
        if ended is None or ended.how == "stopped":
            self._lost_since = None
        else:
            self._lost_since = self._lost_since or now
            if not self._gives_up or now - self._lost_since >= GRACE_SECONDS:  # the trainer has not noticed
                self._end(ended, ())
                return True
        self._look()
        return False

    def post_beat(self) -> None:
        """Tell the others how far this rank is."""
        self._beats += 1
        self._board.post(f"beat/{self._world.rank}", self._progress.beat(self._beats))

    def _look(self) -> None:
        beats = self._board.read([f"beat/{rank}" for rank in range(self._world.size)])
        now = time.monotonic()
        self._table.take(now, [Heartbeat(*beat) for beat in beats])
        if self._world.leads:
            still_seconds = self._table.still_seconds(now)
            if (record := self._news.judge(self._table.awaited(now), still_seconds)) is not None:
                self._told_step = self._progress.activity()[1]
                self._emit(record)
        hung = self._table.hung(now)
        if hung is not None and self._lost_since is None:
            self._board.decide(_HANG, hung)

    # ------------------------------------------------------------------------------ a hang

    def _obey(self, hang: Awaited) -> None:
        """Tell what this rank executes; once all have, end it."""
        phase, step = self._progress.activity()
        frame = sys._current_frames().get(self._thread_id() or 0)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))[-_MAX_STACK_CHARACTERS:]
        self._board.post(f"stack/{self._world.rank}", [phase, step, stack])
        silent = hang.ranks if hang.phase == "silent" else ()
        places = self._ends.places
        records: list[Record] = []
        if self._world.leads:
            answering = [rank for rank in range(self._world.size) if rank not in silent]
            self._wait_for([f"stack/{rank}" for rank in answering], _STACKS_SECONDS)
            stacks = {rank: self._board.look(f"stack/{rank}") for rank in answering}
            posts = {rank: post for rank, post in stacks.items() if post is not None}
            taken = tuple(
                RankStack(rank=rank, phase=phase, step=own_step, stack=stack)
                for rank, (phase, own_step, stack) in list(posts.items())[:_MAX_STACKS]
            )
            absent = tuple([rank for rank in range(self._world.size) if rank not in posts][:MAX_NAMED])
            records.append(StacksTaken(time=time.time(), step=hang.step, stacks=taken, silent=absent))
        elif self._gives_up and 0 not in silent:
            self._wait_for([_TOLD], _TELLING_SECONDS)
        if not self._gives_up:
            for record in records:
                self._emit(record)
            return
        for rank in silent:  # its launcher would wait for it: a process that is stopped receives no SIGTERM
            places[rank].kill()
        if records:
            self._board.post(_TOLD, True)
        self._end(hang_error(hang), records)

    def _wait_for(self, names: list[str], seconds: float) -> None:
        """Until all were posted, or for so long beside the time of a beat."""
        limit = time.monotonic() + self._beat_interval + seconds
        while any(self._board.look(name) is None for name in names) and time.monotonic() < limit:
            time.sleep(_POLL_SECONDS)
