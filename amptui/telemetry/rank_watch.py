"""What is known of the ranks of a distributed run: a row for each, the slow one, those lost or differing."""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from amptui.records.ranks import (
    MAX_RANKS_SAMPLED,
    PERCENTILES,
    RankLost,
    RankPlace,
    RanksAwaited,
    RanksDisagree,
    RanksSampled,
    RanksStarted,
    percentiles_of,
)
from amptui.telemetry.stragglers import WINDOW_SAMPLES, RankVerdict, SlowRankNews, find_straggler

MAX_LOST = 64
"""Lost ranks kept at most."""

RankRecord = RanksStarted | RanksSampled | RanksDisagree | RanksAwaited | RankLost


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """One rank: seconds are medians over the newest samples, the rest is of the newest one."""

    rank: int
    place: RankPlace | None = None
    step_seconds: float | None = None
    data_seconds: float | None = None
    compute_seconds: float | None = None
    peak_allocated_bytes: int | None = None
    memory_used_bytes: int | None = None
    grad_norm: float | None = None
    skipped: int | None = None
    overflowed: int | None = None
    sm_clock_mhz: float | None = None
    throttled: tuple[str, ...] = ()
    """Why the rank's clock is held down, in NVML's words."""

    @property
    def own_seconds(self) -> float:
        """What is known of a step to be this rank's own: waiting for data, and local compute."""
        return (self.data_seconds or 0.0) + (self.compute_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What is wrong with the ranks of a run now, and how often it was started again."""

    straggler: RankVerdict | None = None
    disagreements: tuple[RanksDisagree, ...] = ()
    """What is not equal on all ranks now."""
    awaited: RanksAwaited | None = None
    """The ranks that make all others wait now, as last told."""
    lost: tuple[RankLost, ...] = ()
    restarts: int = 0
    """How often the launcher has started the ranks again."""
    max_restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView(RankFacts):
    """The ranks of a run, as of their newest sample."""

    world_size: int
    rows: tuple[RankSummary, ...] = ()
    """By rank; of a run of more than 64 ranks those that stand out."""
    step: int | None = None
    """Of the newest sample; None before the first."""
    time: float | None = None
    samples: int = 0
    """How many the medians are over."""
    percentiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """``PERCENTILES`` of ``step``, ``data`` and ``compute`` seconds over all ranks, in the newest sample;
    without those that were not measured."""


@dataclass(slots=True, eq=False)
class RankWatch:
    """Keeps the newest samples of the ranks, and judges them as they arrive."""

    _places: tuple[RankPlace, ...] = ()
    _window: deque[RanksSampled] = field(default_factory=lambda: deque(maxlen=WINDOW_SAMPLES))
    _facts: RankFacts = field(default_factory=RankFacts)
    _slow_causes: tuple[tuple[int, str], ...] = ()
    """Slow ranks and causes that are reported: once, until none has been slow for a whole window."""
    _quiet_samples: int = 0
    _view: RanksView | None = field(default=None, init=False)

    def restart(self) -> None:
        """Another process goes on: forget what the ranks measured, and what was wrong with them."""
        self._window.clear()
        self._facts = RankFacts(restarts=self._facts.restarts, max_restarts=self._facts.max_restarts)
        self._slow_causes, self._quiet_samples, self._view = (), 0, None

    def take(self, record: RankRecord) -> RanksDisagree | RanksAwaited | RankLost | SlowRankNews | None:
        """Add a record; return what the event list should tell of it.

        A sample that is none, of too many ranks or of one twice, is left out.
        """
        self._view = None
        if isinstance(record, RanksSampled):
            return self._sample(record)
        if isinstance(record, RanksDisagree):
            others = tuple(other for other in self._facts.disagreements if other.what != record.what)
            self._facts = replace(
                self._facts, disagreements=(*others, record) if record.count > 0 else others
            )
            return record
        if isinstance(record, RanksAwaited):  # the events tell the beginning and the end
            before = self._facts.awaited
            self._facts = replace(self._facts, awaited=None if record.over else record)
            is_same = before is not None and (before.ranks, before.phase) == (record.ranks, record.phase)
            return None if is_same and not record.over else record
        if isinstance(record, RankLost):
            self._facts = replace(self._facts, lost=(*self._facts.lost, record)[-MAX_LOST:])
            return record
        self.restart()
        self._places = record.ranks
        self._facts = RankFacts(restarts=record.restarts, max_restarts=record.max_restarts)
        return None

    def _sample(self, record: RanksSampled) -> SlowRankNews | None:
        if not 0 < len(set(record.ranks)) == len(record.ranks) <= MAX_RANKS_SAMPLED:
            return None
        before = self._facts.straggler
        if self._window and self._window[-1].world_size != record.world_size:
            self._window.clear()
            before = None
        self._window.append(record)
        slow = find_straggler(self._window, before)
        self._facts = replace(self._facts, straggler=slow)
        self._quiet_samples = self._quiet_samples + 1 if slow is None else 0
        if slow is None:
            if not self._slow_causes or self._quiet_samples < WINDOW_SAMPLES:
                return None
            self._slow_causes = ()
            return SlowRankNews(time=record.time, step=record.step, verdict=None)
        if (slow.rank, slow.cause) in self._slow_causes:
            return None
        self._slow_causes = (*self._slow_causes, (slow.rank, slow.cause))
        place = next((place for place in self._places if place.rank == slow.rank), None)
        return SlowRankNews(time=record.time, step=record.step, verdict=slow, place=place)

    def view(self, world_size: int) -> RanksView | None:
        """All of it; None for a single process."""
        if world_size <= 1 and not self._window:
            return None
        facts = {attribute.name: getattr(self._facts, attribute.name) for attribute in fields(RankFacts)}
        if not self._window:
            return RanksView(**facts, world_size=world_size)
        if self._view is None:
            newest = self._window[-1]
            rows = tuple(_rows(newest, self._window, self._places))
            self._view = RanksView(
                **facts,
                world_size=newest.world_size,
                rows=rows,
                step=newest.step,
                time=newest.time,
                samples=len(self._window),
                percentiles=_percentiles(newest, rows),
            )
        return self._view


def _rows(
    newest: RanksSampled, window: Iterable[RanksSampled], places: Sequence[RankPlace]
) -> Iterable[RankSummary]:
    by_rank = {place.rank: place for place in places}
    seconds = {name: _medians(window, name) for name in ("step_seconds", "data_seconds", "compute_seconds")}
    columns = {name: dict(zip(newest.ranks, getattr(newest, name), strict=False)) for name in _NEWEST}
    for rank in sorted(newest.ranks):
        numbers: dict[str, Any] = {name: column.get(rank) for name, column in (seconds | columns).items()}
        reasons = tuple(reason for reason, ranks in newest.throttled.items() if rank in ranks)
        yield RankSummary(rank=rank, place=by_rank.get(rank), throttled=reasons, **numbers)


_NEWEST = "peak_allocated_bytes", "memory_used_bytes", "grad_norm", "skipped", "overflowed", "sm_clock_mhz"


def _medians(window: Iterable[RanksSampled], name: str) -> dict[int, float]:
    """Of each rank, over the samples that have a sound number of it."""
    values_by_rank: dict[int, list[float]] = {}
    for sample in window:
        for rank, value in zip(sample.ranks, getattr(sample, name), strict=False):
            if _is_sound(value):
                values_by_rank.setdefault(rank, []).append(value)
    return {rank: statistics.median(values) for rank, values in values_by_rank.items()}


def _percentiles(newest: RanksSampled, rows: Sequence[RankSummary]) -> dict[str, tuple[float, ...]]:
    """As told; where the rows are all ranks, of the rows."""
    percentiles = {}
    for name in ("step", "data", "compute"):
        values = getattr(newest, f"{name}_percentiles")
        if not values and len(rows) == newest.world_size:
            values = percentiles_of([getattr(row, f"{name}_seconds") for row in rows])
        if len(values) == len(PERCENTILES) and all(map(_is_sound, values)):
            percentiles[name] = values
    return percentiles


def _is_sound(value: float | None) -> bool:
    return value is not None and 0 <= value < float("inf")
