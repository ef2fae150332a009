"""A curve of rates: samples by seconds in every column, on an axis that no single step sets."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base import units
from amptui.telemetry.history import RateTrack
from amptui.telemetry.view import Series
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.columns import sample, shown_range
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.step_window import Window, visible_window

BUCKETS, RECENT = 16, 24

Step = tuple[int, float] | None
"""Samples and seconds; None for a step that was skipped or not timed."""

STEPS = st.lists(
    st.none() | st.tuples(st.integers(1, 4096), st.floats(1e-5, 100.0)), min_size=1, max_size=400
)


def rates(steps: Sequence[Step], *, buckets: int = BUCKETS, recent: int = RECENT) -> Series:
    track = RateTrack.empty(buckets, recent)
    for start in range(0, len(steps), 7):
        batch = steps[start : start + 7]
        track.extend(
            [None if timed_step is None else timed_step[0] / timed_step[1] for timed_step in batch],
            [1 if timed_step is None else timed_step[0] for timed_step in batch],
            [0.5 if timed_step is None else timed_step[1] for timed_step in batch],
        )
    return track.snapshot()


def shown_steps(series: Series, window: Window, steps: Sequence[Step]) -> list[tuple[int, float]]:
    """The steps whose values a plot of ``window`` shows: single ones, or those of whole buckets."""
    first_recent = series.last_step - len(series.recent) + 1
    begin, end = window.first_step - 1, window.last_step
    if max(window.first_step, 1) < first_recent:
        size = series.bucket_steps
        begin, end = begin // size * size, -(-end // size) * size
    return [timed_step for timed_step in steps[begin:end] if timed_step is not None]


@given(STEPS)
def test_each_bucket_times_its_seconds_is_its_samples(steps: list[Step]) -> None:
    series = rates(steps)
    assert series.weights is not None
    for index in range(len(series.mean)):
        bucket_steps = steps[index * series.bucket_steps : (index + 1) * series.bucket_steps]
        timed_steps = [timed_step for timed_step in bucket_steps if timed_step is not None]
        assert series.weights[index] == pytest.approx(sum(seconds for _, seconds in timed_steps))
        samples = sum(count for count, _ in timed_steps)
        if timed_steps:
            assert series.mean[index] * series.weights[index] == pytest.approx(samples)
        else:
            assert np.isnan(series.mean[index])


@given(STEPS, st.integers(0, 8), st.integers(1, 120))
def test_the_columns_times_their_seconds_are_the_samples_at_any_zoom(
    steps: list[Step], zoom: int, columns: int
) -> None:
    series = rates(steps)
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
    series = rates(steps, buckets=2048, recent=2048)
    window = visible_window(series, 0)
    low, high = shown_range(sample(series, window, 100), "linear", with_outliers=False)
    usual = 256 / 0.0061
    assert high <= 2.1 * usual
    assert low >= (0.4 * usual if count >= 60 else 0)
    canvas = Canvas(100, 12)
    CurvePlot(units.short_count).draw(canvas, series, window=window, switches=())
    assert ("↑" in "".join(canvas.lines())) == (outlier[1] < 1)


def test_a_switch_to_a_faster_precision_is_shown_whole() -> None:
    steps: list[Step] = [*[(256, 0.010)] * 300, *[(256, 0.002)] * 40]
    series = rates(steps, buckets=2048, recent=2048)
    low, high = shown_range(sample(series, Window(1, 340), 100), "linear", with_outliers=False)
    assert low <= 25_600
    assert high >= 128_000
