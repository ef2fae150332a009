"""Statistics and use of the GPU of each precision, and a low precision's gain once there are enough steps."""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from amptui.records.findings import ModulesTraced, PrecisionsCompared, XRayTaken
from amptui.records.run import (
    AMP_PRECISIONS,
    LOW_PRECISIONS,
    PRECISIONS,
    PauseChanged,
    PhaseChanged,
    PrecisionChanged,
    RunResumed,
    RunStarted,
    precision_place,
    reference_precision,
)
from amptui.records.samples import DeviceSample
from amptui.records.steps import Steps
from amptui.telemetry.finding import Finding, Grade, never_measured
from amptui.telemetry.view import Comparison, PrecisionStats, training_gpu

BASELINES = tuple(name for name in PRECISIONS if name not in LOW_PRECISIONS)
"""The precisions that AMP is compared with."""

MIN_STEPS = 20
"""Counted steps that each side needs before a ratio is shown."""

MIN_PROVISIONAL_STEPS = 3
"""Measured steps that each side needs before a provisional ratio is shown: of so many the median is usual."""

WINDOW_STEPS = 2048
"""A precision's median and rate are over its newest counted steps, at most so many."""

DISAGREEMENT = 1.2
"""If the ratio of the medians and that of the means differ by more than this factor, other work disturbed the
steps, and neither is a speed-up."""

LITTLE_SPEED = 0.05
"""A speed-up below this fraction is no gain: the times of two stretches in the same precision may differ by
as much."""

WIDE = 1.2
"""If the ends of an interval around 1 differ by more than this factor, which is faster remains open."""

INPUT_BOUND_SHARE = 0.3
"""A loop that waits for data for more than this fraction of its steps, in both precisions, is input-bound: a
faster precision can only speed up the rest."""

IDLE_GPU_PERCENT = 70.0
"""Below this utilization the GPU waits for the host. NVML reports the time in which any kernel ran."""

INTERRUPTIONS = (
    RunStarted,
    RunResumed,
    PhaseChanged,
    PrecisionChanged,
    PauseChanged,
    ModulesTraced,
    XRayTaken,
)
"""Records around which the GPU does something other than steps of one precision."""

MIN_ENERGY_SECONDS = 10.0
"""A precision's energy is shown once its samples cover so many seconds.

The counter moves every 20 to 100 ms (arXiv:2312.02741, and PETSc's manual page of
``PetscLogGpuEnergyMeter``), so each end of a row of samples is off by as much: 1% of ten seconds.
"""


_WARM_UP_WINDOW = 50
"""Provisional figures are over the newest warm-up steps, at most so many."""


@dataclass(slots=True, eq=False)
class PrecisionLedger:
    """Adds up a run's steps by precision.

    A step counts if it was timed and applied and is not a warm-up step. Once three steps are counted, warm-up
    steps count only for the skips; until then they provide the provisional figures.
    """

    _accounts: dict[str, "_Account"] = field(default_factory=dict)
    _comparisons: dict[str, Comparison] = field(default_factory=dict, init=False)
    """Since the last change, by the precision in question."""

    def add(self, steps: Steps) -> None:
        """Count steps."""
        self.changing(steps.precision).add(steps)

    def add_peak(self, precision: str, peak_allocated_bytes: int | None) -> None:
        """Add a peak of torch's allocator in ``precision``; None if it was not measured."""
        if peak_allocated_bytes is not None:
            account = self.changing(precision)
            account.peak_bytes = max(peak_allocated_bytes, account.peak_bytes or 0)

    def comparison(self, precision: str = "") -> Comparison:
        """The precisions used so far, in the order of ``PRECISION_ORDER``, and a gain by :func:`compare`."""
        if precision not in self._comparisons:
            rows = [account.stats() for account in self._accounts.values() if account.used]
            self._comparisons[precision] = compare(rows, precision)
        return self._comparisons[precision]

    @property
    def skipped(self) -> int:
        """Steps that the scaler dropped, in all precisions."""
        return sum(account.skipped for account in self._accounts.values())

    def changing(self, precision: str) -> "_Account":
        """The sums of ``precision``, to add to."""
        self._comparisons.clear()
        account = self._accounts.setdefault(precision, _Account(precision))
        account.cached_stats = None
        return account


@dataclass(slots=True, eq=False)
class _TimedSteps:
    """The newest steps of one precision that were timed and applied, of its warm-up or after it."""

    seconds: deque[float]
    samples: deque[int]
    count: int = 0
    last_loss: float | None = None

    @classmethod
    def newest(cls, most: int) -> "_TimedSteps":
        """So many at most."""
        return cls(deque(maxlen=most), deque(maxlen=most))

    def add(self, steps: Steps) -> int:
        """Add steps, in order; return how many were timed."""
        seconds = steps.timed("step_seconds")
        self.count += len(seconds)
        self.seconds.extend(seconds)
        self.samples.extend(steps.timed("samples"))
        measured = (loss for loss in reversed(steps.loss) if loss is not None)
        self.last_loss = next(measured, self.last_loss)
        return len(seconds)


@dataclass(slots=True, eq=False)
class _Account:
    """One precision's sums."""

    _precision: str
    used: bool = False
    """Whether a step ran in it; a peak alone makes no row."""
    _warm_up_steps: int = 0
    _untimed_steps: int = 0
    skipped: int = 0
    peak_bytes: int | None = None
    _counted: _TimedSteps = field(default_factory=partial(_TimedSteps.newest, WINDOW_STEPS))
    _data_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    percents: float = 0.0
    """Of the GPU's utilization, in this many samples."""
    percent_count: int = 0
    joules: float = 0.0
    """The GPU's energy, in so many seconds and for so many training samples."""
    energy_seconds: float = 0.0
    energy_samples: int = 0
    _warm_up: _TimedSteps = field(default_factory=partial(_TimedSteps.newest, _WARM_UP_WINDOW))
    cached_stats: PrecisionStats | None = field(default=None, init=False)

    def add(self, steps: Steps) -> None:
        self.used = True
        self.skipped += sum(steps.skipped)
        if steps.settling:
            self._warm_up_steps += steps.count
            self._warm_up.add(steps)
            return
        self._untimed_steps += steps.count - self._counted.add(steps)
        waits = steps.timed("data_seconds")[-WINDOW_STEPS:]
        self._data_seconds.extend(math.nan if wait is None else wait for wait in waits)

    def stats(self) -> PrecisionStats:
        if self.cached_stats is not None:
            return self.cached_stats
        counted, warm_up = self._counted, self._warm_up
        stats = PrecisionStats(
            precision=self._precision,
            steps=counted.count,
            warm_up_steps=self._warm_up_steps,
            untimed_steps=self._untimed_steps,
            median_step_seconds=median(counted.seconds),
            mean_step_seconds=mean(counted.seconds),
            samples_per_second=samples_per_second(counted.samples, counted.seconds),
            peak_allocated_bytes=self.peak_bytes,
            last_loss=counted.last_loss,
            skipped=self.skipped,
            data_fraction=data_fraction(self._data_seconds, counted.seconds),
            utilization_percent=self.percents / self.percent_count if self.percent_count else None,
            joules_per_1000_samples=None
            if self.energy_seconds < MIN_ENERGY_SECONDS
            else 1000 * self.joules / self.energy_samples,
        )
        if counted.count < MIN_PROVISIONAL_STEPS:
            if stats.last_loss is None:
                stats = replace(stats, last_loss=warm_up.last_loss)
            # By their median: the first step of each warm-up loads kernels and allocates.
            if seconds := median(warm_up.seconds):
                samples = mean(warm_up.samples)
                stats = replace(
                    stats,
                    median_step_seconds=seconds,
                    mean_step_seconds=seconds,
                    samples_per_second=samples / seconds if samples else None,
                    provisional_steps=warm_up.count,
                )
        self.cached_stats = stats
        return stats


@dataclass(slots=True, eq=False)
class GpuWatch:
    """Attributes NVML's utilization and energy to the precision that trained meanwhile.

    A sample counts if it and the one before it, a second earlier, found the same precision training, and
    nothing interrupted that between them, however briefly. Energy that finds no new training samples waits
    for a sample that does: it fell into a long step, unless an interruption such as an X-ray comes first.
    """

    _before: tuple[str, float | None, float, int] | None = None
    """Of the last sample: precision, joules, time, and the training samples until then."""

    def interrupt(self) -> None:
        """Count nothing between the last sample and the next."""
        self._before = None

    def add(
        self,
        sample: DeviceSample,
        run: RunStarted | None,
        ledger: PrecisionLedger,
        *,
        training: bool,
        samples_trained: int,
    ) -> None:
        """Add what the GPU did since the last sample to ``ledger``, as far as that is known.

        ``training``: whether steps run. ``samples_trained`` is the total over all precisions; steps are
        reported a little late, which cancels out between two samples. A counter that is missing or went
        back, because the driver was reloaded, tells no energy.
        """
        before, self._before = self._before, None
        gpu = training_gpu(run, sample)
        if not training or sample.allocator is None or gpu is None:
            return
        precision = sample.allocator.precision  # read at the same moment
        self._before = (precision, gpu.energy_joules, sample.time, samples_trained)
        if before is None or before[0] != precision:
            return
        account = ledger.changing(precision)
        if gpu.utilization_percent is not None:  # by NVML a mean over up to a second
            account.percents += gpu.utilization_percent
            account.percent_count += 1
        if gpu.energy_joules is None or before[1] is None:
            return
        joules, seconds = gpu.energy_joules - before[1], sample.time - before[2]
        samples = samples_trained - before[3]
        if samples == 0 and joules >= 0.0:
            self._before = before  # in a step
        elif samples > 0 and 0.0 <= joules < math.inf and 0.0 <= seconds < math.inf:
            # Of the whole GPU, with its idle power and other programs.
            account.joules += joules
            account.energy_seconds += seconds
            account.energy_samples += samples


def median(values: Collection[float]) -> float | None:
    """The median of ``values``; None if there are none.

    Called several times a frame: this partition takes a tenth of the time of ``np.median``.
    """
    if not values:
        return None
    below, above = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(np.fromiter(values, np.float64, len(values)), (below, above))
    return float(ordered[below]) / 2 + float(ordered[above]) / 2


def mean(values: deque[float] | deque[int]) -> float | None:
    """The mean of ``values``; None if there are none."""
    return sum(values) / len(values) if values else None


def samples_per_second(samples: deque[int], seconds: deque[float]) -> float | None:
    """The rate over steps with these samples and durations; None without steps, or with unknown samples."""
    return (sum(samples) / sum(seconds) or None) if seconds else None


def data_fraction(data_seconds: deque[float], seconds: deque[float]) -> float | None:
    """The fraction of ``seconds`` spent waiting for data; NaN in ``data_seconds`` means not measured.

    At most 1: the wait is timed on the host's clock and the step on the device's.
    """
    waited, whole = sum(data_seconds), sum(seconds)
    if not math.isfinite(waited):
        pairs = [(wait, s) for wait, s in zip(data_seconds, seconds, strict=True) if math.isfinite(wait)]
        waited, whole = sum(wait for wait, _ in pairs), sum(s for _, s in pairs)
    return min(1.0, waited / whole) if whole else None


def references(precision: str) -> tuple[str, ...]:
    """What ``precision`` may be judged against: any precision without autocast for AMP, ``bf16`` for FP8."""
    reference = reference_precision(precision)
    return BASELINES if reference in BASELINES else (reference,)


def low_precision_now(current: str | None, compared: PrecisionsCompared | None) -> str:
    """The AMP precision or FP8 that runs, or that an A/B test alternates with another; "" if neither does.

    During a test it stays the same: the first that is not the baseline.
    """
    names: tuple[str, ...] = (current or "",)
    if compared is not None and not compared.over:
        names = tuple(row.precision for row in compared.rows if row.precision != compared.baseline)
    return next((name for name in names if name in LOW_PRECISIONS), "")


def compare(rows: Sequence[PrecisionStats], precision: str = "") -> Comparison:
    """The rows in order, and the gain of ``precision`` over the most used of its :func:`references`.

    Without ``precision`` that of the most used AMP precision. The speed-up is the ratio of the mean step
    times, as samples a second are. It has no interval, because the two were measured at different times and
    it includes any drift between them. There is none if that of the medians differs by ``DISAGREEMENT``.
    Both sides need ``MIN_STEPS`` counted steps; before that something is missing, and from
    ``MIN_PROVISIONAL_STEPS`` on there is a provisional speed-up.
    """
    rows = sorted(rows, key=lambda row: precision_place(row.precision))
    names: tuple[str, ...] = (precision,) if precision else AMP_PRECISIONS
    baseline = _most_used([row for row in rows if row.precision in references(names[0])])
    low = _most_used([row for row in rows if row.precision in names])
    comparison = Comparison(
        rows=tuple(rows),
        baseline=baseline.precision if baseline else None,
        low=low.precision if low else precision or None,
    )
    if baseline is None or low is None:
        return replace(comparison, missing="low" if baseline else "baseline" if low else "steps")
    speedup = _ratio(baseline.mean_step_seconds, low.mean_step_seconds)
    by_median = _ratio(baseline.median_step_seconds, low.median_step_seconds)
    memory_left = _ratio(low.peak_allocated_bytes, baseline.peak_allocated_bytes)
    comparison = replace(comparison, memory_saving=None if memory_left is None else 1 - memory_left)
    is_disturbed = bool(speedup and by_median and not 1 / DISAGREEMENT <= speedup / by_median <= DISAGREEMENT)
    if min(baseline.steps, low.steps) < MIN_STEPS:
        enough = min(baseline.measured_steps, low.measured_steps) >= MIN_PROVISIONAL_STEPS
        provisional = speedup if enough and not is_disturbed else None
        return replace(comparison, missing="more steps", provisional_speedup=provisional)
    if is_disturbed:
        return replace(comparison, missing="steady steps")
    return replace(comparison, speedup=speedup)


def judge_speed(ratio: float, low: float | None, high: float | None, *, than: str = "fp32") -> Finding:
    """Whether it is ``faster``, ``slower`` or the ``same``; ``open``: a wide interval contains 1.

    Without an interval a small difference may be chance, and it speaks neither for nor against.
    """
    state = "same"
    if low and high:
        state = "faster" if low > 1 else "slower" if high < 1 else "open" if high / low > WIDE else "same"
    elif ratio and max(ratio, 1 / ratio) >= 1 + LITTLE_SPEED:
        state = "faster" if ratio > 1 else "slower"
    grades: dict[str, Grade] = {"faster": "good", "slower": "warning"} if low and high else {}
    return Finding(
        subject="speed",
        state=state,
        grade=grades.get(state, "neutral"),
        numbers={"ratio": ratio, "low": low if high else None, "high": high if low else None},
        names={"than": than},
        measured_by="comparison",
    )


def judge_held_back(comparison: Comparison) -> Finding:
    """The limit, as far as the loop's waiting and the GPU's utilization explain that ``low`` gained no speed.

    For runs whose steps were not timed part by part: ``input``, ``launch``, or not measured, as if it gained.
    """
    speedup, sides = comparison.speedup, (comparison.baseline, comparison.low)
    rows = [row for name in sides for row in comparison.rows if row.precision == name]
    if speedup is None or speedup >= 1 + LITTLE_SPEED or len(rows) < 2:
        return never_measured("limit")
    busy = [row.utilization_percent for row in rows if row.utilization_percent is not None]
    waits = [row.data_fraction for row in rows if row.data_fraction is not None]
    is_slower, state = speedup <= 1 - LITTLE_SPEED, ""
    # A busy GPU has work queued: the host may wait for data meanwhile at no cost.
    if all(percent < IDLE_GPU_PERCENT for percent in busy):
        if len(waits) == 2 and min(waits) > INPUT_BOUND_SHARE:
            state = "" if is_slower else "input"  # waiting makes no precision slower
        elif len(busy) == 2:
            state = "launch"
    if not state:
        return never_measured("limit")
    numbers = {"busy": busy[-1] / 100} if state == "launch" else {"step_share": waits[1]}
    names = {"casts": "AMP" if comparison.low in AMP_PRECISIONS else "FP8"} if is_slower else {}
    about = comparison.low or ""
    return Finding(subject="limit", state=state, grade="neutral", about=about, numbers=numbers, names=names)


def ordered(comparison: Comparison) -> list[PrecisionStats]:
    """The two sides of the comparison first, then the other precisions that were used."""
    first = (comparison.baseline, comparison.low)
    return sorted(
        comparison.rows,
        key=lambda stats: first.index(stats.precision) if stats.precision in first else len(first),
    )


def _most_used(rows: Sequence[PrecisionStats]) -> PrecisionStats | None:
    return max(rows, key=lambda row: (row.steps, row.warm_up_steps), default=None)


def _ratio(dividend: float | None, divisor: float | None) -> float | None:
    return dividend / divisor if dividend is not None and divisor else None
