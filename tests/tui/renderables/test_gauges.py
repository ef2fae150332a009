"""Bars, large digits, and a ratio with its interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Canvas
from amptui.tui.renderables.gauges import (
    DIGIT_LINES,
    INTERVAL_LINES,
    draw_bar,
    draw_digits,
    draw_interval,
    draw_progress,
)
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


def test_what_is_done_has_the_style_and_the_rest_is_dim() -> None:
    assert bar(0.5).styles.tolist() == [[Style.FP16] * 4 + [Style.DIM] * 4]
    assert progress(0.56).styles.tolist() == [[Style.FP32] * 5 + [Style.DIM] * 3]


def test_progress_without_utf8_has_different_signs() -> None:
    assert progress(0.5, ascii_only=True).lines() == ["====----"]


@given(fractions, fractions, st.integers(0, 30))
def test_a_larger_fraction_never_looks_smaller(one: float | None, other: float | None, width: int) -> None:
    def filled(fraction: float | None) -> tuple[int, int]:
        line = progress(fraction, width).lines()[0]
        return bar(fraction, width).lines()[0].count("▰"), 2 * line.count("━") + line.count("╸")

    numbers = sorted(
        fraction for fraction in (one, other) if fraction is not None and not math.isnan(fraction)
    )
    amounts = [filled(fraction) for fraction in numbers]
    assert amounts == sorted(amounts)
    assert all(0 <= cells <= width and 0 <= halves <= 2 * width for cells, halves in amounts)


@given(fractions, st.integers(-9, 9), st.integers(-2, 2), st.integers(-3, 20))
def test_bars_are_clipped_like_all_drawing(fraction: float | None, x: int, y: int, width: int) -> None:
    canvas, whole = Canvas(5, 1), Canvas(40, 5)
    for draw in (draw_bar, draw_progress):
        draw(canvas, x, y, width, fraction, Style.GOOD)
        draw(whole, x + 9, y + 2, width, fraction, Style.GOOD)
        assert canvas.lines()[0] == whole.lines()[2][9:14]


def shown(number: str, *, ascii_only: bool = False) -> list[str]:
    canvas = Canvas(24, DIGIT_LINES, ascii_only=ascii_only)
    draw_digits(canvas, 0, 0, number, Style.GOOD)
    return [line.rstrip() for line in canvas.lines()]


def test_a_number_is_three_lines_high() -> None:
    assert shown("-1.6") == [
        "     ▄    ▄▄▄",
        "▄▄▄ ▀█    █▄▄",
        "    ▄█▄ ▄ █▄█",
    ]


def test_no_two_digits_look_alike() -> None:
    assert len({tuple(shown(digit)) for digit in "0123456789.-"}) == 12


@pytest.mark.parametrize("number", ["3.6", "-1.3", "16.0"])
def test_it_ends_where_it_says(number: str) -> None:
    canvas = Canvas(40, DIGIT_LINES)
    end = draw_digits(canvas, 2, 0, number, Style.GOOD)
    assert max(len(line.rstrip()) for line in canvas.lines()) == end


def test_without_utf8_it_is_the_plain_number() -> None:
    assert shown("-1.3", ascii_only=True) == ["", "", "-1.3"]


def test_it_is_clipped_like_all_drawing() -> None:
    canvas = Canvas(5, 2)
    draw_digits(canvas, -2, -1, "888", Style.GOOD)
    assert canvas.lines() == ["█ █▄█", "█ █▄█"]


def ratio_drawn(ratio: float, low: float | None, high: float | None, width: int = 31) -> list[str]:
    canvas = Canvas(width, INTERVAL_LINES)
    draw_interval(canvas, ratio, low, high, style=Style.FP16)
    return canvas.lines()


def test_a_faster_one_is_right_of_1() -> None:
    marks, labels = ratio_drawn(1.71, 1.5, 1.9)
    assert marks == "───────────────│────────├━━●━┤─"
    assert marks.index("│") == labels.index("1×") == 15
    assert labels.split() == ["0.50×", "1×", "2.00×"]


def test_a_slower_one_is_its_mirror_image() -> None:
    faster, slower = ratio_drawn(1.71, 1.5, 1.9)[0], ratio_drawn(1 / 1.71, 1 / 1.9, 1 / 1.5)[0]
    assert slower == faster[::-1].translate(str.maketrans("├┤", "┤├"))


def test_an_interval_around_1_crosses_it() -> None:
    assert "┼" in ratio_drawn(1.02, 0.97, 1.06)[0]


def test_without_an_interval_there_is_only_the_dot() -> None:
    assert set(ratio_drawn(1.71, None, None)[0]) == set("─│●")


def test_whiskers_too_long_for_the_axis_end_in_arrows() -> None:
    marks = ratio_drawn(1.71, 0.01, 90.0)[0]
    assert (marks[0], marks[-1]) == ("←", "→")
    assert "●" in marks


@pytest.mark.parametrize("width", [0, 1, 2, 3, 9, 14])
def test_narrow_canvases_are_drawn(width: int) -> None:
    assert all(len(line) == width for line in ratio_drawn(1.71, 1.6, 1.8, width))


@given(
    st.floats(1e-3, 1e3),
    st.floats(1.0, 10.0),
    st.floats(1.0, 10.0),
    st.integers(3, 120),
)
def test_the_dot_is_on_the_side_of_the_ratio_and_within_its_whiskers(
    ratio: float, below: float, above: float, width: int
) -> None:
    marks = ratio_drawn(ratio, ratio / below, ratio * above, width)[0].rstrip()
    middle, dot = len(marks) // 2, marks.index("●")
    assert (dot - middle) * math.log(ratio) >= 0
    ends = [i for i, mark in enumerate(marks) if mark in "├┤←→"]
    assert all(min([dot, *ends]) <= i <= max([dot, *ends]) for i, mark in enumerate(marks) if mark == "━")


@given(st.floats(1.0, 50.0), st.floats(1.0, 10.0))
def test_the_axis_does_not_follow_the_interval(ratio: float, reach: float) -> None:
    wide, narrow = ratio_drawn(ratio, ratio / reach, ratio * reach), ratio_drawn(ratio, ratio, ratio)
    assert wide[1] == narrow[1]
    assert wide[0].index("●") == narrow[0].index("●")
