"""The interval of a difference in means: Student's quantiles, Welch's example by hand, and its coverage."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.compare.welch import mean_difference, t_quantile
from amptui.estimate import t_975


@pytest.mark.parametrize("freedom", range(1, 31))
def test_quantiles_are_those_of_the_table(freedom: int) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(t_975(freedom), abs=6e-4)


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"), [(0.99, 2, 9.925), (0.99, 7, 3.499), (0.9, 10, 1.812), (0.98, 3, 4.541)]
)
def test_quantiles_for_other_confidences(confidence: float, freedom: int, t: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(t, abs=6e-4)


def test_an_example_by_hand() -> None:
    # Variances of the means: 1/3 and 5/3; freedom 4 / (1/18 + 25/27).
    found = mean_difference([1, 2, 3], [2, 4, 6, 8])
    assert found is not None
    assert found.difference == pytest.approx(3)
    assert found.freedom == pytest.approx(4 / (1 / 18 + 25 / 27))
    assert found.high - found.difference == pytest.approx(2.776 * math.sqrt(2), abs=1e-3)
    assert found.low + found.high == pytest.approx(6)


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


def test_the_true_difference_is_inside_as_often_as_promised() -> None:
    draws = np.random.default_rng(7)
    trials = 4000
    inside = 0
    for _ in range(trials):
        found = mean_difference(draws.normal(5, 1, 3).tolist(), draws.normal(6, 3, 3).tolist())
        assert found is not None
        inside += found.low <= 1 <= found.high
    # Freedom is rounded down, so it is more often than 95%; three standard errors are 1%.
    assert 0.94 <= inside / trials <= 0.995


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
