"""What holds for every ribbon, bar, interval, histogram and curve in one line, of any size."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import Float16Window
from amptui.telemetry.view import Series
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.float16_histogram import LEGEND_LINES, MARGIN, draw_exponents, width_beside
from amptui.tui.renderables.gauges import INTERVAL_LINES, draw_bar, draw_interval, draw_progress
from amptui.tui.renderables.ribbon import draw_ribbon, draw_step_axis
from amptui.tui.renderables.step_window import GUTTER, Window
from amptui.tui.style import Style
from tests.tui.renderables.drawings import EVERYWHERE, exponents
from tests.tui.renderables.tracks import any_series, any_switches, windows_near

# ------------------------------------------------------------------------------------- the ribbon


@given(any_series(), st.integers(0, 40), st.integers(0, 2), st.booleans(), st.data())
def test_any_run_has_a_ribbon_and_an_axis(
    series: Series, width: int, height: int, ascii_only: bool, data: st.DataObject
) -> None:
    window, switches = data.draw(windows_near(series)), data.draw(any_switches(series))
    canvas = Canvas(width, height, ascii_only=ascii_only)
    draw_ribbon(canvas, window=window, switches=switches, skips=series, nonfinite=series)
    draw_step_axis(canvas, window=window)
    assert all(len(text) == width and (text.isascii() or not ascii_only) for text in canvas.lines())


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 250))
def test_labels_of_the_axis_are_steps_of_the_window_in_order(first: int, steps: int, columns: int) -> None:
    canvas = Canvas(GUTTER + columns, 1)
    draw_step_axis(canvas, window=Window(first, first + steps - 1))
    words = canvas.lines()[0][GUTTER:].split()
    if len(words) > 1:
        numbers = [int(word.replace(",", "")) for word in words]
        assert numbers == sorted(set(numbers)) or numbers == [first, first]
        assert (numbers[0], numbers[-1]) == (first, first + steps - 1)


# ------------------------------------------------------------------------- bars and intervals


fractions = st.none() | st.floats()


def bar(fraction: float | None, width: int) -> Canvas:
    canvas = Canvas(width, 1)
    draw_bar(canvas, 0, 0, width, fraction, Style.FP16)
    return canvas


def progress(fraction: float | None, width: int) -> Canvas:
    canvas = Canvas(width, 1)
    draw_progress(canvas, 0, 0, width, fraction, Style.FP32)
    return canvas


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


def ratio_drawn(ratio: float, low: float | None, high: float | None, width: int = 31) -> list[str]:
    canvas = Canvas(width, INTERVAL_LINES)
    draw_interval(canvas, ratio, low, high, style=Style.FP16)
    return canvas.lines()


@given(st.floats(1e-3, 1e3), st.floats(1.0, 10.0), st.floats(1.0, 10.0), st.integers(3, 120))
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


# --------------------------------------------------------------------------------- histograms


def drawn(shown: Float16Window, width: int = 76, height: int = 11, *, ascii_only: bool = False) -> Canvas:
    canvas = Canvas(width, height, ascii_only=ascii_only)
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
    heights = bars(drawn(shown, height=rows + LEGEND_LINES))
    exponents = {min(17, max(-42, i - 60)) for i, count in enumerate(shown.counts) if count}
    assert {column - 42 for column, height in enumerate(heights) if height} == exponents


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 30))
def test_more_elements_never_have_a_lower_bar(one: int, other: int, rows: int) -> None:
    heights = bars(drawn(exponents({0: one, 5: other}), height=rows + LEGEND_LINES))
    assert (heights[42] >= heights[47]) if one >= other else (heights[42] <= heights[47])
    assert max(heights) <= 8 * rows


@given(any_window, st.integers(0, 200), st.integers(0, 40), st.booleans())
def test_every_size_is_drawn(shown: Float16Window, width: int, height: int, ascii_only: bool) -> None:
    canvas = drawn(shown, width, height, ascii_only=ascii_only)
    assert all(len(line) == width for line in canvas.lines())
    assert not ascii_only or "".join(canvas.lines()).isascii()


@given(st.integers(104, 250), st.integers(0, 60))
def test_every_exponent_has_a_bar_beside_other_panels(width: int, others: int) -> None:
    wanted = width_beside(width, others)
    assert wanted >= GUTTER + MARGIN + 50
    assert wanted <= max(width - others, GUTTER + MARGIN + 50)
    full = drawn(EVERYWHERE, wanted)
    assert all(height > 0 for height in bars(full))
