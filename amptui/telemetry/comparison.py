"""What each precision did in a run, and what AMP gave over the baseline once that can be said."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from amptui.records import AMP_PRECISIONS, PRECISIONS
from amptui.telemetry.energy import EnergySpent, EnergySum
from amptui.telemetry.explanations import explain
from amptui.telemetry.health import LITTLE_MEMORY
from amptui.telemetry.labels import precision_label
from amptui.telemetry.stretch import Stretch
from amptui.telemetry.view import Comparison, PrecisionStats

BASELINES = tuple(precision for precision in PRECISIONS if precision not in AMP_PRECISIONS)
"""The precisions that AMP is compared with."""

MIN_STEPS = 20
"""Counted steps that each side needs before a ratio is worth showing."""

MIN_PROVISIONAL_STEPS = 2
"""Measured steps that each side needs before a first impression is worth showing."""

WINDOW_STEPS = 2048
"""Counted steps, the newest ones, that a precision's median and rate are taken over."""


_WARM_UP_WINDOW = 50
"""Warm-up steps, the newest ones, that provisional figures are of."""


@dataclass(slots=True, eq=False)
class PrecisionLedger:
    """Adds up a run's steps by precision.

    A step is counted when it was timed and is no warm-up step. Warm-up steps are left out of everything but
    the skips once two steps are counted; until then they are all that is known.
    """

    _accounts: dict[str, "_Account"] = field(default_factory=dict)
    _breakdown: str = ""
    _comparison: Comparison | None = field(default=None, init=False)

    def add(self, stretch: Stretch) -> None:
        """Count a stretch of steps."""
        self._account(stretch.precision).add(stretch)

    def add_peak(self, precision: str, peak_allocated_bytes: int | None) -> None:
        """Note a peak that torch's allocator reached in ``precision``; None was not measured."""
        if peak_allocated_bytes is not None:
            self._account(precision).add_peak(peak_allocated_bytes)

    def add_utilization(self, precision: str, percent: float) -> None:
        """Note how busy the training GPU was while ``precision`` trained."""
        self._account(precision).add_utilization(percent)

    def add_energy(self, spent: EnergySpent) -> None:
        """Note what the training GPU took while a precision trained."""
        self._account(spent.precision).add_energy(spent)

    def explain_memory(self, breakdown: str) -> None:
        """Note where the memory is, in a sentence."""
        self._comparison, self._breakdown = None, breakdown

    def comparison(self) -> Comparison:
        """The precisions used so far, in the order of ``PRECISIONS``, and AMP's gain."""
        if self._comparison is None:
            rows = [account.stats() for account in self._accounts.values() if account.used]
            self._comparison = compare(rows, breakdown=self._breakdown)
        return self._comparison

    def _account(self, precision: str) -> "_Account":
        self._comparison = None
        return self._accounts.setdefault(precision, _Account(precision))


@dataclass(slots=True, eq=False)
class _Account:
    """One precision's sums."""

    _precision: str
    used: bool = False
    """Whether a step ran in it; a peak alone makes no row."""
    _steps: int = 0
    _warm_up_steps: int = 0
    _skipped: int = 0
    _peak_bytes: int | None = None
    _last_loss: float | None = None
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _samples: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _data_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _percents: float = 0.0
    _looks: int = 0
    _energy: EnergySum = field(default_factory=EnergySum)
    _warm_up: "WarmUpSteps" = field(default_factory=lambda: WarmUpSteps())  # noqa: PLW0108 - it stands below
    _stats: PrecisionStats | None = field(default=None, init=False)

    def add(self, stretch: Stretch) -> None:
        self._stats = None
        self.used = True
        self._skipped += stretch.skipped
        if stretch.settling:
            self._warm_up_steps += len(stretch)
            self._warm_up.add(stretch)
            return
        self._steps += len(stretch.timed_seconds)
        self._seconds.extend(stretch.timed_seconds)
        self._samples.extend(stretch.timed_samples)
        self._data_seconds.extend(stretch.timed_data_seconds)
        measured = (loss for loss in reversed(stretch.losses) if loss is not None)
        self._last_loss = next(measured, self._last_loss)

    def add_peak(self, peak_bytes: int) -> None:
        self._stats = None
        self._peak_bytes = peak_bytes if self._peak_bytes is None else max(peak_bytes, self._peak_bytes)

    def add_utilization(self, percent: float) -> None:
        self._stats = None
        self._percents += percent
        self._looks += 1

    def add_energy(self, spent: EnergySpent) -> None:
        self._stats = None
        self._energy.add(spent)

    def stats(self) -> PrecisionStats:
        if self._stats is None:
            stats = PrecisionStats(
                precision=self._precision,
                steps=self._steps,
                warm_up_steps=self._warm_up_steps,
                median_step_seconds=median(self._seconds),
                samples_per_second=samples_per_second(self._samples, self._seconds),
                peak_allocated_bytes=self._peak_bytes,
                last_loss=self._last_loss,
                skipped=self._skipped,
                data_fraction=data_fraction(self._data_seconds, self._seconds),
                utilization_percent=self._percents / self._looks if self._looks else None,
                joules_per_1000_samples=self._energy.joules_per_1000_samples(),
            )
            enough = self._steps >= MIN_PROVISIONAL_STEPS
            self._stats = stats if enough else self._warm_up.stand_in(stats)
        return self._stats


@dataclass(slots=True, eq=False)
class WarmUpSteps:
    """The newest warm-up steps of one precision, for as long as no other step tells of it.

    The first step of each stretch, which loads kernels and allocates, is left out once there is another.
    """

    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WARM_UP_WINDOW))
    _samples: deque[int] = field(default_factory=lambda: deque(maxlen=_WARM_UP_WINDOW))
    _first_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WARM_UP_WINDOW))
    """Of the first step of each stretch."""
    _first_samples: deque[int] = field(default_factory=lambda: deque(maxlen=_WARM_UP_WINDOW))
    _timed: int = 0
    _next_step: int | None = None
    """The step that would go on with the stretch that was added last."""
    _last_loss: float | None = None

    def add(self, stretch: Stretch) -> None:
        """Take in warm-up steps in their order."""
        first_seconds = stretch.records[0].step_seconds
        begins = stretch.first_step != self._next_step and stretch.timed_seconds[:1] == [first_seconds]
        self._next_step = stretch.first_step + len(stretch)
        self._timed += len(stretch.timed_seconds)
        self._first_seconds.extend(stretch.timed_seconds[:begins])
        self._first_samples.extend(stretch.timed_samples[:begins])
        self._seconds.extend(stretch.timed_seconds[begins:])
        self._samples.extend(stretch.timed_samples[begins:])
        measured = (loss for loss in reversed(stretch.losses) if loss is not None)
        self._last_loss = next(measured, self._last_loss)

    def stand_in(self, stats: PrecisionStats) -> PrecisionStats:
        """``stats``, which has next to no counted step, with what these steps tell."""
        if not self._timed:
            return replace(stats, last_loss=self._last_loss) if stats.last_loss is None else stats
        seconds, samples = self._seconds, self._samples
        if not seconds:
            seconds, samples = self._first_seconds, self._first_samples
        return replace(
            stats,
            median_step_seconds=median(seconds),
            samples_per_second=samples_per_second(samples, seconds),
            last_loss=self._last_loss if stats.last_loss is None else stats.last_loss,
            provisional_steps=self._timed,
        )


def median(values: deque[float]) -> float | None:
    """The median of ``values``; None of none.

    Asked for several times a frame: this partition takes a tenth of the time of ``np.median``.
    """
    if not values:
        return None
    below, above = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(np.fromiter(values, np.float64, len(values)), (below, above))
    return float(ordered[below]) / 2 + float(ordered[above]) / 2


def samples_per_second(samples: deque[int], seconds: deque[float]) -> float | None:
    """The rate over steps with these samples and durations; None over none."""
    return sum(samples) / sum(seconds) if seconds else None


def data_fraction(data_seconds: deque[float], seconds: deque[float]) -> float | None:
    """The part of ``seconds`` that was spent waiting for data; NaN in ``data_seconds`` was not measured.

    At most 1: the wait is timed on the host's clock and the step on the device's.
    """
    waited, whole = sum(data_seconds), sum(seconds)
    if not math.isfinite(waited):
        known = [(wait, s) for wait, s in zip(data_seconds, seconds, strict=True) if math.isfinite(wait)]
        waited, whole = sum(wait for wait, _ in known), sum(s for _, s in known)
    return min(1.0, waited / whole) if whole else None


def compare(rows: Sequence[PrecisionStats], *, breakdown: str = "") -> Comparison:
    """The rows in their order, and the gain of the AMP precision most used over the baseline most used.

    The baselines are ``fp32``, ``ieee`` and ``tf32``. The speed-up is the ratio of the rows' medians, and has
    no interval: the two were measured at different times, and what drifts between them is in it. There is
    one only when both sides have ``MIN_STEPS`` counted steps, otherwise a reason, and a provisional one from
    ``MIN_PROVISIONAL_STEPS`` on; only then is a gain that did not come explained. ``breakdown`` tells where
    the memory is, once that was measured.
    """
    rows = sorted(rows, key=lambda row: _place(row.precision))
    baseline = _most_used([row for row in rows if row.precision in BASELINES])
    amp = _most_used([row for row in rows if row.precision in AMP_PRECISIONS])
    reason = _reason(baseline, amp)
    speedup = provisional_speedup = memory_saving = None
    explanations: tuple[str, ...] = ()
    breakdown_missing = False
    if baseline and amp:
        ratio = _ratio(baseline.median_step_seconds, amp.median_step_seconds)
        memory_left = _ratio(amp.peak_allocated_bytes, baseline.peak_allocated_bytes)
        memory_saving = None if memory_left is None else 1 - memory_left
        if not reason:
            speedup = ratio
            explanations = explain(
                baseline, amp, speedup=speedup, memory_saving=memory_saving, breakdown=breakdown
            )
            breakdown_missing = not breakdown and memory_saving is not None and memory_saving < LITTLE_MEMORY
        elif min(baseline.measured_steps, amp.measured_steps) >= MIN_PROVISIONAL_STEPS:
            provisional_speedup = ratio
    return Comparison(
        rows=tuple(rows),
        baseline=baseline.precision if baseline else None,
        amp=amp.precision if amp else None,
        speedup=speedup,
        memory_saving=memory_saving,
        reason=reason,
        explanations=explanations,
        breakdown_missing=breakdown_missing,
        provisional_speedup=provisional_speedup,
    )


def ordered(comparison: Comparison) -> list[PrecisionStats]:
    """The baseline beside AMP first, then the other precisions that were used."""
    first = (comparison.baseline, comparison.amp)
    return sorted(
        comparison.rows,
        key=lambda stats: first.index(stats.precision) if stats.precision in first else len(first),
    )


def _place(precision: str) -> int:
    """A precision's place in the table; what is not known here comes last."""
    return PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS)


def _most_used(rows: Sequence[PrecisionStats]) -> PrecisionStats | None:
    return max(rows, key=lambda row: (row.steps, row.warm_up_steps), default=None)


def _reason(baseline: PrecisionStats | None, amp: PrecisionStats | None) -> str:
    """Why there is no speed-up to show yet; empty when there is one."""
    if baseline is None and amp is None:
        return "no steps yet"
    if amp is None:
        return "press p to compare with AMP"
    if baseline is None:
        return "press p to compare with FP32"
    sides = ((precision_label(baseline.precision), baseline.steps), ("AMP", amp.steps))
    few = [f"{name} {steps} of {MIN_STEPS}" for name, steps in sides if steps < MIN_STEPS]
    return f"not enough steps yet: {', '.join(few)}" if few else ""


def _ratio(dividend: float | None, divisor: float | None) -> float | None:
    return dividend / divisor if dividend is not None and divisor else None
