"""The interval of a difference in means: Student's quantiles, Welch's example by hand, and its coverage."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.estimate import t_975
from amptui.reports.compare.welch import ENOUGH_SEEDS, mean_difference, t_quantile


@pytest.mark.parametrize("freedom", range(1, 31))
def test_quantiles_are_those_of_the_table(freedom: int) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(t_975(freedom), abs=6e-4)


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"), [(0.99, 2, 9.925), (0.99, 7, 3.499), (0.9, 10, 1.812), (0.98, 3, 4.541)]
)
def test_quantiles_for_other_confidences(confidence: float, freedom: int, t: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(t, abs=6e-4)


def test_examples_by_hand() -> None:
    # Variances of the means: 1/3 and 1/9; Welch's freedom 16/81 / (1/18 + 1/162), rounded down.
    found = mean_difference([1, 2, 3], [1, 1.5, 2, 1.5, 1, 2, 1, 2, 1.5])
    assert found is not None
    assert found.difference == pytest.approx(-0.5)
    assert found.freedom == 2
    # Variances of the means: 1/3 and 4/3; freedom 25/9 / (1/18 + 16/18).
    found = mean_difference([1, 2, 3], [2, 4, 6])
    assert found is not None
    assert found.difference == pytest.approx(2)
    assert found.freedom == 2
    assert found.high - found.difference == pytest.approx(4.303 * math.sqrt(5 / 3), abs=1e-3)
    assert found.low + found.high == pytest.approx(4)


@pytest.mark.parametrize(
    ("sizes", "freedom"), [((3, 3), 4), ((3, 4), 2), ((2, 9), 1), ((5, 9), 4), ((6, 9), 11), ((9, 6), 11)]
)
def test_degrees_of_freedom_are_welch_s_only_where_they_are_near_enough(
    sizes: tuple[int, int], freedom: int
) -> None:
    first, second = ([float(place % 2) for place in range(size)] for size in sizes)
    found = mean_difference(first, second)
    assert found is not None
    assert found.freedom == pytest.approx(freedom, abs=0 if min(sizes) < ENOUGH_SEEDS else 1)


def test_one_value_has_no_spread() -> None:
    assert mean_difference([1.0], [2.0, 3.0]) is None
    assert mean_difference([1.0, 2.0], [2.0]) is None


def test_equal_values_have_no_spread() -> None:
    assert mean_difference([0.1, 0.1, 0.1], [0.3, 0.3, 0.3]) is None
    assert mean_difference([0.1, 0.1], [0.3, 0.4]) is not None


def test_more_confidence_is_wider() -> None:
    narrow = mean_difference([1, 2, 4], [2, 3, 5])
    wide = mean_difference([1, 2, 4], [2, 3, 5], confidence=0.99)
    assert narrow is not None
    assert wide is not None
    assert wide.low < narrow.low < narrow.high < wide.high


def missed(sizes: tuple[int, int], deviations: tuple[float, float], trials: int) -> float:
    """The fraction of 95% intervals that do not hold the true difference."""
    draws = np.random.default_rng(7)
    groups = [
        draws.normal(0, deviation, (trials, size)) for size, deviation in zip(sizes, deviations, strict=True)
    ]
    missed = 0
    for first, second in zip(*(group.tolist() for group in groups), strict=True):
        found = mean_difference(first, second)
        assert found is not None
        missed += not found.low <= 0 <= found.high
    return missed / trials


@pytest.mark.parametrize("sizes", [(2, 10), (3, 3), (10, 3), (4, 10)])
@pytest.mark.parametrize("deviations", [(1.0, 1.0), (2.0, 1.0)])
def test_few_seeds_do_not_find_differences_where_there_are_none(
    sizes: tuple[int, int], deviations: tuple[float, float]
) -> None:
    # Four standard errors of a fraction of 1,000 are 2.8%. Welch's freedom would miss 10% of 2 and 10.
    assert missed(sizes, deviations, 1000) <= 0.05 + 0.028


@pytest.mark.slow
@pytest.mark.parametrize("fewer", range(2, 11))
def test_the_level_is_kept_for_all_sizes_and_variances(fewer: int) -> None:
    for more in range(fewer, 11):
        for deviations in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (5.0, 1.0), (1.0, 5.0)):
            # 5.3% by theory at the worst; four standard errors of a fraction of 4,000 are 1.4%.
            assert missed((fewer, more), deviations, 4000) <= 0.053 + 0.014, (fewer, more, deviations)


values = st.lists(st.floats(-1e308, 1e308), min_size=2, max_size=8)


@given(first=values, second=values)
def test_no_finite_values_make_it_fail(first: list[float], second: list[float]) -> None:
    found = mean_difference(first, second)
    if found is not None:
        assert found.low <= found.difference <= found.high
        assert found.freedom > 0


@given(
    first=st.lists(st.floats(-100, 100), min_size=2, max_size=6),
    second=st.lists(st.floats(-100, 100), min_size=2, max_size=6),
)
def test_exchanged_groups_have_the_opposite_difference(first: list[float], second: list[float]) -> None:
    one, other = mean_difference(first, second), mean_difference(second, first)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.difference == pytest.approx(-other.difference)
        assert one.difference == pytest.approx(fmean(second) - fmean(first), abs=1e-9)
        assert one.low == pytest.approx(-other.high)
