import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Canvas
from amptui.tui.renderables.bars import draw_bar, draw_progress
from amptui.tui.style import Style

fractions = st.none() | st.floats()


def bar(fraction: float | None, width: int = 8) -> Canvas:
    canvas = Canvas(width, 1)
    draw_bar(canvas, 0, 0, width, fraction, Style.FP16)
    return canvas


def progress(fraction: float | None, width: int = 8, *, ascii_only: bool = False) -> Canvas:
    canvas = Canvas(width, 1, ascii_only=ascii_only)
    draw_progress(canvas, 0, 0, width, fraction, Style.FP32)
    return canvas


@pytest.mark.parametrize(
    ("fraction", "drawn"),
    [
        (None, "▱▱▱▱▱▱▱▱"),
        (float("nan"), "▱▱▱▱▱▱▱▱"),
        (0, "▱▱▱▱▱▱▱▱"),
        (0.001, "▰▱▱▱▱▱▱▱"),
        (0.5, "▰▰▰▰▱▱▱▱"),
        (0.999, "▰▰▰▰▰▰▰▱"),
        (1, "▰▰▰▰▰▰▰▰"),
        (1.7, "▰▰▰▰▰▰▰▰"),
        (-1, "▱▱▱▱▱▱▱▱"),
    ],
)
def test_a_bar_looks_empty_only_at_0_and_full_only_at_1(fraction: float | None, drawn: str) -> None:
    assert bar(fraction).lines() == [drawn]


@pytest.mark.parametrize(
    ("fraction", "drawn"),
    [
        (None, "────────"),
        (0, "────────"),
        (0.01, "╸───────"),
        (0.5, "━━━━────"),
        (0.56, "━━━━╸───"),
        (0.999, "━━━━━━━╸"),
        (1, "━━━━━━━━"),
    ],
)
def test_progress_is_shown_to_half_a_cell(fraction: float | None, drawn: str) -> None:
    assert progress(fraction).lines() == [drawn]


def test_what_is_done_has_the_ink_and_the_rest_is_dim() -> None:
    assert bar(0.5).styles.tolist() == [[Style.FP16] * 4 + [Style.DIM] * 4]
    assert progress(0.56).styles.tolist() == [[Style.FP32] * 5 + [Style.DIM] * 3]


def test_progress_without_utf8_is_told_by_its_signs() -> None:
    assert progress(0.5, ascii_only=True).lines() == ["====----"]


@given(fractions, fractions, st.integers(0, 30))
def test_more_is_never_shown_as_less(one: float | None, other: float | None, width: int) -> None:
    def filled(fraction: float | None) -> tuple[int, int]:
        done = progress(fraction, width).lines()[0]
        return bar(fraction, width).lines()[0].count("▰"), 2 * done.count("━") + done.count("╸")

    known = sorted(fraction for fraction in (one, other) if fraction is not None and not math.isnan(fraction))
    amounts = [filled(fraction) for fraction in known]
    assert amounts == sorted(amounts)
    assert all(0 <= cells <= width and 0 <= halves <= 2 * width for cells, halves in amounts)


@given(fractions, st.integers(-9, 9), st.integers(-2, 2), st.integers(-3, 20))
def test_bars_are_clipped_like_all_drawing(fraction: float | None, x: int, y: int, width: int) -> None:
    canvas, whole = Canvas(5, 1), Canvas(40, 5)
    for draw in (draw_bar, draw_progress):
        draw(canvas, x, y, width, fraction, Style.GOOD)
        draw(whole, x + 9, y + 2, width, fraction, Style.GOOD)
        assert canvas.lines()[0] == whole.lines()[2][9:14]
