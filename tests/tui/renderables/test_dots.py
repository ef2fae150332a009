"""Lines and areas as dots, and dots as braille."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from amptui.telemetry.view import Counts
from amptui.tui.renderables.columns import Bools
from amptui.tui.renderables.dots import area_dots, braille, line_dots

HEIGHT = 16
rows = arrays(np.int64, st.integers(1, 30), elements=st.integers(0, HEIGHT - 1))


def sizes(height: int, width: int) -> tuple[int, int]:
    return height * 4, width * 2


@given(arrays(np.bool_, st.builds(sizes, st.integers(0, 4), st.integers(0, 6))))
def test_braille_has_the_dots_it_was_given(dots: Bools) -> None:
    # The dots' order in Unicode's chart of braille patterns: 1 2 3 7 in the left column, 4 5 6 8 right.
    numbers = [[1, 4], [2, 5], [3, 6], [7, 8]]
    characters = braille(dots)
    assert characters.shape == (dots.shape[0] // 4, dots.shape[1] // 2)
    for (y, x), code_point in np.ndenumerate(characters):
        cell = dots[4 * y : 4 * y + 4, 2 * x : 2 * x + 2]
        bits = sum(1 << numbers[dy][dx] - 1 for (dy, dx), dot in np.ndenumerate(cell) if dot)
        assert code_point == (0x2800 + bits if bits else ord(" "))


@given(rows)
def test_a_line_is_connected_one_dot_thick_and_passes_its_points(points: Counts) -> None:
    dots = line_dots(points, np.ones(len(points), np.bool_), HEIGHT)
    low, high = dots.argmax(axis=0), HEIGHT - 1 - dots[::-1].argmax(axis=0)
    assert dots[points, np.arange(len(points))].all()
    assert (dots.sum(axis=0) == high - low + 1).all(), "no hole in a column"
    gaps = np.maximum(low[1:] - high[:-1], low[:-1] - high[1:])
    assert (gaps <= 1).all(), "neighbouring columns touch"


@given(rows)
def test_a_falling_line_has_one_dot_in_every_row_it_passes(points: Counts) -> None:
    points = np.sort(points)
    dots = line_dots(points, np.ones(len(points), np.bool_), HEIGHT)
    level = np.isin(np.arange(HEIGHT), points[1:][np.diff(points) == 0])
    in_row = dots.sum(axis=1)
    passed = (np.arange(HEIGHT) >= points[0]) & (np.arange(HEIGHT) <= points[-1])
    assert (in_row[passed & ~level] == 1).all()
    assert (in_row[~passed] == 0).all()


def test_a_line_does_not_cross_columns_that_are_not_drawn() -> None:
    dots = line_dots(np.array([0, 7, 7]), np.array([True, False, True]), 8)
    assert np.argwhere(dots).tolist() == [[0, 0], [7, 2]]


@given(rows, st.integers(0, HEIGHT), st.sampled_from([1, 4]))
def test_an_area_is_evenly_sparse_in_every_column(top: Counts, tall: int, one_in: int) -> None:
    bottom = np.minimum(top + tall, HEIGHT - 1)
    dots = area_dots(top, bottom, np.ones(len(top), np.bool_), HEIGHT, one_in=one_in)
    for column, (first, last) in enumerate(zip(top, bottom, strict=True)):
        chosen = np.flatnonzero(dots[:, column])
        assert ((first <= chosen) & (chosen <= last)).all()
        assert len(chosen) >= (last - first + 1) // one_in
        assert len(chosen) <= -(-(last - first + 1) // one_in) or first == last
        if first == last:
            assert len(chosen) == 1


@pytest.mark.parametrize("width", [0, 1])
def test_one_or_no_column_can_be_drawn(width: int) -> None:
    nothing, drawn = np.zeros(width, np.int64), np.ones(width, np.bool_)
    assert line_dots(nothing, drawn, 4).shape == (4, width)
    assert area_dots(nothing, nothing, drawn, 4, one_in=4).shape == (4, width)
