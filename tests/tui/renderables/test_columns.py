"""Any series reduced to the columns of a plot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.axis import Kind
from amptui.telemetry.view import Series
from amptui.tui.renderables.columns import columns_above_zero, nonfinite_columns, sample, shown_range
from amptui.tui.renderables.step_window import Window
from tests.tui.renderables.tracks import any_series, series_of, windows_near

widths = st.integers(1, 50)
numbers = st.floats(-1e6, 1e6)


def whole(series: Series) -> Window:
    return Window(series.first_step, series.last_step)


@given(any_series(), widths, st.data())
def test_any_series_can_be_sampled_in_any_window(series: Series, width: int, data: st.DataObject) -> None:
    columns = sample(series, data.draw(windows_near(series)), width)
    for values in (columns.low, columns.high, columns.mean):
        assert values.shape == (width,)
        assert not np.isinf(values).any()
    finite = np.isfinite(columns.mean)
    hair = 1e-9 * np.maximum(np.abs(columns.low), np.abs(columns.high))[finite]
    assert (columns.low[finite] - hair <= columns.mean[finite]).all()
    assert (columns.mean[finite] <= columns.high[finite] + hair).all()


@given(st.lists(numbers, min_size=1, max_size=200), widths, st.sampled_from([2, 16, 256]))
def test_no_extreme_of_a_run_is_lost(values: list[float], width: int, buckets: int) -> None:
    series = series_of(values, buckets=buckets, recent=1)
    columns = sample(series, whole(series), width)
    assert np.nanmin(columns.low) == min(values)
    assert np.nanmax(columns.high) == max(values)


@given(st.lists(numbers, min_size=1, max_size=100), widths)
def test_exact_values_fill_the_columns_of_their_steps(values: list[float], width: int) -> None:
    series = series_of(values, first_step=7)
    window = whole(series)
    columns = sample(series, window, width)
    for column in range(width):
        here = [value for step, value in enumerate(values, 7) if window.column_of(step, width) == column]
        last_begun = max(
            step for step in range(7, 7 + len(values)) if window.column_of(step, width) <= column
        )
        expected = np.mean(here) if here else values[last_begun - 7]
        assert columns.mean[column] == pytest.approx(expected, abs=1e-6)


def test_nonfinite_and_unmeasured_values_differ() -> None:
    series = series_of([1.0, None, float("nan"), 2.0, float("-inf"), 3.0])
    columns = sample(series, whole(series), 6)
    assert columns.nonfinite.tolist() == [False, False, True, False, True, False]
    assert np.isnan(columns.mean).tolist() == [False, True, True, False, True, False]
    assert nonfinite_columns(series, whole(series), 3).tolist() == [False, True, True]


@given(any_series(), widths, st.data())
def test_marks_are_the_sampled_ones(series: Series, width: int, data: st.DataObject) -> None:
    window = data.draw(windows_near(series))
    columns = sample(series, window, width)
    for marks, marked in (
        (nonfinite_columns(series, window, width), columns.nonfinite),
        (columns_above_zero(series, window, width), columns.high > 0),
    ):
        assert marks.tolist() == marked.tolist()


def test_a_step_of_several_columns_fills_all_of_them() -> None:
    series = series_of([1.0, float("nan"), 3.0])
    columns = sample(series, Window(1, 4), 12)
    expected = [1.0] * 3 + [np.nan] * 3 + [3.0] * 3 + [np.nan] * 3
    np.testing.assert_array_equal(columns.mean, expected)
    assert np.flatnonzero(columns.nonfinite).tolist() == [3, 4, 5]


def extent_of(
    values: list[float], kind: Kind = "linear", *, with_outliers: bool = False
) -> tuple[float, float]:
    series = series_of(values)
    return shown_range(sample(series, whole(series), 100), kind, with_outliers=with_outliers)


def test_one_early_spike_does_not_set_the_limits() -> None:
    curve = [40.0, *np.linspace(0.3, 0.1, 499)]
    low, high = extent_of(curve)
    assert low == 0.1
    assert high < 0.31
    assert extent_of(curve, with_outliers=True) == (0.1, 40)


def test_a_logarithmic_extent_is_positive() -> None:
    assert extent_of([0.0, -1.0, 0.5, 2.0], "log10") == (0.5, 2.0)
    series = series_of([-1.0, 3.0, -2.0, 5.0], buckets=2, recent=1)
    columns = sample(series, whole(series), 2)
    assert shown_range(columns, "log10", with_outliers=True) == (3.0, 5.0), "no column is positive throughout"
