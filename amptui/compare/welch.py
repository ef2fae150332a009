"""Welch's t interval: how far apart the means of two groups are, measured against the spread within them.

Two groups of runs are two independent samples whose variances need not be equal. Their difference in means
over its standard error follows Student's t nearly, with the degrees of freedom of Welch (Biometrika 34, 1947)
and Satterthwaite (Biometrics Bulletin 2, 1946); see NIST/SEMATECH e-Handbook, 7.3.1. The method takes final
losses of seeds to be roughly normal, which a few seeds cannot prove. Where both groups have the same seeds,
and a good seed of one is a good one of the other, the interval is wider than it had to be, not narrower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

MIN_SEEDS = 2
"""Values that each group needs: one has no spread."""

_BISECTIONS = 200
"""Halvings after which no float lies between the two ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The second group's mean minus the first's, with its interval."""

    difference: float
    low: float
    high: float
    confidence: float
    """The fraction of such intervals that hold the true difference."""
    freedom: float
    """Degrees of freedom by Welch and Satterthwaite; the quantile is that of the next lower whole number."""


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
    freedom = variance**2 / sum(squared**2 / (count - 1) for squared, count in parts)
    reach = t_quantile(confidence, max(1, math.floor(freedom + 1e-9))) * math.sqrt(variance) * unit
    difference = (fmean(value / unit for value in second) - fmean(value / unit for value in first)) * unit
    return Interval(
        difference=difference,
        low=difference - reach,
        high=difference + reach,
        confidence=confidence,
        freedom=freedom,
    )


def _error_of_mean(values: Sequence[float]) -> tuple[float, int]:
    """The squared standard error of the mean, and how many values there are."""
    mean = fmean(values)
    # A spread that is only rounding is none.
    apart = [0.0 if math.isclose(value, mean, rel_tol=1e-12) else value - mean for value in values]
    return sum(each**2 for each in apart) / (len(values) - 1) / len(values), len(values)


def t_quantile(confidence: float, freedom: int) -> float:
    """The t that Student's distribution keeps within, to both sides, with a probability of ``confidence``."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that ``|T| < t`` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for number in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (number - 1) / number
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
