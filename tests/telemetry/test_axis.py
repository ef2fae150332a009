"""Curves: round limits and labels of their value axis, and lines without lag, spikes or invented values."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.telemetry.axis import Kind, axis, kind_for, smoothed

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


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 100.0]))
@example(1.0, 1.0, 1.0)
@example(0.9996, 0.9996, 100.0)
def test_the_axis_of_a_share_ends_at_all_of_it(one: float, other: float, whole: float) -> None:
    low, high = min(one, other) * whole, max(one, other) * whole
    limits = axis(low, high, "linear", ceiling=whole)
    assert limits.low <= low + 1e-9 * whole
    assert high <= limits.high <= whole
    assert limits.low < limits.high


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


def test_a_wide_range_of_positive_values_has_a_logarithmic_axis() -> None:
    kinds = [
        kind_for(np.array(values)) for values in ([0.01, 2.0], [1.0, 50.0], [-1.0, 5000.0], [], [np.nan])
    ]
    assert kinds == ["log10", "linear", "linear", "linear", "linear"]


# ---------------------------------------------------------------------------------------- smoothing


def test_gaps_switches_constants_and_short_stretches() -> None:
    line = np.array([1.0, 5.0, 0.0, np.nan, 2.0, 2.0, 2.0, np.nan, 7.0, 8.0])
    result = smoothed(line, 1, np.array([9]))
    assert np.isnan(result[[3, 7]]).all()
    assert result[[0, 1, 2, 4, 5, 6, 8, 9]] == pytest.approx([1.0, 2.0, 2.5, 2.0, 2.0, 2.0, 7.0, 8.0])
    assert smoothed(line, 0) is line
    assert np.isnan(smoothed(np.full(9, np.nan), 2)).all()


numbers = st.sampled_from([np.nan, 0.0, 1e300, -1e300]) | st.floats(-1e300, 1e300) | st.floats(-10, 10)


@given(
    st.lists(numbers, min_size=1, max_size=80), st.integers(1, 12), st.lists(st.integers(0, 79), max_size=4)
)
def test_no_value_is_invented(values: list[float], reach: int, switches: list[int]) -> None:
    line = np.array(values)
    breaks = np.array([place for place in switches if place < len(line)], np.int64)
    result = smoothed(line, reach, breaks)
    assert (np.isfinite(result) == np.isfinite(line)).all()
    reference = np.isfinite(line)
    if reference.any():
        margin = 1e-9 * np.abs(line[reference]).max()
        assert result[reference].min() >= line[reference].min() - margin
        assert result[reference].max() <= line[reference].max() + margin


def test_a_long_pause_does_not_lift_a_rate_above_all_others() -> None:
    rates, seconds = np.full(100, 1000.0), np.full(100, 0.001)
    rates[80], seconds[80] = 1.0, 1.0
    assert smoothed(rates, 4, weights=seconds).max() <= 1000.0 * (1 + 1e-9)
