"""Curves: what is drawn, marked and labelled, its sticky limits, and the dots it is drawn of."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from amptui.base import units
from amptui.telemetry.axis import Axis, Kind
from amptui.telemetry.view import Counts, Series
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.columns import Bools
from amptui.tui.renderables.plot import CurvePlot, YLimits, area_dots, braille, line_dots
from amptui.tui.renderables.step_window import GUTTER, Window
from tests.tui.renderables.tracks import any_series, any_switches, series_of, windows_near


def labels(canvas: Canvas) -> list[str]:
    return [line[:GUTTER].strip() for line in canvas.lines()]


@given(
    st.data(),
    st.integers(0, 40),
    st.integers(0, 9),
    st.sampled_from(["linear", "log10", "log2"]),
    st.booleans(),
    st.booleans(),
    any_series(),
)
def test_any_series_in_any_window_on_any_canvas_can_be_drawn(
    data: st.DataObject, width: int, height: int, kind: Kind, band: bool, ascii_only: bool, series: Series
) -> None:
    plot = CurvePlot(units.loss, band=band)
    for _ in range(2):
        canvas = Canvas(width, height, ascii_only=ascii_only)
        window, switches = data.draw(windows_near(series)), data.draw(any_switches(series))
        plot.draw(canvas, series, window=window, switches=switches, kind=kind)
        for line in canvas.lines():
            assert len(line) == width
            assert line.isascii() or not ascii_only


@pytest.mark.parametrize(("height", "count"), [(1, 1), (2, 2), (4, 2), (5, 3), (8, 3), (12, 6)])
def test_labels_fall_by_equal_steps_and_have_a_free_line_between(height: int, count: int) -> None:
    canvas = Canvas(58, height)
    CurvePlot(units.loss).draw(canvas, series_of([0.0, 1.0]), window=Window(1, 2), switches=())
    written = [(row, float(label)) for row, label in enumerate(labels(canvas)) if label]
    assert len(written) == count
    assert np.diff([value for _, value in written]) == pytest.approx(-1 / max(1, count - 1))
    if height > 2:
        assert all(below - above > 1 for (above, _), (below, _) in pairwise(written))


# ------------------------------------------------------------------------------ limits

finite = st.floats(-1e300, 1e300) | st.floats(-100, 100) | st.sampled_from([0.0, 5e-324, -1e-310, 1.0])


def test_limits_stay_while_they_fit_and_follow_when_they_do_not() -> None:
    limits = YLimits()
    assert limits.axis(0.05, 2.3) == Axis(0, 2.5)
    assert limits.axis(0.05, 2.4) == Axis(0, 2.5)
    assert limits.axis(0.05, 1.3) == Axis(0, 2.5), "more than half of the height is used"
    assert limits.axis(0.05, 2.6) == Axis(0, 3), "a value fell outside"
    assert limits.axis(0.05, 2.4) == Axis(0, 3), "no return for a little"
    assert limits.axis(0.05, 0.9) == Axis(0, 1), "less than half of the height was used"
    assert limits.axis(0.05, 0.9, "log10") == Axis(0.05, 1, "log10"), "another kind of axis"


@given(
    st.lists(st.tuples(finite, finite), min_size=1, max_size=20), st.sampled_from(["linear", "log10", "log2"])
)
def test_the_same_values_never_change_the_limits(pairs: list[tuple[float, float]], kind: Kind) -> None:
    limits = YLimits()
    for pair in pairs:
        axis = limits.axis(min(pair), max(pair), kind)
        assert limits.axis(min(pair), max(pair), kind) == axis


# -------------------------------------------------------------------------------- dots

DOTS_HIGH = 16
dot_rows = arrays(np.int64, st.integers(1, 30), elements=st.integers(0, DOTS_HIGH - 1))


@given(
    arrays(
        np.bool_,
        st.builds(lambda height, width: (4 * height, 2 * width), st.integers(0, 4), st.integers(0, 6)),
    )
)
def test_braille_has_the_dots_it_was_given(dots: Bools) -> None:
    # The dots' order in Unicode's chart of braille patterns: 1 2 3 7 in the left column, 4 5 6 8 right.
    numbers = [[1, 4], [2, 5], [3, 6], [7, 8]]
    characters = braille(dots)
    assert characters.shape == (dots.shape[0] // 4, dots.shape[1] // 2)
    for (y, x), code_point in np.ndenumerate(characters):
        cell = dots[4 * y : 4 * y + 4, 2 * x : 2 * x + 2]
        bits = sum(1 << numbers[dy][dx] - 1 for (dy, dx), dot in np.ndenumerate(cell) if dot)
        assert code_point == (0x2800 + bits if bits else ord(" "))


@given(dot_rows)
def test_a_line_is_connected_one_dot_thick_and_passes_its_points(points: Counts) -> None:
    dots = line_dots(points, np.ones(len(points), np.bool_), DOTS_HIGH)
    low, high = dots.argmax(axis=0), DOTS_HIGH - 1 - dots[::-1].argmax(axis=0)
    assert dots[points, np.arange(len(points))].all()
    assert (dots.sum(axis=0) == high - low + 1).all(), "no hole in a column"
    gaps = np.maximum(low[1:] - high[:-1], low[:-1] - high[1:])
    assert (gaps <= 1).all(), "neighbouring columns touch"


@given(dot_rows)
def test_a_falling_line_has_one_dot_in_every_row_it_passes(points: Counts) -> None:
    points = np.sort(points)
    dots = line_dots(points, np.ones(len(points), np.bool_), DOTS_HIGH)
    level = np.isin(np.arange(DOTS_HIGH), points[1:][np.diff(points) == 0])
    in_row = dots.sum(axis=1)
    crossed = (np.arange(DOTS_HIGH) >= points[0]) & (np.arange(DOTS_HIGH) <= points[-1])
    assert (in_row[crossed & ~level] == 1).all()
    assert (in_row[~crossed] == 0).all()


def test_a_line_does_not_cross_columns_that_are_not_drawn() -> None:
    dots = line_dots(np.array([0, 7, 7]), np.array([True, False, True]), 8)
    assert np.argwhere(dots).tolist() == [[0, 0], [7, 2]]


@given(dot_rows, st.integers(0, DOTS_HIGH), st.sampled_from([1, 4]))
def test_an_area_is_evenly_sparse_in_every_column(top: Counts, tall: int, one_in: int) -> None:
    bottom = np.minimum(top + tall, DOTS_HIGH - 1)
    dots = area_dots(top, bottom, np.ones(len(top), np.bool_), DOTS_HIGH, one_in=one_in)
    for column, (first, last) in enumerate(zip(top, bottom, strict=True)):
        places = np.flatnonzero(dots[:, column])
        assert ((first <= places) & (places <= last)).all()
        assert len(places) >= (last - first + 1) // one_in
        assert len(places) <= -(-(last - first + 1) // one_in) or first == last
        if first == last:
            assert len(places) == 1
