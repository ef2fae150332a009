"""Curves: round limits and labels of their value axis, and lines without lag, spikes or invented values."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.telemetry.axis import Axis, Kind, axis, kind_for, round_down, round_up
from amptui.telemetry.smoothing import smoothed, smoothed_by_weight
from amptui.telemetry.view import Counts, Floats

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


@given(st.floats(1e-300, 1e300) | st.integers(1, 10**15))
def test_round_numbers_are_1_2_or_5_with_zeros_and_near(value: float) -> None:
    above, below = round_up(value), round_down(value)
    assert value * (1 - 1e-6) <= above <= 2.5 * value * (1 + 1e-6)
    assert value / 2.5 * (1 - 1e-6) <= below <= value * (1 + 1e-6)
    assert is_round(above)
    assert is_round(below)


# ---------------------------------------------------------------------------------------- smoothing


SHAPES = [(100, 2), (160, 4), (600, 20)]
"""Columns, and the columns to both sides: of a small screen, a usual one, and a page of a comparison."""


def by_mean(noise: Floats, reach: int, breaks: Counts) -> Floats:
    return smoothed_by_weight(noise, np.ones(len(noise)), reach, breaks)


@pytest.mark.parametrize(("columns", "reach"), SHAPES)
@pytest.mark.parametrize("smoothing", [smoothed, by_mean])
def test_noise_is_as_small_at_the_ends_and_at_a_switch_as_in_the_middle(
    columns: int, reach: int, smoothing: Callable[[Floats, int, Counts], Floats]
) -> None:
    draws = np.random.default_rng(1)
    switch = np.array([columns // 2])
    spread = np.std([smoothing(draws.normal(size=columns), reach, switch) for _ in range(200)], axis=0)
    middle = float(np.mean(spread[columns // 4 - 5 : columns // 4 + 5]))
    # 1.3 by theory. 200 samples make a standard deviation off by 5%: the largest of many by up to 20%.
    assert spread.max() < 1.6 * middle
    ends = spread[[0, columns // 2 - 1, columns // 2, columns - 1]]
    assert float(np.mean(ends)) < 1.4 * middle
    assert middle == pytest.approx(np.sqrt(2 / (3 * (2 * reach + 1))), rel=0.1)


@pytest.mark.parametrize(("columns", "reach"), SHAPES)
def test_a_trend_is_kept_up_to_both_ends_and_a_switch_adds_no_jump(columns: int, reach: int) -> None:
    trend = np.linspace(3.0, 1.0, columns)
    assert smoothed(trend, reach, np.array([columns // 3])) == pytest.approx(trend)
    noisy = trend + np.random.default_rng(2).normal(size=columns) * 0.2
    apart = smoothed(noisy, reach, np.array([columns // 3])) - trend
    assert np.abs(apart).max() < 0.2 * 5 * np.sqrt(2 / (3 * (2 * reach + 1)))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_the_fast_fall_of_a_new_run_is_followed(noise: float) -> None:
    true = 0.1 + np.exp(-np.linspace(0, 30, 160))
    line = smoothed(true + np.random.default_rng(3).normal(size=160) * noise, 4)
    assert line[0] == pytest.approx(true[0], abs=0.05 + 3 * noise)
    assert np.sqrt(np.mean((line - true) ** 2)) < 0.005 + noise


def test_one_outlier_at_the_end_does_not_become_the_line_s_end() -> None:
    line = 1 + np.random.default_rng(4).normal(size=160) * 0.1
    line[-1] = 1.4
    assert smoothed(line, 4)[-1] < 1.2


def test_gaps_constants_and_short_stretches() -> None:
    line = np.array([1.0, 5.0, 1.0, np.nan, 2.0, 2.0, 2.0, np.nan, 7.0])
    result = smoothed(line, 2)
    assert np.isnan(result[[3, 7]]).all()
    assert result[:3] == pytest.approx([7 / 3] * 3), "the line through all three"
    assert result[4:7] == pytest.approx(2.0)
    assert result[8] == 7.0
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
    assert smoothed_by_weight(rates, seconds, 4, np.empty(0, np.int64)).max() <= 1000.0 * (1 + 1e-9)
