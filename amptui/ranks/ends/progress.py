"""How far each rank has come, as it tells the others once a second, and who makes whom wait.

A rank's place counts the collectives that it has begun in each of its process groups, and its meetings. All
members of a group begin the same ones in the same order: whoever has begun fewer than another one, and in no
group more, while nobody comes further, makes the others wait.
"""

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from amptui.ranks.agreement.board import collectives_by_group
from amptui.records.ranks import RankPhase, RanksAwaited, RankStack, StacksTaken

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


def beat_seconds(ranks: int) -> float:
    """How often a rank tells its progress: all ``ranks`` together 1,000 times a second at most."""
    return max(1.0, ranks / 1000)


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

    def take(self, now: float, beats: Sequence[Heartbeat], *, interval_seconds: float | None = None) -> None:
        """Take all ranks' ``beats``, looked at every ``interval_seconds``: by default as they are told."""
        interval = self._interval_seconds if interval_seconds is None else interval_seconds
        if self._look_time is None:
            self._answer_times, self._move_times = [now] * len(beats), [now] * len(beats)
        elif (paused := now - self._look_time - interval) > _SILENT_BEATS * self._interval_seconds / 2:
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


def stack_of(thread_id: int | None) -> str:
    """What the thread of this process is executing, as a traceback shows it; empty if there is none."""
    frame = sys._current_frames().get(thread_id or 0)
    lines = [] if frame is None else traceback.format_stack(frame)
    return "".join(lines)[-_MAX_STACK_CHARACTERS:]


def stacks_taken(step: int, ranks: int, posts: Mapping[int, Sequence[Any]]) -> StacksTaken:
    """The record of what ranks have posted: the phase, the step and the stack of each that answered."""
    stacks = [
        RankStack(rank=rank, phase=phase, step=own_step, stack=stack)
        for rank, (phase, own_step, stack) in list(posts.items())[:_MAX_STACKS]
    ]
    silent = [rank for rank in range(ranks) if rank not in posts][:MAX_NAMED]
    return StacksTaken(time=time.time(), step=step, stacks=tuple(stacks), silent=tuple(silent))
