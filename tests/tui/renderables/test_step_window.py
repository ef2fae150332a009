"""The steps that a plot shows, and their columns."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.view import PrecisionSwitch, Series
from amptui.tui.renderables.step_window import Window, steps_ahead, stretches, visible_window


def run_of(first_step: int, count: int) -> Series:
    """A run of so many steps; what was measured in them does not matter to a window."""
    nothing, flags = np.empty(0), np.empty(0, np.bool_)
    return Series(first_step, count, 1, nothing, nothing, nothing, np.empty(0, np.int64), nothing, flags)


def window_of(first_step: int, steps: int) -> Window:
    return Window(first_step, first_step + steps - 1)


runs = st.builds(run_of, st.integers(0, 10**9), st.integers(1, 200) | st.integers(1, 10**9))
windows = st.builds(window_of, st.integers(0, 10**12), st.integers(1, 300) | st.integers(1, 10**9))
zooms = st.integers(0, 40)
columns = st.integers(1, 300)


@given(runs, zooms)
def test_a_window_contains_the_newest_step_near_its_right_end(series: Series, zoom: int) -> None:
    window = visible_window(series, zoom)
    assert window.first_step <= series.last_step <= window.last_step
    assert window.steps >= 32
    if window.steps > 32:
        assert window.last_step - series.last_step <= window.steps / 16


@given(runs, zooms, st.integers(0, 10**6))
def test_room_for_steps_ahead_takes_half_of_the_width_at_most(series: Series, zoom: int, ahead: int) -> None:
    window = visible_window(series, zoom, ahead=ahead)
    free = window.last_step - series.last_step
    assert window.first_step <= series.last_step <= window.last_step
    if window.steps > 32:
        assert free < max(ahead, window.steps / 16 + 1)
        assert free <= window.steps / 2


def test_the_window_of_a_fast_run_moves_every_few_seconds() -> None:
    ahead_steps = steps_ahead(0, 1 / 480)
    moments = range(480, 60 * 480, 120)
    last_steps = {visible_window(run_of(1, count), 0, ahead=ahead_steps).last_step for count in moments}
    assert len(last_steps) <= 60 / 3


@given(st.floats(1e-6, 1.0), st.floats(0.8, 1.2))
def test_the_free_columns_do_not_change_with_every_measurement(step_seconds: float, noise: float) -> None:
    ahead_steps = steps_ahead(0, step_seconds)
    assert steps_ahead(ahead_steps, step_seconds * noise) == ahead_steps
    assert steps_ahead(ahead_steps, None) == ahead_steps
    assert steps_ahead(ahead_steps, step_seconds / 100) > ahead_steps


@given(runs, zooms)
def test_each_zoom_level_halves_the_steps_down_to_32(series: Series, zoom: int) -> None:
    whole = visible_window(series, 0).steps
    assert visible_window(series, zoom).steps == max(32, whole >> zoom)


@pytest.mark.parametrize("zoom", [0, 1, 2, 3])
def test_a_window_does_not_move_with_every_step(zoom: int) -> None:
    last_steps = {visible_window(run_of(1, count), zoom).last_step for count in range(1000, 2000)}
    assert len(last_steps) <= 1000 / 5


@given(windows, columns, st.data())
def test_later_steps_are_never_further_left(window: Window, width: int, data: st.DataObject) -> None:
    steps = sorted(data.draw(st.lists(st.integers(window.first_step - 9, window.last_step + 9), min_size=1)))
    places = [window.column_of(step, width) for step in steps]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] < width
    assert window.columns_of(np.array(steps, np.int64), width).tolist() == places


@given(windows, columns, st.data())
def test_stretches_cover_every_column_once_with_the_precision_of_its_last_step(
    window: Window, width: int, data: st.DataObject
) -> None:
    steps = st.integers(window.first_step - 9, window.last_step + 9)
    starts = sorted(data.draw(st.sets(steps, max_size=9)))
    switches = tuple(
        PrecisionSwitch(step, data.draw(st.sampled_from(["fp32", "fp16", "bf16"]))) for step in starts
    )
    parts = stretches(window, switches, width)
    assert parts[0].start == 0
    assert parts[-1].stop == width
    assert all(one.stop == next_one.start for one, next_one in pairwise(parts))
    for part in parts:
        for column in range(part.start, part.stop):
            ran = [
                switch.precision
                for switch in switches
                if switch.step <= window.last_step and window.column_of(switch.step, width) <= column
            ]
            assert part.precision == (ran[-1] if ran else None)
