"""What is known of the ranks of a distributed run: a row for each, the slow one, those lost or differing."""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from amptui.records.ranks import (
    COLUMNS,
    PHASE_WORDS,
    RankLost,
    RankPlace,
    RanksAwaited,
    RanksDisagree,
    RanksSampled,
    RanksStarted,
    StacksTaken,
)
from amptui.records.run import RunStarted
from amptui.telemetry.finding import Finding, FindingReported, Grade
from amptui.telemetry.stragglers import MIN_SAMPLES, WINDOW_SAMPLES, find_straggler

MAX_TROUBLES = 64
"""Lost ranks, differences and waits that are kept at most."""

RankRecord = RanksStarted | RanksSampled | RanksDisagree | RanksAwaited | StacksTaken | RankLost


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
class RanksView:
    """The ranks of a run, as of their newest sample."""

    world_size: int
    rows: tuple[RankSummary, ...] = ()
    """By rank."""
    step: int | None = None
    """Of the newest sample; None before the first."""
    samples: int = 0
    """How many the medians are over."""
    findings: tuple[Finding, ...] = ()
    """Lost ranks, replicas that differ, ranks that all others wait for, and last the speed of the ranks."""
    restarts: int = 0
    """How often the launcher has started the ranks again."""
    max_restarts: int = 0

    @property
    def trouble(self) -> Finding | None:
        """The worst that is wrong with them."""
        return next((finding for finding in self.findings if finding.is_trouble), None)

    @property
    def slow(self) -> Finding | None:
        """The rank that is slower than the others."""
        of_speed = (finding for finding in self.findings if finding.subject == "rank speed")
        return next((finding for finding in of_speed if finding.is_trouble), None)

    @property
    def slowest_first(self) -> list[RankSummary]:
        """The rows, the slow rank's first, then by what is known to be a rank's own."""
        slow = () if self.slow is None else self.slow.ranks
        return sorted(self.rows, key=lambda row: (row.rank not in slow, -row.own_seconds, row.rank))


@dataclass(slots=True, eq=False)
class RankWatch:
    """Keeps the newest samples of the ranks, and judges them as they arrive."""

    _places: tuple[RankPlace, ...] = ()
    _window: deque[RanksSampled] = field(default_factory=lambda: deque(maxlen=WINDOW_SAMPLES))
    _troubles: dict[str, Finding] = field(default_factory=dict)
    """What is wrong with the ranks now but for their speed, by what a later record of the same replaces."""
    _slow: Finding | None = None
    _restarts: int = 0
    _max_restarts: int = 0
    _slow_causes: tuple[tuple[int, str], ...] = ()
    """Slow ranks and causes that are reported: once, until none has been slow for a whole window."""
    _quiet_samples: int = 0
    _view: RanksView | None = field(default=None, init=False)

    def restart(self) -> None:
        """Another process goes on: forget what the ranks measured, and what was wrong with them."""
        self._window.clear()
        self._troubles, self._slow = {}, None
        self._slow_causes, self._quiet_samples, self._view = (), 0, None

    def fold(self, record: RankRecord) -> FindingReported | None:
        """Add a record; return what the event list should tell of it."""
        self._view = None
        if isinstance(record, RanksSampled):
            return self._sample(record)
        if isinstance(record, RanksStarted):
            self.restart()
            self._places = record.ranks
            self._restarts, self._max_restarts = record.restarts, record.max_restarts
            return None
        finding = judge_ranks(record)
        if isinstance(record, StacksTaken):
            return FindingReported(time=record.time, finding=finding, stacks=record.stacks)
        key = record.what if isinstance(record, RanksDisagree) else finding.subject
        if isinstance(record, RankLost):
            key = f"{record.rank} {record.cause}"
        before = self._troubles.pop(key, None)
        if finding.is_trouble:
            self._troubles = dict([*self._troubles.items(), (key, finding)][-MAX_TROUBLES:])
        # Of a wait the events tell the beginning and the end.
        if isinstance(record, RanksAwaited) and finding.is_trouble and before is not None:
            goes_on = (before.ranks, before.names) == (finding.ranks, finding.names)
            return None if goes_on else FindingReported(time=record.time, finding=finding)
        return FindingReported(time=record.time, finding=finding)

    def _sample(self, record: RanksSampled) -> FindingReported | None:
        if self._window and self._window[-1].world_size != record.world_size:
            self._window.clear()
            self._slow = None
        self._window.append(record)
        slow = find_straggler(self._window, self._slow)
        if slow is None:
            self._slow, self._quiet_samples = None, self._quiet_samples + 1
            if not self._slow_causes or self._quiet_samples < WINDOW_SAMPLES:
                return None
            self._slow_causes = ()
            return FindingReported(time=record.time, finding=_equal("equal again", record.step))
        (rank,), self._quiet_samples = slow.ranks, 0
        place = next((place.name for place in self._places if place.rank == rank), "")
        self._slow = slow = replace(slow, names={**slow.names, "place": place})
        if (rank, slow.state) in self._slow_causes:
            return None
        self._slow_causes = (*self._slow_causes, (rank, slow.state))
        return FindingReported(time=record.time, finding=slow)

    def view(self, run: RunStarted | None) -> RanksView | None:
        """All of it; None for a single process."""
        world_size = 1 if run is None else run.world_size
        if world_size <= 1 and not self._window:
            return None
        if self._view is None:
            speed = self._slow
            if speed is None and len(self._window) >= MIN_SAMPLES:
                parallel = "" if run is None else run.parallel
                state = "equal" if parallel in ("", "ddp") else "equal where measured"
                speed = _equal(state, self._window[-1].step, parallel=parallel)
            troubles = sorted(self._troubles.values(), key=lambda finding: _ORDER.index(finding.subject))
            view = RanksView(
                world_size=world_size,
                findings=(*troubles, *([] if speed is None else [speed])),
                restarts=self._restarts,
                max_restarts=self._max_restarts,
            )
            if self._window:
                newest = self._window[-1]
                view = replace(
                    view,
                    world_size=newest.world_size,
                    rows=tuple(_rows(newest, self._window, self._places)),
                    step=newest.step,
                    samples=len(self._window),
                )
            self._view = view
        return self._view


_ORDER = ("lost rank", "replicas", "progress")


def _equal(state: str, step: int, **names: str) -> Finding:
    """That no rank is slower than the others, as far as that was measured."""
    return Finding(subject="rank speed", state=state, grade="good", names=names, step=step)


def judge_ranks(record: RankLost | RanksDisagree | RanksAwaited | StacksTaken) -> Finding:
    """What a record says of the ranks.

    ``lost rank``: its cause. ``replicas``: what differs between them, ``missed Inf`` of ranks that applied a
    step that most skipped; or they ``agree`` again. ``progress``: ranks are ``awaited``, or were, until it
    was ``over``; or there is none, and ``stacks`` tell where each is.
    """
    grade: Grade
    subject, state, grade = "progress", "stacks", "neutral"
    ranks: tuple[int, ...]
    numbers: dict[str, float | None] = {}
    names: dict[str, str] = {}
    if isinstance(record, RankLost):
        subject, state, grade, ranks = "lost rank", record.cause, "error", (record.rank,)
        names = {"host": record.host, "detail": " ".join(record.detail.split())}
    elif isinstance(record, RanksDisagree):
        subject, state, grade = "replicas", record.what, "error" if record.count > 0 else "good"
        ranks = tuple(other.rank for other in record.others)
        values = {other.value for other in record.others}
        value = values.pop() if len(values) == 1 else None
        numbers = {"count": float(record.count), "usual": record.most, "value": value}
        names = {"what": record.what}
        if record.count <= 0:
            state = "agree"
        elif record.what == "found_inf":
            state = "missed Inf" if record.most else "found Inf"
    elif isinstance(record, RanksAwaited):
        state, grade = ("over", "good") if record.over else ("awaited", "warning")
        ranks, names = record.ranks, {"doing": PHASE_WORDS[record.phase]}
        numbers = {"count": float(record.count), "seconds": record.seconds}
    else:
        ranks, numbers = record.silent, {"stacks": float(len(record.stacks))}
    numbers.setdefault("count", float(len(ranks)))
    return Finding(
        subject=subject,
        state=state,
        grade=grade,
        ranks=ranks,
        numbers=numbers,
        names=names,
        step=record.step,
    )


def _rows(
    newest: RanksSampled, window: Iterable[RanksSampled], places: Sequence[RankPlace]
) -> Iterable[RankSummary]:
    by_rank = {place.rank: place for place in places}
    numbers: dict[str, Mapping[int, Any]] = {
        name: _medians(window, name) if name in _SECONDS else dict(enumerate(getattr(newest, name)))
        for name in COLUMNS
    }
    for rank in range(max(len(getattr(newest, name)) for name in COLUMNS)):
        reasons = tuple(reason for reason, ranks in newest.throttled.items() if rank in ranks)
        own = {name: column.get(rank) for name, column in numbers.items()}
        yield RankSummary(rank=rank, place=by_rank.get(rank), throttled=reasons, **own)


_SECONDS = "step_seconds", "data_seconds", "compute_seconds"


def _medians(window: Iterable[RanksSampled], name: str) -> dict[int, float]:
    """Of each rank, over the samples that have a sound number of it."""
    values_by_rank: dict[int, list[float]] = {}
    for sample in window:
        for rank, value in enumerate(getattr(sample, name)):
            if value is not None and 0 <= value < float("inf"):
                values_by_rank.setdefault(rank, []).append(value)
    return {rank: statistics.median(values) for rank, values in values_by_rank.items()}
