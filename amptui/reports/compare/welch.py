"""Welch's t interval: how far apart the means of two groups are, against the spread of each, and its power.

Two groups of runs are two independent samples whose variances need not be equal. Their difference in means
over its standard error follows Student's t nearly, with the degrees of freedom of Welch (Biometrika 34, 1947)
and Satterthwaite (Biometrics Bulletin 2, 1946); see NIST/SEMATECH e-Handbook, 7.3.1. With few values in the
smaller of two unequal groups that is not near enough: of 2 and 10 values, 10% of such intervals miss the true
difference instead of 5%. There the degrees of freedom are one less than the smaller group has values (P. L.
Hsu, Statistical Research Memoirs 2, 1938): then at most 5% miss it, whatever the two variances are (M. R.
Mickey and M. B. Brown, Annals of Mathematical Statistics 37, 1966). A permutation test would be no way out:
below 4 and 4 values it cannot reach 5%, and unequal groups with unequal variances make it miss more.

The method takes final losses of seeds to be roughly normal, which a few seeds cannot prove. Of losses as
skewed as an exponential distribution, with unequal spreads, up to 12% of the intervals miss. Where both
groups have the same seeds, and a good seed of one is a good one of the other, the interval is wider than it
had to be, not narrower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import TypeVar

import numpy as np

from amptui.base.student import root, t_quantile
from amptui.telemetry.view import Floats

Number = TypeVar("Number", float, Floats)

MIN_SEEDS = 2
"""Values that each group needs: one has no spread."""

ENOUGH_SEEDS = 6
"""From so many values in the smaller of two unequal groups on, Welch's degrees of freedom keep the 5%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The second group's mean minus the first's, with its interval."""

    difference: float
    low: float
    high: float
    confidence: float
    """The fraction of such intervals that hold the true difference."""
    freedom: int
    """Degrees of freedom of the quantile."""


def mean_difference(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95
) -> Interval | None:
    """The interval for the mean of ``second`` minus that of ``first``, both of finite values.

    None if a group has fewer than ``MIN_SEEDS`` values, or if neither group has any spread.
    """
    if min(len(first), len(second)) < MIN_SEEDS:
        return None
    unit = max(map(abs, (*first, *second))) or 1.0  # squares of the largest floats would overflow
    parts = [_error_of_mean([value / unit for value in values]) for values in (first, second)]
    variance = sum(squared for squared, _ in parts)
    if not variance:
        return None
    (first_squared, first_count), (second_squared, second_count) = parts
    welch = welch_freedom(first_squared, second_squared, first_count, second_count)
    freedom = freedom_of(first_count, second_count, math.floor(welch + 1e-9))
    reach = t_quantile(confidence, freedom) * math.sqrt(variance) * unit
    difference = (fmean(value / unit for value in second) - fmean(value / unit for value in first)) * unit
    return Interval(
        difference=difference,
        low=difference - reach,
        high=difference + reach,
        confidence=confidence,
        freedom=freedom,
    )


def welch_freedom(first: Number, second: Number, first_count: int, second_count: int) -> Number:
    """Welch's degrees of freedom for two squared standard errors of means of so many values."""
    return (first + second) ** 2 / (first**2 / (first_count - 1) + second**2 / (second_count - 1))


def freedom_of(first_count: int, second_count: int, welch: int) -> int:
    """The degrees of freedom of the interval, given Welch's, rounded down."""
    fewer, more = sorted((first_count, second_count))
    return max(1, welch) if fewer == more or fewer >= ENOUGH_SEEDS else fewer - 1


def _error_of_mean(values: Sequence[float]) -> tuple[float, int]:
    """The squared standard error of the mean, and how many values there are."""
    mean = fmean(values)
    # A spread that is only rounding is none.
    apart = [0.0 if math.isclose(value, mean, rel_tol=1e-12) else value - mean for value in values]
    return sum(deviation**2 for deviation in apart) / (len(values) - 1) / len(values), len(values)


# ------------------------------------------------------------------------------ what would show

POWER = 0.8
"""How often a detectable difference is shown."""

_GRID = 100
"""Points at which each group's estimated standard deviation is looked at."""

_CLASSES = 200
"""Classes of all pairs of them."""

_DEVIATIONS = 6.0
"""Standard deviations that the points reach."""


def detectable_difference(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95
) -> float | None:
    """The difference in means that two such groups show with a probability of ``POWER``.

    It takes both groups to be normal with the standard deviations that they have here, so it is as uncertain
    as these are. None if a group has fewer than ``MIN_SEEDS`` values, or if neither group has any spread.
    """
    if min(len(first), len(second)) < MIN_SEEDS:
        return None
    unit = max(map(abs, (*first, *second))) or 1.0
    squared = [variance([value / unit for value in values]) / len(values) for values in (first, second)]
    if not sum(squared):
        return None
    limits = _limits(squared, (len(first), len(second)), confidence)

    def power(apart: float) -> float:
        return sum(_below(apart - limit) + _below(-apart - limit) for limit in limits) / len(limits)

    return root(power, POWER) * math.sqrt(sum(squared)) * unit


def _limits(squared: Sequence[float], counts: tuple[int, int], confidence: float) -> list[float]:
    """From where on a difference is shown, in true standard errors, in as many equally likely cases.

    The reach of the interval varies from comparison to comparison, with the variances that were estimated.
    """
    (first, first_weights), (second, second_weights) = (
        _estimates(square, count - 1) for square, count in zip(squared, counts, strict=True)
    )
    first, second = first[:, np.newaxis], second[np.newaxis, :]
    freedoms = np.floor(welch_freedom(first, second, *counts) + 1e-9).astype(np.int64)
    quantiles = np.array([t_quantile(confidence, freedom_of(*counts, welch)) for welch in range(sum(counts))])
    limits = (quantiles[freedoms] * np.sqrt((first + second) / sum(squared))).ravel()
    order = np.argsort(limits)
    passed = np.cumsum(np.outer(first_weights, second_weights).ravel()[order])
    levels = (np.arange(_CLASSES) + 0.5) / _CLASSES
    quantile_limits: list[float] = limits[order][np.searchsorted(passed, levels * passed[-1])].tolist()
    return quantile_limits


def _estimates(squared: float, freedom: int) -> tuple[Floats, Floats]:
    """Estimates of a squared standard error, and how likely each is: chi-squared with ``freedom``."""
    ratios = (np.arange(_GRID) + 0.5) / _GRID * (1 + _DEVIATIONS / math.sqrt(2 * freedom))
    weights = np.exp((freedom - 1) * np.log(ratios) - freedom * (ratios**2 - 1) / 2)
    return squared * ratios**2, weights


def _below(value: float) -> float:
    """The probability that a standard normal number is lower."""
    return math.erfc(-value / math.sqrt(2)) / 2
