"""Finds the rank that others wait for, if the ranks' numbers show one."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from amptui.records.ranks import RanksSampled
from amptui.telemetry.finding import Finding

WINDOW_SAMPLES = 20
"""Findings and medians are over so many of the newest samples."""

MIN_SAMPLES = 12
"""With fewer nothing is found."""

MIN_SHARE = 0.05
"""A rank is slow if it costs at least this fraction of a step more than the others, or if its clock is lower
by this fraction. Less is not worth a search."""

SPREADS = 5.0
"""A slow rank is beyond the others by so many times their spread, and by as many standard errors. Medians of
20 samples of equal ranks differ by less, also at the most unlucky of 1,024."""

_SURE = 2.0
"""Standard errors by which a rank is beyond ``MIN_SHARE``, so that noise alone does not lift one there."""

EXCEPTIONS = 0.1
"""In at most this fraction of the samples the slow rank is the faster one, when others had a hiccup."""

_MAX_MISSING = 0.25
"""A rank without a number in more than this fraction of the samples is not judged."""

_STAYS = 0.5
"""A slow rank is called so until half of what made it so is left: a finding must not come and go."""

_SIGMA_PER_MAD = 1.4826
"""Standard deviation by median absolute deviation, of normal noise."""

_MEDIAN_ERROR = 1.2533
"""Standard error of a median by that of a mean, of normal noise."""

Floats = npt.NDArray[np.float64]

Column = Literal["data_seconds", "compute_seconds", "sm_clock_mhz"]

_STATES: Mapping[Column, tuple[str, ...]] = {
    "data_seconds": ("input",),
    "compute_seconds": ("compute", "clocks"),
    "sm_clock_mhz": ("clocks",),
}
"""What a rank that is slow in a column may be found to be."""


def find_straggler(window: Sequence[RanksSampled], before: Finding | None = None) -> Finding | None:
    """The rank that is slower than all others in the samples of ``window``; ``before`` is the last finding.

    ``input``: it waits longer for its batches. ``compute``: its own forward and backward take longer.
    ``clocks``: NVML says why its clock is held down, below the others'; its forward and backward take longer
    as well, where that was measured. All numbers are medians over the window.

    With x the rank's number minus the median of the others in the same sample: the median of x must be above
    ``MIN_SHARE`` of a step, by two standard errors, and above ``SPREADS`` times the spread among the others'
    medians and its own standard error; nearly all x must be above 0. Total step times do not count:
    collectives make them equal.
    """
    if len(window) < MIN_SAMPLES:
        return None
    steps = [
        seconds for sample in window for seconds in sample.step_seconds if seconds and 0 < seconds < np.inf
    ]
    columns: tuple[Column, ...] = ("data_seconds", "compute_seconds") if steps else ()
    least = MIN_SHARE * float(np.median(steps)) if steps else 0.0
    slow = [
        (column, outlier)
        for column in columns
        if (outlier := _outlier(window, column, least, before)) is not None
    ]
    if not slow and not any(value is not None for sample in window for value in sample.compute_seconds):
        # Local compute was not measured, as under FSDP2: nothing but clocks can tell.
        clocks = [clock for sample in window for clock in sample.sm_clock_mhz if clock]
        least = MIN_SHARE * float(np.median(clocks)) if clocks else 0.0
        clock_outlier = _outlier(window, "sm_clock_mhz", least, before)
        slow = [] if clock_outlier is None else [("sm_clock_mhz", clock_outlier)]
    if not slow:
        return None
    column, outlier = max(slow, key=lambda pair: pair[1].excess)
    held = None if column == "data_seconds" else _held_clock(window, outlier.rank)
    if held is None and column == "sm_clock_mhz":
        return None
    clock, others_clock, reasons = held or (None, None, ())
    timed = column != "sm_clock_mhz"
    return Finding(
        subject="rank speed",
        state=_STATES[column][0] if held is None else "clocks",
        grade="warning",
        ranks=(outlier.rank,),
        numbers={
            "count": 1.0,
            "seconds": outlier.value if timed else None,
            "others_seconds": outlier.others if timed else None,
            "clock": clock,
            "others_clock": others_clock,
        },
        names={"reasons": ", ".join(reasons)},
        step=window[-1].step,
    )


class _Outlier(NamedTuple):
    """A rank beyond all others in one column: medians over the window."""

    rank: int
    value: float
    others: float
    excess: float


def _held_clock(window: Sequence[RanksSampled], rank: int) -> tuple[float, float, list[str]] | None:
    """The rank's clock, the others', and why NVML held it down, below theirs, in half of the samples."""
    names = {reason: None for sample in window for reason in sample.throttled}
    reasons = [
        reason
        for reason in names
        if 2 * sum(rank in sample.throttled.get(reason, ()) for sample in window) >= len(window)
    ]
    clocks: list[float] = []
    others: list[float] = []
    for sample in window:
        for of_rank, clock in enumerate(sample.sm_clock_mhz):
            if clock is not None:
                (clocks if of_rank == rank else others).append(clock)
    if not reasons or not clocks or not others:
        return None
    clock_mhz, others_mhz = float(np.median(clocks)), float(np.median(others))
    return (clock_mhz, others_mhz, reasons) if clock_mhz < (1 - MIN_SHARE * _STAYS) * others_mhz else None


def _outlier(
    window: Sequence[RanksSampled], column: Column, least: float, before: Finding | None
) -> _Outlier | None:
    """The rank whose number is above those of all others by ``least``; the lowest of clocks."""
    sign = -1.0 if column == "sm_clock_mhz" else 1.0
    ranks, table = _table(window, column)
    if len(ranks) < 2:
        return None
    off_centre = table - np.median(table, axis=1, keepdims=True)
    typical = np.median(sign * off_centre, axis=0)
    worst = int(np.argmax(typical))
    beside, others = np.median(np.delete(table, worst, axis=1), axis=1), np.delete(typical, worst)
    # The deviation of few ranks cannot be estimated.
    spread = _sigma(others) if len(others) >= 5 else float(np.ptp(others)) / 2
    beyond = sign * (table[:, worst] - beside)
    sigmas = _SIGMA_PER_MAD * np.median(np.abs(off_centre - np.median(off_centre, axis=0)), axis=0)
    noise = max(_sigma(beyond), float(np.median(sigmas)))
    error = _MEDIAN_ERROR * noise / np.sqrt(len(beyond))
    excess = float(np.median(beyond))
    stays = before is not None and before.state in _STATES[column] and before.ranks == (ranks[worst],)
    eased = _STAYS if stays else 1.0
    exceptions = EXCEPTIONS * len(beyond) / eased
    if excess < eased * max(least + _SURE * error, SPREADS * spread, SPREADS * error):
        return None
    if np.count_nonzero(beyond <= 0) > exceptions:
        return None
    return _Outlier(ranks[worst], float(np.median(table[:, worst])), float(np.median(beside)), excess)


def _table(window: Sequence[RanksSampled], column: Column) -> tuple[list[int], Floats]:
    """The ranks with enough numbers, and those: a row for each sample, a rank's median where it has none."""
    columns = zip_longest(*[getattr(sample, column) for sample in window])
    table = np.array([*columns], np.float64).reshape(-1, len(window)).T
    table[~((table >= 0) & (table < np.inf))] = np.nan
    enough = np.isnan(table).mean(axis=0) <= _MAX_MISSING
    table = table[:, enough]
    return np.flatnonzero(enough).tolist(), np.where(np.isnan(table), np.nanmedian(table, axis=0), table)


def _sigma(values: Floats) -> float:
    """A standard deviation that outliers do not move."""
    return _SIGMA_PER_MAD * float(np.median(np.abs(values - np.median(values))))
