"""The interval of a difference in means: Student's quantiles, Welch's example by hand, and its coverage."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.student import t_quantile
from amptui.reports.compare.welch import ENOUGH_SEEDS, mean_difference


def test_examples_by_hand() -> None:
    # Variances of the means: 1/3 and 1/9; Welch's freedom 16/81 / (1/18 + 1/162), rounded down.
    interval = mean_difference([1, 2, 3], [1, 1.5, 2, 1.5, 1, 2, 1, 2, 1.5])
    assert interval is not None
    assert interval.difference == pytest.approx(-0.5)
    assert interval.freedom == 2
    # Variances of the means: 1/3 and 4/3; freedom 25/9 / (1/18 + 16/18).
    interval = mean_difference([1, 2, 3], [2, 4, 6])
    assert interval is not None
    assert interval.difference == pytest.approx(2)
    assert interval.freedom == 2
    assert interval.high - interval.difference == pytest.approx(4.303 * math.sqrt(5 / 3), abs=1e-3)
    assert interval.low + interval.high == pytest.approx(4)


@pytest.mark.parametrize(
    ("sizes", "freedom"), [((3, 3), 4), ((3, 4), 2), ((2, 9), 1), ((5, 9), 4), ((6, 9), 11), ((9, 6), 11)]
)
def test_degrees_of_freedom_are_welch_s_only_where_they_are_near_enough(
    sizes: tuple[int, int], freedom: int
) -> None:
    first, second = ([float(place % 2) for place in range(size)] for size in sizes)
    interval = mean_difference(first, second)
    assert interval is not None
    assert interval.freedom == pytest.approx(freedom, abs=0 if min(sizes) < ENOUGH_SEEDS else 1)


def test_without_a_spread_nothing_is_told() -> None:
    assert mean_difference([1.0], [2.0, 3.0]) is None
    assert mean_difference([1.0, 2.0], [2.0]) is None
    assert mean_difference([0.1, 0.1, 0.1], [0.3, 0.3, 0.3]) is None
    assert mean_difference([0.1, 0.1], [0.3, 0.4]) is not None


def differ(sizes: Sequence[int], deviations: Sequence[float], trials: int, shift: float = 0.0) -> float:
    """The fraction of comparisons that show a difference, of groups whose means are ``shift`` apart."""
    draws = np.random.default_rng(7)
    first, second = (
        draws.normal(mean, deviation, (trials, size)).tolist()
        for mean, deviation, size in zip((0.0, shift), deviations, sizes, strict=True)
    )
    intervals = [mean_difference(*pair) for pair in zip(first, second, strict=True)]
    return sum(one is not None and not one.low <= 0 <= one.high for one in intervals) / trials


@pytest.mark.parametrize("sizes", [(2, 10), (3, 3), (10, 3), (4, 10)])
@pytest.mark.parametrize("deviations", [(1.0, 1.0), (2.0, 1.0)])
def test_few_seeds_do_not_find_differences_where_there_are_none(
    sizes: tuple[int, int], deviations: tuple[float, float]
) -> None:
    # Four standard errors of a fraction of 1,000 are 2.8%. Welch's freedom would miss 10% of 2 and 10.
    assert differ(sizes, deviations, 1000) <= 0.05 + 0.028


values = st.lists(st.floats(-1e307, 1e307), min_size=2, max_size=8)


@given(first=values, second=values)
def test_no_finite_values_make_it_fail(first: list[float], second: list[float]) -> None:
    interval = mean_difference(first, second)
    if interval is not None:
        assert interval.low <= interval.difference <= interval.high
        assert interval.freedom > 0


# ---------------------------------- Student's quantiles (NIST/SEMATECH e-Handbook, table 1.3.6.7.2)
@pytest.mark.parametrize(
    ("confidence", "freedom", "t"),
    [
        *((0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 4, 2.776), (0.95, 10, 2.228)),
        *((0.95, 29, 2.045), (0.95, 120, 1.980), (0.9, 10, 1.812), (0.98, 3, 4.541), (0.99, 7, 3.499)),
    ],
)
def test_quantiles_are_those_of_the_table(confidence: float, freedom: int, t: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(t, abs=6e-4)
