"""The value axis: round limits that hold what is shown, and a few round labels at equal distances."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from amptui.telemetry.axis import Axis, Kind, axis, kind_for, round_down, round_up

FINITE = st.floats(-1e300, 1e300) | st.floats(-100, 100) | st.sampled_from([0.0, 5e-324, -1e-310, 1.0])
KINDS = st.sampled_from(["linear", "log10", "log2"])


def is_round(value: float) -> bool:
    return f"{abs(value):.6e}".split("e")[0].rstrip("0.") in ("", "1", "2", "5")


@given(FINITE, FINITE, KINDS)
def test_an_axis_contains_its_values_and_has_a_height(one: float, other: float, kind: Kind) -> None:
    low, high = min(one, other), max(one, other)
    limits = axis(low, high, kind)
    assert math.isfinite(limits.low)
    assert limits.low < limits.high < math.inf
    hair = 1e-9 * (limits.high - limits.low)
    if kind == "linear":
        assert limits.low - hair <= low
        assert high <= limits.high + hair
    elif low > 1e-290:
        assert 0 < limits.low <= low * (1 + 1e-8)
        assert high <= limits.high * (1 + 1e-8)


@given(st.floats(1e-200, 1e200), st.floats(1, 1e9))
def test_log_limits_are_round_and_at_most_a_factor_of_5_away(low: float, times: float) -> None:
    limits = axis(low, low * times, "log10")
    assert is_round(limits.low)
    assert is_round(limits.high)
    if times >= 2:
        assert low / limits.low < 2.5 + 1e-6
        assert limits.high / (low * times) < 2.5 + 1e-6


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_linear_limits_leave_little_of_the_height_unused(low: float, height: float) -> None:
    high = low + height
    assume(height >= 0.05 * max(abs(low), abs(high)))
    limits = axis(low, high, "linear")
    assert limits.high - limits.low <= 2 * height * (1 + 1e-9)


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 100.0]))
@example(1.0, 1.0, 1.0)
@example(0.9996, 0.9996, 100.0)
def test_the_axis_of_a_share_ends_at_all_of_it(one: float, other: float, whole: float) -> None:
    low, high = min(one, other) * whole, max(one, other) * whole
    limits = axis(low, high, "linear", ceiling=whole)
    assert limits.low <= low + 1e-9 * whole
    assert high <= limits.high <= whole
    assert limits.low < limits.high


def test_values_above_a_ceiling_are_shown_all_the_same() -> None:
    assert axis(99.0, 99.2, "linear", ceiling=1.0).high > 99.2


@given(FINITE, FINITE, KINDS, st.integers(2, 9))
@example(9.846153846153844e299, 9.846153846153845e299, "linear", 6)  # its end lies beyond the largest value
def test_labels_are_few_within_the_axis_and_at_equal_distances(
    one: float, other: float, kind: Kind, most: int
) -> None:
    limits = axis(min(one, other), max(one, other), kind)
    ticks = limits.ticks(most)
    assert 2 <= len(ticks) <= most
    places = limits.heights(np.array(ticks))
    assert ((places >= -1e-9) & (places <= 1 + 1e-9)).all()
    assert (np.diff(places) > 0).all()
    if kind == "linear" or len(ticks) < 4:
        assert np.ptp(np.diff(places)) < 0.25
    if kind == "linear" and len(ticks) > 2:
        assert is_round(ticks[1] - ticks[0])


@pytest.mark.parametrize(
    ("low", "high", "kind", "most", "ticks"),
    [
        (0.0, 10.0, "linear", 6, (0, 2, 4, 6, 8, 10)),
        (0.11, 0.49, "linear", 6, (0.1, 0.2, 0.3, 0.4, 0.5)),
        (16.2, 20.6, "linear", 4, (16, 18, 20)),
        (-3.0, 400.0, "linear", 6, (-100, 0, 100, 200, 300, 400)),
        (3.0, 3.0, "linear", 6, (2.9, 2.95, 3.0, 3.05, 3.1)),
        (0.0, 0.0, "linear", 6, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (0.02, 4.0, "log10", 6, (0.1, 1)),
        (0.06, 0.9, "log10", 6, (0.05, 0.1, 0.2, 0.5, 1)),
        (1e-9, 1e9, "log10", 5, (1e-5, 1, 1e5)),
        (8192.0, 262144.0, "log2", 6, (8192, 16384, 32768, 65536, 131072, 262144)),
        (65536.0, 65536.0, "log2", 6, (32768, 65536, 131072)),
    ],
)
def test_labels(low: float, high: float, kind: Kind, most: int, ticks: tuple[float, ...]) -> None:
    assert axis(low, high, kind).ticks(most) == pytest.approx(ticks)


def test_a_wide_range_of_positive_values_has_a_logarithmic_axis() -> None:
    kinds = [
        kind_for(np.array(values)) for values in ([0.01, 2.0], [1.0, 50.0], [-1.0, 5000.0], [], [np.nan])
    ]
    assert kinds == ["log10", "linear", "linear", "linear", "linear"]
    assert [Axis(1, 2, "log2").is_logarithmic, Axis(1, 2).is_logarithmic] == [True, False]


def test_zero_has_a_margin() -> None:
    assert axis(0, 0, "linear") == Axis(0, 1)
    limits = axis(0, 0, "log10")
    assert 0 < limits.low < 1 < limits.high


@given(st.floats(0.001, 1000), st.floats(1.1, 1e6), KINDS)
def test_an_axis_maps_its_ends_to_0_and_1(low: float, times: float, kind: Kind) -> None:
    limits = axis(low, low * times, kind)
    places = limits.heights(np.array([limits.low, limits.high, np.nan]))
    assert places[:2] == pytest.approx([0, 1])
    assert np.isnan(places[2])


def test_a_logarithmic_axis_has_no_height_for_zero() -> None:
    limits = Axis(0.01, 1, "log10")
    assert limits.heights(np.array([0.0, -3.0, 0.1])).tolist() == [-np.inf, -np.inf, pytest.approx(0.5)]


@given(st.floats(1e-300, 1e300) | st.integers(1, 10**15))
def test_round_numbers_are_1_2_or_5_with_zeros_and_near(value: float) -> None:
    above, below = round_up(value), round_down(value)
    assert value * (1 - 1e-6) <= above <= 2.5 * value * (1 + 1e-6)
    assert value / 2.5 * (1 - 1e-6) <= below <= value * (1 + 1e-6)
    assert is_round(above)
    assert is_round(below)
