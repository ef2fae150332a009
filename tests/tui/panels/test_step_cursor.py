"""The cursor of an enlarged chart: it reads the series at its step, whatever the chart shows of it."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base import units
from amptui.telemetry.view import PrecisionSwitch, Series, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import Phrase, Word
from amptui.tui.panels.step_cursor import (
    CHART_LEFT,
    Cursor,
    Extent,
    cursor_line,
    draw_cursor,
    point,
    press,
)
from amptui.tui.renderables.step_window import GUTTER, visible_window
from tests.golden import Goldens
from tests.tui.renderables.tracks import any_series, series_of, windows_near

KEYS = [
    *("left", "right", "shift+left", "shift+right", "left_square_bracket", "right_square_bracket"),
    *("home", "end", "plus", "equals_sign", "minus", "0", "l", "x"),
]


def extent_of(series: Series, zoom: int = 0, columns: int = 70) -> Extent:
    return Extent(series, visible_window(series, zoom), visible_window(series, 0), columns)


def pressed(extent: Extent, keys: Sequence[str], cursor: Cursor | None = None) -> Cursor | None:
    for key in keys:
        cursor = press(cursor, key, extent)
    return cursor


def words(line: Sequence[Phrase]) -> list[str]:
    return ["".join(word.text for word in phrase.words if isinstance(word, Word)) for phrase in line]


# ------------------------------------------------------------------------------------- the value


@given(st.data(), st.lists(st.none() | st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=200))
def test_a_reading_is_of_the_values_of_its_steps(data: st.DataObject, values: list[float | None]) -> None:
    buckets, recent = data.draw(st.sampled_from([2, 8, 64])), data.draw(st.sampled_from([1, 16, 128]))
    first_step = data.draw(st.integers(0, 10**9))
    series = series_of(values, first_step=first_step, buckets=buckets, recent=recent)
    for step in range(first_step, first_step + len(values)):
        reading = series.at(step)
        assert reading is not None
        assert reading.first_step <= step <= reading.last_step
        own = values[reading.first_step - first_step : reading.last_step - first_step + 1]
        finite = [value for value in own if value is not None and math.isfinite(value)]
        assert reading.nonfinite == sum(value is not None and not math.isfinite(value) for value in own)
        if finite:
            assert reading.mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-9, abs=1e-6)
            assert (reading.minimum, reading.maximum) == (min(finite), max(finite))
        else:
            assert (reading.mean is None) == (not reading.nonfinite)
        if step >= series.first_recent:
            assert (reading.first_step, reading.last_step) == (step, step)
    assert series.at(first_step - 1) is series.at(first_step + len(values)) is None


@given(any_series(), st.integers(0, 8), st.integers(1, 300), st.lists(st.sampled_from(KEYS), max_size=6))
def test_a_click_puts_it_at_the_nearest_value(
    series: Series, zoom: int, columns: int, keys: list[str]
) -> None:
    extent = extent_of(series, zoom, columns)
    before = pressed(extent, keys)
    for outside in (CHART_LEFT - 1, CHART_LEFT + columns):
        assert point(before, outside, extent) == before
    window = extent.live if before is None else before.window_in(extent.live)
    measured = series.measured_steps().tolist()
    for cell in {0, columns // 3, columns - 1}:
        cursor = point(before, CHART_LEFT + cell, extent)
        if not measured:
            assert cursor == before
            continue
        assert cursor is not None
        clicked = window.first_step + (2 * cell + 1) * window.steps // (2 * columns)
        assert abs(cursor.step - clicked) == min(abs(step - clicked) for step in measured)
        assert cursor.step in cursor.window_in(extent.live)
        if clicked in measured and columns <= window.steps:
            assert cursor.window_in(extent.live) == window
            assert window.column_of(cursor.step, columns) == cell


@given(any_series(), st.integers(0, 8), st.integers(1, 300), st.lists(st.sampled_from(KEYS), max_size=12))
def test_the_cursor_is_in_sight_at_a_step_that_has_a_value(
    series: Series, zoom: int, columns: int, keys: list[str]
) -> None:
    extent = extent_of(series, zoom, columns)
    cursor = pressed(extent, keys)
    if cursor is None:
        return
    window = cursor.window_in(extent.live)
    assert cursor.step in window
    assert window.first_step >= extent.whole.first_step
    assert window.last_step <= extent.whole.last_step
    assert window.steps >= 32
    reading = series.at(cursor.step)
    assert reading is not None
    assert reading.mean is not None


# ------------------------------------------------------------------------------------- the moves


LONG = series_of([1.0] * 10_000)


def validated(*steps: int) -> Extent:
    """A run of 1,000 steps with a value at some of them."""
    run = visible_window(series_of([1.0] * 1000), 0)
    return Extent(series_of([0.5 if step in steps else None for step in range(1, 1001)]), run, run, 70)


def test_keys_lead_the_cursor_where_was_approved(goldens: Goldens) -> None:
    back = "left_square_bracket"
    scripts = (
        *("left", "left left", f"right {back}", "right shift+left shift+right", "home", "end home"),
        *(f"end {back} {back} plus", f"end {back} plus plus plus plus", "end plus left"),
        *(f"end plus plus plus plus {back} {back} {back}", "end plus plus minus minus", "end plus plus 0"),
        "end" + " plus" * 12 + " left",
    )
    few = ("left", "left left", "left left left", "left left left left", "home right")
    lines = [
        f"{keys}: {pressed(extent, keys.split())}"
        for extent, some in ((extent_of(LONG), scripts), (validated(100, 500, 900), few))
        for keys in some
    ]
    loss = series_of([float(step) for step in range(1, 33)], buckets=8, recent=2)
    scale = series_of([None] * 16 + [4.0] * 2 + [8.0] * 14, buckets=8, recent=2)
    switches = (PrecisionSwitch(1, "fp32"), PrecisionSwitch(17, "fp16"))
    broken = series_of([math.inf, None, 1.0, math.nan, None, None, 1.0], buckets=4, recent=1)
    for view, series, steps in (
        (SessionView(loss=loss, loss_scale=scale, switches=switches), loss, (1, 18, 32)),
        (SessionView(loss=broken), broken, (1, 3, 5)),
    ):
        lines += [" | ".join(words(cursor_line(view, series, step, units.loss))) for step in steps]
    goldens.check("scripts/cursor", "\n".join(lines))


@given(any_series(), st.data(), st.integers(0, 90), st.integers(0, 12))
def test_its_line_stands_in_the_column_of_its_step(
    series: Series, data: st.DataObject, width: int, height: int
) -> None:
    window = data.draw(windows_near(series))
    step = data.draw(st.integers(series.first_step - 60, series.last_step + 60))
    canvas = Canvas(width, height)
    draw_cursor(canvas, step, window)
    drawn = {x for line in canvas.lines() for x, sign in enumerate(line) if sign == "│"}
    shows = step in window and width > GUTTER and height > 0
    assert drawn == ({GUTTER + window.column_of(step, width - GUTTER)} if shows else set())
