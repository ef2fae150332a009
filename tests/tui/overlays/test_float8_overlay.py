"""The operands of float8's products on the screen: the worst first, each with all its numbers, bin by bin."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import Float8LayerWindow, Float8Operand, Float8Role, Float8Window
from amptui.telemetry.float8 import summary_of_float8
from amptui.telemetry.view import EMPTY_VIEW, NumericsView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.float8_overlay import ORDERS, Float8Operands
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer
from amptui.tui.renderables.float8_histogram import draw_operand, least_width
from amptui.tui.renderables.step_window import GUTTER
from amptui.tui.style import Style
from tests.telemetry import record_samples as samples
from tests.tui import views
from tests.tui.overlays.opened import drawn, lines, text

both_sizes = pytest.mark.parametrize("size", [(80, 24), (120, 40)])

LOST = replace(
    samples.float8_operand("weight", 0.968),
    elements=4096,
    zeros=0.002,
    flushed=0.9375,
    subnormal=0.0123,
    error=0.0213,
    channel=3,
    channel_excess=997_000.0,
    first_exponent=-14,
    counts=(100, 900, 1500, 1340, 150, 50, *(0,) * 15, 10, 38),
)


def operand(role: Float8Role, channel_error: float, **changes: Any) -> Float8Operand:
    counted = {"first_exponent": -12, "counts": (4, *(52,) * 18, 60), **changes}
    return samples.float8_operand(role, channel_error, **counted)


def window(**changes: Any) -> Float8Window:
    qkv = operand("input", 0.026), operand("weight", 0.025), operand("gradient", 0.05, format="e5m2")
    fc = operand("input", 0.031, flushed=0.2), LOST, operand("gradient", 0.3)
    layers = (
        Float8LayerWindow(name="blocks.0.attn.qkv", operands=qkv),
        Float8LayerWindow(name="blocks.0.mlp.fc", operands=fc),
        Float8LayerWindow(name="head", operands=(operand("input", math.nan, zeros=1.0, counts=()),)),
    )
    facts: dict[str, Any] = {"precision": "fp8-emulated", "layers": layers, **changes}
    return replace(samples.float8_window(1200), **facts)


def view_of(shown: Float8Window) -> SessionView:
    numerics = NumericsView(float8=summary_of_float8(shown), float8_window=shown)
    return replace(views.compared(), numerics=numerics)


VIEW = view_of(window())


def row(shown: list[str], name: str) -> list[str]:
    return next(line for line in shown if f" {name} " in line).strip("│").split()


@both_sizes
def test_the_worst_operand_is_first_and_named_with_its_channel(size: tuple[int, int]) -> None:
    shown = lines(Float8Operands(), VIEW, *size)
    assert "step 1,200: FP8 emulated, rowwise" in shown[0]
    said = " ".join(line.strip("│ ") for line in shown[1:3])
    assert "FP8 emulated loses most of the weight of blocks.0.mlp.fc and 1 other operand" in said
    assert "channel 3 is 997 k times the median one" in said
    table = shown[next(i for i, line in enumerate(shown) if "7 operands, worst first" in line) :]
    assert row(table, "blocks.0.mlp.fc weight")[:3] == ["⚠", "blocks.0.mlp.fc", "weight"]
    assert "blocks.0.mlp.fc weight" in table[1]
    assert "whole 2.1%" in " ".join(table)
    for number in ("E4M3", "96.8%", "93.8%", "1.2%", "0%"):
        assert number in table[1]


def test_a_wide_table_has_zeros_and_channel_as_well() -> None:
    cells = row(lines(Float8Operands(), VIEW, 140, 40), "blocks.0.mlp.fc weight")
    assert {"E4M3", "0.20%", "×997"} <= set(cells)
    assert "E5M2" in row(lines(Float8Operands(), VIEW, 140, 40), "blocks.0.attn.qkv gradient")


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40), (200, 60)])
def test_every_number_of_an_operand_is_on_its_page(size: tuple[int, int]) -> None:
    overlay = Float8Operands()
    overlay.press("enter", VIEW)
    shown = " ".join(line.strip("│ ") for line in lines(overlay, VIEW, *size))
    for words in (
        "the weight of blocks.0.mlp.fc in E4M3: 4,096 elements",
        "median channel 96.8%",
        "whole 2.1%",
        "zero 0.20%",
        "flushed 93.8%",
        "subnormal 1.2%",
        "normal 4.8%",
        "saturated 0%",
        "scale 2.00",
        "largest value in 3 997 k times the median one",
    ):
        assert words in " ".join(shown.split())


def test_the_error_of_the_median_row_is_shown_where_it_judges() -> None:
    tokens = Float8LayerWindow(name="fc", operands=(operand("input", 0.021, row_error=0.984),))
    shown, overlay = view_of(window(layers=(tokens,))), Float8Operands()
    assert row(lines(overlay, shown), "fc input")[3:5] == ["E4M3", "98.4%"]
    said = " ".join(line.strip("│ ") for line in lines(overlay, shown)[1:3])
    assert "some rows (tokens or samples) are far above the others" in said
    overlay.press("enter", shown)
    assert "median row 98.4%" in " ".join(text(overlay, shown).split())


def test_all_operands_can_be_selected_and_the_selected_one_is_shown() -> None:
    overlay = Float8Operands()
    seen = set()
    for number in range(1, 8):
        shown = lines(overlay, VIEW)
        assert f"{number} of 7" in shown[-1]
        seen.add(next(line for line in shown if " elements" in line and " in E" in line).strip("│ "))
        assert overlay.press("down", VIEW) == STAY
    assert len(seen) == 7
    assert "7 of 7" in lines(overlay, VIEW)[-1]
    overlay.press("home", VIEW)
    assert "1 of 7" in lines(overlay, VIEW)[-1]


def test_the_selected_operand_stays_selected_in_the_next_window() -> None:
    overlay = Float8Operands()
    overlay.press("down", VIEW)
    selected = next(line for line in lines(overlay, VIEW) if " in E" in line)
    later = view_of(window(step=1300, layers=tuple(reversed(window().layers))))
    assert selected in lines(overlay, later)


def test_a_low_screen_scrolls_to_the_selected_operand() -> None:
    overlay = Float8Operands()
    for _ in range(5):
        overlay.press("pagedown", VIEW)
        shown = text(overlay, VIEW, 40, 12)
    assert "head input" in shown


def test_a_key_goes_through_the_orders() -> None:
    overlay, firsts = Float8Operands(), []
    for order in (*ORDERS, next(iter(ORDERS))):
        shown = lines(overlay, VIEW)
        title = next(i for i, line in enumerate(shown) if f"7 operands, {order}" in line)
        firsts.append(" ".join(shown[title + 1].strip("│").split()[1:3]))
        overlay.press("s", VIEW)
    worst, model = "blocks.0.mlp.fc weight", "blocks.0.attn.qkv input"
    assert firsts == [worst, model, worst, worst]


def test_an_operand_of_zeros_loses_nothing() -> None:
    shown = view_of(window(layers=window().layers[2:]))
    assert row(lines(Float8Operands(), shown), "head input")[0] == ">"
    assert "nan" not in text(Float8Operands(), shown)
    assert "all elements are zero" in text(Float8Operands(), shown)


def test_what_is_not_measured_yet_is_said() -> None:
    assert "not measured yet" in text(Float8Operands(), EMPTY_VIEW)
    older = view_of(
        window(layers=(Float8LayerWindow(name="a", operands=(samples.float8_operand("input", 0.02),)),))
    )
    assert "no counts by exponent were recorded" in text(Float8Operands(), older)


@both_sizes
def test_how_it_differs_from_float16s_histogram_is_said(size: tuple[int, int]) -> None:
    shown = text(Float8Operands(), VIEW, *size)
    assert "float16's histogram" in shown
    assert "h float16" in shown
    assert Float8Operands().press("h", VIEW) == Answer(close=True, action="show_float16")


@pytest.mark.parametrize("key", ["escape", "q", "f"])
def test_keys_close_it(key: str) -> None:
    assert Float8Operands().press(key, VIEW) == CLOSE


def test_escape_leads_from_an_operand_to_the_table() -> None:
    overlay = Float8Operands()
    overlay.press("enter", VIEW)
    assert overlay.press("escape", VIEW) == STAY
    assert "7 operands, worst first" in text(overlay, VIEW)


# ----------------------------------------------------------------------------------- the histogram


def columns_of(shown: Canvas, style: Style) -> list[int]:
    """Of the bars, those with ink in that style."""
    rows = shown.height - 2
    return [
        x
        for x in range(GUTTER, shown.width)
        if any(shown.chars[y, x] == ord("█") and shown.styles[y, x] == style for y in range(rows))
    ]


@pytest.mark.parametrize(
    ("format_", "exponent", "style"),
    [
        ("e4m3", -11, Style.WARNING),
        ("e4m3", -10, Style.TEXT),
        ("e4m3", -7, Style.TEXT),
        ("e4m3", -6, Style.GOOD),
        ("e4m3", 8, Style.GOOD),
        ("e4m3", 9, Style.ERROR),
        ("e4m3", 16, Style.ERROR),
        ("e4m3", -42, Style.WARNING),
        ("e5m2", -18, Style.WARNING),
        ("e5m2", -17, Style.TEXT),
        ("e5m2", -14, Style.GOOD),
        ("e5m2", 15, Style.GOOD),
        ("e5m2", 16, Style.ERROR),
    ],
)
@pytest.mark.parametrize("width", [60, 76, 116, 196])
def test_each_exponent_is_drawn_in_its_zone(format_: str, exponent: int, style: Style, width: int) -> None:
    canvas = Canvas(width, 10)
    one = operand("input", 0.1, format=format_, elements=50, first_exponent=exponent, counts=(50,))
    draw_operand(canvas, one)
    inked = columns_of(canvas, style)
    assert inked == list(range(inked[0], inked[0] + (width - GUTTER) // min(52, width - GUTTER)))
    for other in {Style.WARNING, Style.TEXT, Style.GOOD, Style.ERROR} - {style}:
        assert not columns_of(canvas, other)


def test_what_lies_below_the_axis_has_an_arrow() -> None:
    for first, arrow in ((-42, False), (-43, True)):
        canvas = Canvas(60, 10)
        draw_operand(canvas, operand("input", 0.1, first_exponent=first, counts=(1, 1, 1)))
        assert ("←" in canvas.lines()[-2]) == arrow


@given(
    width=st.integers(1, 200),
    height=st.integers(1, 40),
    first=st.integers(-42, 10),
    counts=st.lists(st.integers(0, 10**9), max_size=7),
    format_=st.sampled_from(["e4m3", "e5m2"]),
)
def test_every_size_is_drawn_or_left_out(
    width: int, height: int, first: int, counts: list[int], format_: str
) -> None:
    canvas = Canvas(width, height)
    one = operand(
        "input",
        0.1,
        format=format_,
        elements=max(1, sum(counts)),
        first_exponent=first,
        counts=tuple(counts),
    )
    draw_operand(canvas, one)
    is_drawn = any(line.strip() for line in canvas.lines())
    assert is_drawn == (width >= least_width(one.format) and height >= 5)


@pytest.mark.ci
def test_the_page_is_drawn_in_any_size() -> None:
    for width in range(40, 130, 7):
        for height in range(12, 45, 3):
            for keys in ((), ("enter",), ("end",)):
                overlay = Float8Operands()
                for key in keys:
                    overlay.press(key, VIEW)
                drawn(overlay, VIEW, width, height)
