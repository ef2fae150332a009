"""The y axis: round limits that rarely change."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amptui.tui.renderables.limits import Axis, YLimits

finite = st.floats(-1e300, 1e300) | st.floats(-100, 100) | st.sampled_from([0.0, 5e-324, -1e-310, 1.0])


def is_round(value: float) -> bool:
    digits = f"{abs(value):.6e}".split("e")[0].rstrip("0.")
    return digits in ("1", "2", "5")


def limits_of(limits: YLimits, low: float, high: float, *, log: bool) -> tuple[float, float]:
    axis = limits.axis(low, high, log=log)
    return axis.low, axis.high


@given(finite, finite, st.booleans())
def test_limits_contain_the_values_and_have_a_height(one: float, other: float, log: bool) -> None:
    low, high = min(one, other), max(one, other)
    bottom, top = limits_of(YLimits(), low, high, log=log)
    assert math.isfinite(bottom)
    assert bottom < top < math.inf
    hair = 1e-9 * (top - bottom)
    if not log:
        assert bottom - hair <= low
        assert high <= top + hair
    elif low > 1e-290:
        assert 0 < bottom <= low * (1 + 1e-8)
        assert high <= top * (1 + 1e-8)


@given(st.floats(1e-200, 1e200), st.floats(1, 1e9))
def test_log_limits_are_round_and_at_most_a_factor_of_5_away(low: float, times: float) -> None:
    bottom, top = limits_of(YLimits(), low, low * times, log=True)
    assert is_round(bottom)
    assert is_round(top)
    if times >= 2:
        assert low / bottom < 2.5 + 1e-6
        assert top / (low * times) < 2.5 + 1e-6


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_linear_limits_leave_little_of_the_height_unused(low: float, height: float) -> None:
    high = low + height
    assume(height >= 0.05 * max(abs(low), abs(high)))
    bottom, top = limits_of(YLimits(), low, high, log=False)
    assert top - bottom <= 2 * height * (1 + 1e-9)


def test_limits_stay_while_they_fit_and_follow_when_they_do_not() -> None:
    limits = YLimits()
    assert limits_of(limits, 0.05, 2.3, log=False) == (0, 2.5)
    assert limits_of(limits, 0.05, 2.4, log=False) == (0, 2.5)
    assert limits_of(limits, 0.05, 1.3, log=False) == (0, 2.5), "more than half of the height is used"
    assert limits_of(limits, 0.05, 2.6, log=False) == (0, 3), "a value fell outside"
    assert limits_of(limits, 0.05, 2.4, log=False) == (0, 3), "no return for a little"
    assert limits_of(limits, 0.05, 0.9, log=False) == (0, 1), "less than half of the height was used"
    assert limits_of(limits, 0.05, 0.9, log=True) == (0.05, 1), "another kind of axis"


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20), st.booleans())
def test_the_same_values_never_change_the_limits(pairs: list[tuple[float, float]], log: bool) -> None:
    limits = YLimits()
    for pair in pairs:
        bounds = limits_of(limits, min(pair), max(pair), log=log)
        assert limits_of(limits, min(pair), max(pair), log=log) == bounds


@pytest.mark.parametrize("value", [2.3026, -7.0, 65536.0, 1e-6])
def test_a_constant_has_a_margin_of_its_own_size(value: float) -> None:
    bottom, top = limits_of(YLimits(), value, value, log=False)
    assert bottom < value < top
    assert top - bottom <= 0.2 * abs(value)


def test_zero_has_a_margin() -> None:
    assert limits_of(YLimits(), 0, 0, log=False) == (0, 1)
    bottom, top = limits_of(YLimits(), 0, 0, log=True)
    assert 0 < bottom < 1 < top


@given(st.floats(0.001, 1000), st.floats(1.1, 1e6), st.booleans())
def test_an_axis_maps_its_ends_to_0_and_1_and_its_tick_between(low: float, times: float, log: bool) -> None:
    axis = YLimits().axis(low, low * times, log=log)
    places = axis.fraction(np.array([axis.low, axis.middle_tick(), axis.high, np.nan]))
    assert places[0] == pytest.approx(0)
    if axis.high >= 5 * axis.low or not log:
        assert 0.15 < places[1] < 0.85
    assert places[2] == pytest.approx(1)
    assert np.isnan(places[3])


def test_a_logarithmic_axis_has_no_height_for_zero() -> None:
    axis = Axis(0.01, 1, log=True)
    assert axis.fraction(np.array([0.0, -3.0, 0.1])).tolist() == [-np.inf, -np.inf, pytest.approx(0.5)]
    assert axis.middle_tick() == pytest.approx(0.1)
