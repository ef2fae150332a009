"""Smoothing: as steady at both ends of a stretch as in its middle, without lag, spikes or invented values."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.smoothing import smoothed, smoothed_by_weight
from amptui.telemetry.view import Counts, Floats

SHAPES = [(100, 2), (160, 4), (600, 20)]
"""Columns, and the columns to both sides: of a small screen, a usual one, and a page of a comparison."""


def by_line(noise: Floats, reach: int, breaks: Counts) -> Floats:
    return smoothed(noise, reach, breaks)


def by_mean(noise: Floats, reach: int, breaks: Counts) -> Floats:
    return smoothed_by_weight(noise, np.ones(len(noise)), reach, breaks)


@pytest.mark.parametrize(("columns", "reach"), SHAPES)
@pytest.mark.parametrize("smoothing", [by_line, by_mean])
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
