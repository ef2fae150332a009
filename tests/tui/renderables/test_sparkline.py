"""A curve in one line: as many cells as fit, each the mean of its values, the newest at the right."""

import math

from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Canvas
from amptui.tui.renderables.sparkline import BLOCKS, cell_levels, draw_sparkline
from amptui.tui.style import Style

VALUES = st.lists(st.none() | st.floats(), max_size=60)


def drawn(values: list[float | None], width: int = 8, *, ascii_only: bool = False) -> str:
    canvas = Canvas(width + 2, 1, ascii_only=ascii_only)
    draw_sparkline(canvas, 1, 0, width, values, Style.TEXT)
    return canvas.lines()[0]


def test_a_rising_line_rises_from_the_lowest_block_to_the_highest() -> None:
    assert drawn([*map(float, range(8))]) == f" {BLOCKS} "


def test_few_values_stand_at_the_right() -> None:
    assert drawn([1.0, 3.0]) == "       ▁█ "


def test_a_flat_line_lies_in_the_middle() -> None:
    assert drawn([0.5] * 20) == " ▄▄▄▄▄▄▄▄ "


def test_each_cell_is_a_mean_of_what_was_measured() -> None:
    assert drawn([0.0, 2.0, 3.0, None, None, None], 3) == " ▁█  "


def test_what_is_not_finite_has_its_own_mark() -> None:
    assert drawn([1.0, math.nan, math.inf, 2.0], 4) == " ▁××█ "
    assert drawn([1.0, math.nan, 2.0, 2.0], 2) == " ▁█ ", "beside a finite value it is left out"


def test_without_utf8_it_is_ascii() -> None:
    assert drawn([*map(float, range(5)), math.nan], 6, ascii_only=True) == " _.-=^x "


@given(VALUES, st.integers(0, 40), st.integers(2, 8))
def test_the_levels_of_any_series_fit(values: list[float | None], width: int, levels: int) -> None:
    cells = cell_levels(values, width, levels)
    assert len(cells) == min(width, len(values))
    assert all(level is None or -1 <= level < levels for level in cells)
    assert all((level is None) == (value is None) for level, value in zip(cells, values, strict=False)) or (
        len(cells) < len(values)
    )


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=8))
def test_a_greater_value_never_lies_lower(values: list[float]) -> None:
    levels = cell_levels(values, 8, 8)
    for one, level in zip(values, levels, strict=True):
        for other, other_level in zip(values, levels, strict=True):
            assert level is not None
            assert other_level is not None
            assert one > other or level <= other_level
