"""The line of precisions and the step axis below a plot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.view import EMPTY_SERIES, PrecisionSwitch, Series
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.ribbon import draw_ribbon, draw_step_axis
from amptui.tui.renderables.step_window import GUTTER, Window
from amptui.tui.style import BOLD, Style
from tests.tui.renderables.tracks import any_series, any_switches, series_of, windows_near

FP32, AMP, FP32_AGAIN = (
    PrecisionSwitch(step, precision) for step, precision in ((1, "fp32"), (9, "fp16"), (17, "fp32"))
)


def ribbon(
    skipped: set[int],
    switches: tuple[PrecisionSwitch, ...] = (FP32, AMP, FP32_AGAIN),
    *,
    steps: int = 24,
    columns: int = 24,
    broken: set[int] | None = None,
) -> Canvas:
    """A ribbon of 24 steps in as many columns: step s stands in column s - 1."""
    canvas = Canvas(GUTTER + columns, 1)
    losses = [float("nan") if step in (broken or ()) else 1.0 for step in range(1, steps + 1)]
    draw_ribbon(
        canvas,
        window=Window(1, 24),
        switches=switches,
        skips=series_of([float(step in skipped) for step in range(1, steps + 1)]),
        nonfinite=None if broken is None else series_of(losses),
    )
    return canvas


def line(canvas: Canvas) -> str:
    assert canvas.lines()[0][:GUTTER] == " " * GUTTER
    return canvas.lines()[0][GUTTER:]


def style(canvas: Canvas, column: int) -> int:
    return int(canvas.styles[0, GUTTER + column])


def test_each_stretch_is_a_line_in_its_style_with_its_letter() -> None:
    canvas = ribbon(set())
    assert line(canvas) == "F▔▔▔▔▔▔▔A▔▔▔▔▔▔▔F▔▔▔▔▔▔▔"
    assert [style(canvas, column) for column in (0, 1, 8, 9, 16, 17)] == [
        Style.FP32 | BOLD,
        Style.FP32,
        Style.FP16 | BOLD,
        Style.FP16,
        Style.FP32 | BOLD,
        Style.FP32,
    ]


def test_a_skipped_step_is_a_cross_in_its_column() -> None:
    canvas = ribbon({12, 13})
    assert line(canvas) == "F▔▔▔▔▔▔▔A▔▔××▔▔▔F▔▔▔▔▔▔▔"
    assert style(canvas, 11) == Style.WARNING | BOLD


def test_a_skipped_step_of_several_columns_is_marked_in_all_of_them() -> None:
    assert line(ribbon({12}, columns=48)) == "F" + "▔" * 15 + "A▔▔▔▔▔××" + "▔" * 8 + "F" + "▔" * 15


def test_a_skip_at_the_switch_moves_the_letter() -> None:
    assert line(ribbon({9, 10})) == "F▔▔▔▔▔▔▔××A▔▔▔▔▔F▔▔▔▔▔▔▔"


def test_if_every_step_was_skipped_the_letter_replaces_the_first_mark() -> None:
    canvas = ribbon(set(range(9, 17)))
    assert line(canvas) == "F▔▔▔▔▔▔▔A×××××××F▔▔▔▔▔▔▔"
    assert style(canvas, 8) == Style.WARNING | BOLD


def test_a_step_with_nan_is_a_red_cross_even_where_it_was_skipped() -> None:
    canvas = ribbon({12}, broken={12, 20})
    assert line(canvas) == "F▔▔▔▔▔▔▔A▔▔×▔▔▔▔F▔▔×▔▔▔▔"
    assert style(canvas, 11) == style(canvas, 19) == Style.ERROR | BOLD


def test_of_several_switches_in_a_column_the_last_has_the_letter() -> None:
    switches = (FP32, AMP, PrecisionSwitch(10, "bf16"), PrecisionSwitch(11, "ieee"))
    assert line(ribbon(set(), switches, columns=6)) == "F▔I▔▔▔"


def test_the_ribbon_ends_with_the_newest_step() -> None:
    assert line(ribbon(set(), steps=12)) == "F▔▔▔▔▔▔▔A▔▔▔" + " " * 12
    assert line(ribbon(set(), steps=8)) == "F▔▔▔▔▔▔▔" + " " * 16


def test_a_stretch_that_began_before_the_window_has_its_letter_at_the_left_end() -> None:
    canvas = Canvas(GUTTER + 8, 1)
    draw_ribbon(canvas, window=Window(101, 108), switches=(FP32, AMP), skips=series_of([0.0] * 108))
    assert line(canvas) == "A▔▔▔▔▔▔▔"


def test_steps_of_an_unknown_precision_are_a_dim_line_without_a_letter() -> None:
    canvas = ribbon(set(), (AMP,))
    assert line(canvas) == "▔▔▔▔▔▔▔▔A▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔"
    assert style(canvas, 0) == Style.DIM


def test_without_a_series_of_skips_the_whole_window_is_drawn() -> None:
    canvas = Canvas(GUTTER + 8, 1)
    draw_ribbon(canvas, window=Window(1, 8), switches=(FP32,), skips=EMPTY_SERIES)
    assert line(canvas) == "F▔▔▔▔▔▔▔"


@given(any_series(), st.integers(0, 40), st.integers(0, 2), st.booleans(), st.data())
def test_any_run_has_a_ribbon_and_an_axis(
    series: Series, width: int, height: int, ascii_only: bool, data: st.DataObject
) -> None:
    window, switches = data.draw(windows_near(series)), data.draw(any_switches(series))
    canvas = Canvas(width, height, ascii_only=ascii_only)
    draw_ribbon(canvas, window=window, switches=switches, skips=series, nonfinite=series)
    draw_step_axis(canvas, window=window)
    assert all(len(text) == width and (text.isascii() or not ascii_only) for text in canvas.lines())


@pytest.mark.parametrize(
    ("window", "columns", "axis"),
    [
        (Window(1, 1250), 60, "1                     500                    1,000     1,250"),
        (Window(899, 1210), 40, "899       1,000                    1,210"),
        (Window(1, 32), 12, "1         32"),
        (Window(1, 32), 4, "1   "),
        (Window(12_345_678, 22_345_677), 12, "12,345,678  "),
    ],
)
def test_the_axis_names_the_first_the_last_and_round_steps(window: Window, columns: int, axis: str) -> None:
    canvas = Canvas(GUTTER + columns, 1)
    draw_step_axis(canvas, window=window)
    assert line(canvas) == axis


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 250))
def test_labels_of_the_axis_are_steps_of_the_window_in_order(first: int, steps: int, columns: int) -> None:
    canvas = Canvas(GUTTER + columns, 1)
    draw_step_axis(canvas, window=Window(first, first + steps - 1))
    words = line(canvas).split()
    if len(words) > 1:
        numbers = [int(word.replace(",", "")) for word in words]
        assert numbers == sorted(set(numbers)) or numbers == [first, first]
        assert (numbers[0], numbers[-1]) == (first, first + steps - 1)
