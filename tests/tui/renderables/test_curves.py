"""Curves: what is sampled of any series, in which steps and columns, on limits that seldom change."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base import units
from amptui.records.findings import Float16Window
from amptui.telemetry.axis import Axis, Kind, noisy_curve
from amptui.telemetry.history import Track, rate_series
from amptui.telemetry.view import Series
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.float16_histogram import LEGEND_LINES, MARGIN, draw_exponents
from amptui.tui.renderables.plot import CurvePlot, YLimits, draw_ribbon, draw_step_axis
from amptui.tui.renderables.step_window import (
    GUTTER,
    Window,
    sample,
    visible_window,
)
from tests.telemetry.record_samples import window
from tests.tui.renderables.tracks import any_series, any_switches, series_of, windows_near

widths = st.integers(1, 50)


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


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), widths, st.sampled_from([2, 16, 256]))
def test_no_extreme_of_a_run_is_lost(values: list[float], width: int, buckets: int) -> None:
    series = series_of(values, buckets=buckets, recent=1)
    columns = sample(series, whole(series), width)
    assert np.nanmin(columns.low) == min(values)
    assert np.nanmax(columns.high) == max(values)


@given(
    st.data(),
    st.integers(0, 40),
    st.integers(0, 9),
    st.sampled_from(["linear", "log10", "log2"]),
    st.booleans(),
    any_series(),
)
def test_any_series_in_any_window_on_any_canvas_can_be_drawn(
    data: st.DataObject, width: int, height: int, kind: Kind, band: bool, series: Series
) -> None:
    plot = CurvePlot(units.loss, band=band)
    for _ in range(2):
        canvas = Canvas(width, height)
        window, switches = data.draw(windows_near(series)), data.draw(any_switches(series))
        plot.draw(canvas.rows(0, height - 2), series, window=window, switches=switches, kind=kind)
        ribbon = canvas.rows(height - 2)
        draw_ribbon(ribbon, window=window, switches=switches, skips=series, nonfinite=series)
        draw_step_axis(canvas.rows(height - 1), window=window)
        for line in canvas.lines():
            assert len(line) == width


def test_limits_stay_while_they_fit_and_follow_when_they_do_not() -> None:
    limits = YLimits()
    assert limits.axis(0.05, 2.3, "linear") == Axis(0, 2.5)
    assert limits.axis(0.05, 2.4, "linear") == Axis(0, 2.5)
    assert limits.axis(0.05, 1.3, "linear") == Axis(0, 2.5), "more than half of the height is used"
    assert limits.axis(0.05, 2.6, "linear", needed=(0.1, 2.4)) == Axis(0, 2.5), "the line is on the axis"
    assert limits.axis(0.05, 2.6, "linear") == Axis(0, 3), "a value fell outside"
    assert limits.axis(0.05, 2.4, "linear") == Axis(0, 3), "no return for a little"
    assert limits.axis(0.05, 0.9, "linear") == Axis(0, 1), "less than half of the height was used"
    assert limits.axis(0.05, 0.9, "log10") == Axis(0.05, 1, "log10"), "another kind of axis"


def test_lowest_values_of_zero_have_no_logarithmic_axis() -> None:
    canvas, series = Canvas(40, 8), series_of([0.0, 1.0, None], buckets=2, recent=1)
    CurvePlot(units.loss, band=False).draw(canvas, series, window=whole(series), switches=(), kind="log10")
    assert "log" not in "".join(canvas.lines())


def drawn(values: Sequence[float], *, kind: Kind = "linear") -> list[str]:
    """A noisy curve over the whole run, in a panel of usual size."""
    canvas, series = Canvas(80, 20), series_of(values)
    CurvePlot(units.loss).draw(canvas, series, window=whole(series), switches=(), kind=kind)
    return canvas.lines()


def test_a_loss_with_spikes_is_scaled_to_its_line_and_the_spikes_are_marked_and_counted() -> None:
    losses = [0.05 + 2.25 * math.exp(-step / 60) for step in range(1500)]
    calm = drawn(losses)
    for step in (500, 750, 1200):
        losses[step] *= 100
    lines = drawn(losses)
    assert lines[0].startswith("    2.5"), "as without spikes"
    assert [line[:8] for line in lines] == [line[:8] for line in calm]
    assert lines[0].count("↑") == 3
    assert " 3 steps above " in lines[0]


def test_the_start_of_training_is_on_the_axis_and_a_first_loss_far_above_leaves_it() -> None:
    fall = drawn([0.05 + 2.25 * math.exp(-step / 60) for step in range(1500)])
    assert any(ord(line[8]) > 0x2800 for line in fall[:4])
    first = drawn([40.0, *[0.09, 0.11] * 500])
    assert float(first[0][:8]) < 0.2
    assert first[0][8] == "↑"


def test_steps_that_scatter_do_not_fill_the_panel() -> None:
    uneven: list[Step] = [(256, 0.05 if step % 10 == 3 else 0.005) for step in range(2400)]
    canvas, series = Canvas(80, 20), rates(uneven)
    CurvePlot(units.short_count).draw(canvas, series, window=whole(series), switches=())
    lines = canvas.lines()
    assert sum(cell != " " for line in lines for cell in line[8:]) < 4 * 72
    assert lines[-1].endswith(" 240+ steps below ")


# ------------------------------------------------------------------------------------------- rates

Step = tuple[int, float] | None
"""Samples and seconds; None for a step that was skipped or not timed."""

STEPS = st.lists(
    st.none() | st.tuples(st.integers(1, 4096), st.floats(1e-5, 100.0)), min_size=1, max_size=400
)


def rates(steps: Sequence[Step], *, buckets: int = 2048, recent: int = 2048) -> Series:
    tracks = [Track.empty(buckets, recent) for _ in range(3)]
    for step in steps:
        values = (None, None, None) if step is None else (step[0] / step[1], *step)
        for track, value in zip(tracks, values, strict=True):
            track.extend([value])
    return rate_series(*tracks)


def shown_steps(series: Series, window: Window, steps: Sequence[Step]) -> list[tuple[int, float]]:
    """The steps whose values a plot of ``window`` shows: single ones, or those of whole buckets."""
    first_recent = series.last_step - len(series.recent) + 1
    begin, end = window.first_step - 1, window.last_step
    if max(window.first_step, 1) < first_recent:
        size = series.bucket_steps
        begin, end = begin // size * size, -(-end // size) * size
    return [timed_step for timed_step in steps[begin:end] if timed_step is not None]


def shown_rates(series: Series, window: Window) -> tuple[float, float]:
    """The range of a plot of 100 columns."""
    columns = sample(series, window, 100)
    return noisy_curve(columns.mean, "linear", 3, weights=columns.weights)[2]


@given(STEPS, st.integers(0, 8), st.integers(1, 120))
def test_the_columns_times_their_seconds_are_the_samples_at_any_zoom(
    steps: list[Step], zoom: int, columns: int
) -> None:
    series = rates(steps, buckets=16, recent=24)
    window = visible_window(series, zoom)
    result = sample(series, window, columns)
    shown = shown_steps(series, window, steps)
    assert result.weights is not None
    assert result.weights.sum() == pytest.approx(sum(seconds for _, seconds in shown))
    assert np.nansum(result.mean * result.weights) == pytest.approx(sum(count for count, _ in shown))


@pytest.mark.parametrize("count", [5, 60, 500])
@pytest.mark.parametrize("outlier", [(256, 1e-6), (256, 30.0)], ids=["fast", "slow"])
def test_one_step_does_not_flatten_the_curve(count: int, outlier: tuple[int, float]) -> None:
    steps: list[Step] = [(256, 0.006 + 0.0001 * (n % 3)) for n in range(count)]
    steps[count // 2] = outlier
    series = rates(steps)
    window = visible_window(series, 0)
    low, high = shown_rates(series, window)
    usual = 256 / 0.0061
    assert high <= 2.1 * usual
    assert low >= (0.4 * usual if count >= 60 else 0)
    canvas = Canvas(100, 12)
    CurvePlot(units.short_count).draw(canvas, series, window=window, switches=())
    assert ("↑" in "".join(canvas.lines())) == (outlier[1] < 1)


def test_a_switch_to_a_faster_precision_is_shown_whole() -> None:
    steps: list[Step] = [*[(256, 0.010)] * 300, *[(256, 0.002)] * 40]
    low, high = shown_rates(rates(steps), Window(1, 340))
    assert low <= 25_600
    assert high >= 128_000


# ----------------------------------------------------------------------------------------- windows


def run_of(first_step: int, count: int) -> Series:
    """A run of so many steps; what was measured in them does not matter to a window."""
    nothing, flags = np.empty(0), np.empty(0, np.bool_)
    return Series(first_step, count, 1, nothing, nothing, nothing, np.empty(0, np.int64), nothing, flags)


runs = st.builds(run_of, st.integers(0, 10**9), st.integers(1, 200) | st.integers(1, 10**9))
windows = st.builds(
    lambda first, steps: Window(first, first + steps - 1),
    st.integers(0, 10**12),
    st.integers(1, 300) | st.integers(1, 10**9),
)
columns = st.integers(1, 300)


@given(runs, st.integers(0, 40), st.just(0) | st.integers(0, 10**6))
def test_a_window_contains_the_newest_step_and_at_most_half_of_it_is_free(
    series: Series, zoom: int, ahead: int
) -> None:
    window = visible_window(series, zoom, ahead=ahead)
    free = window.last_step - series.last_step
    assert window.first_step <= series.last_step <= window.last_step
    assert window.steps >= 32
    if window.steps > 32:
        assert free < max(ahead, window.steps / 16 + 1)
        assert free <= window.steps / 2


# --------------------------------------------------------------------------- histograms of any size
def exponents(counts: dict[int, int], **changes: int) -> Float16Window:
    """Elements by exponent, in a window from 2^-60 to 2^41; ``changes`` are its exact counts."""
    total = sum(counts.values()) + changes.get("zeros", 0) + changes.get("nonfinite", 0)
    shown = tuple(counts.get(exponent, 0) for exponent in range(-60, 41))
    return window(1, **{"first_exponent": -60, "counts": shown, "elements": total, "zeros": 0, **changes})


def histogram(shown: Float16Window, height: int) -> Canvas:
    canvas = Canvas(76, height)
    draw_exponents(canvas, shown)
    return canvas


def bars(canvas: Canvas) -> list[int]:
    """The height of each column of bars, in eighths of a cell."""
    rows = canvas.chars[: canvas.height - LEGEND_LINES, GUTTER : canvas.width - MARGIN]
    eighths = np.where((rows >= ord("▁")) & (rows <= ord("█")), rows - ord("▁") + 1, 0)
    return [int(height) for height in eighths.sum(axis=0)]


any_counts = st.dictionaries(st.integers(-60, 40), st.integers(1, 10**9), max_size=40)
any_window = st.builds(
    exponents,
    any_counts,
    zeros=st.integers(0, 10**9),
    flushed=st.integers(0, 10**6),
    overflowing=st.integers(0, 10**6),
    nonfinite=st.integers(0, 10**9),
)


@given(any_window, st.integers(1, 30))
def test_one_element_is_never_drawn_as_none_and_none_never_as_one(shown: Float16Window, rows: int) -> None:
    heights = bars(histogram(shown, rows + LEGEND_LINES))
    exponents = {min(17, max(-42, i - 60)) for i, count in enumerate(shown.counts) if count}
    assert {column - 42 for column, height in enumerate(heights) if height} == exponents
