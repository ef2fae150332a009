"""What difference a comparison of two groups could have shown, given as many seeds and their spread."""

import math
from collections.abc import Sequence
from statistics import variance

import numpy as np

from amptui.reports.compare.welch import MIN_SEEDS, freedom_of, root, t_quantile, welch_freedom
from amptui.telemetry.view import Floats

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
    wanted = (np.arange(_CLASSES) + 0.5) / _CLASSES
    chosen: list[float] = limits[order][np.searchsorted(passed, wanted * passed[-1])].tolist()
    return chosen


def _estimates(squared: float, freedom: int) -> tuple[Floats, Floats]:
    """Estimates of a squared standard error, and how likely each is: chi-squared with ``freedom``."""
    ratios = (np.arange(_GRID) + 0.5) / _GRID * (1 + _DEVIATIONS / math.sqrt(2 * freedom))
    weights = np.exp((freedom - 1) * np.log(ratios) - freedom * (ratios**2 - 1) / 2)
    return squared * ratios**2, weights


def _below(value: float) -> float:
    """The probability that a standard normal number is lower."""
    return math.erfc(-value / math.sqrt(2)) / 2
