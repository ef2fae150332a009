"""Text and fills on a canvas, and the changes between two frames."""

import unicodedata
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import BOLD, Style

ODD_CHARACTERS = "a é漢字👍🏽🇫🇷⣿×─…\x1b\x00\n\u0301\u200b\u200d\ufe0f\u0903\u1100\u1161\u202e\x9b\u3164\ud83d"
texts = st.text(max_size=12) | st.text(ODD_CHARACTERS, max_size=12) | st.text("ab ", max_size=12)
styles = st.sampled_from([Style.TEXT, Style.DIM, Style.FP16 | BOLD, Style.ERROR])
places = st.integers(-6, 20)
rects = st.builds(Rect, places, places, st.integers(-2, 20), st.integers(-2, 8))

Drawing = Callable[[Canvas], object]
text_calls: st.SearchStrategy[Drawing] = st.builds(
    partial,
    st.just(Canvas.text),
    x=places,
    y=st.integers(-1, 5),
    text=texts,
    style=styles,
    width=st.none() | st.integers(-1, 12),
    align=st.sampled_from(["left", "right"]),
)
fill_calls: st.SearchStrategy[Drawing] = st.builds(
    partial, st.just(Canvas.fill), rect=rects, character=st.sampled_from("▰ x"), style=styles
)
drawings = st.lists(text_calls | fill_calls, max_size=8)


def drawn(width: int, height: int, some_drawings: list[Drawing], *, ascii_only: bool = False) -> Canvas:
    canvas = Canvas(width, height, ascii_only=ascii_only)
    for draw in some_drawings:
        draw(canvas)
    return canvas


@given(st.integers(0, 18), st.integers(0, 4), drawings, st.booleans())
def test_every_line_is_as_wide_as_the_canvas_and_printable(
    width: int, height: int, some_drawings: list[Drawing], ascii_only: bool
) -> None:
    lines = drawn(width, height, some_drawings, ascii_only=ascii_only).lines()
    assert len(lines) == height
    for line in lines:
        assert cell_len(line) == width
        assert line == "" or line.isprintable()
        for character in line:  # none moves or joins another
            assert not unicodedata.category(character).startswith("M")
            assert not "🇦" <= character <= "🇿"
        assert line.isascii() or not ascii_only


@pytest.mark.parametrize(
    ("text", "width", "align", "shown"),
    [
        ("loss", 6, "left", "loss  "),
        ("loss", 6, "right", "  loss"),
        ("throughput", 6, "left", "throu…"),
        ("漢字x", 4, "left", "漢 …"),
        ("loss", 0, "left", ""),
        ("loss", 1, "left", "…"),
        ("\x1b[31mred", 8, "left", "?[31mred"),
    ],
)
def test_text_is_fitted_to_its_width(text: str, width: int, align: str, shown: str) -> None:
    canvas = Canvas(width, 1)
    draw = partial(canvas.text, 0, 0, text, width=width)
    (draw(align="right") if align == "right" else draw(align="left"))
    assert canvas.lines() == [shown]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("e\u0301\u0323|", "\u1eb9|"),
        ("🇫🇷 👍🏽 ❤\ufe0f", "FR 👍 ❤"),
        ("a\u202eb\u2066c\u200bd", "a?b?c?d"),
        ("\x9b31m\x1b]0;t\x07", "?31m?]0;t?"),
        ("\u3164\ud83d", "??"),
        ("[bold]x[/]", "[bold]x[/]"),
    ],
)
def test_untrusted_text_keeps_its_columns_and_controls_nothing(text: str, shown: str) -> None:
    canvas = Canvas(40, 1)
    canvas.text(0, 0, text)
    assert canvas.lines()[0].rstrip() == shown


@given(st.integers(0, 18), drawings, drawings, st.integers(0, 8))
def test_the_changes_make_the_new_frame_of_the_previous_one(
    width: int, before: list[Drawing], after: list[Drawing], join_within: int
) -> None:
    previous, canvas = drawn(width, 3, before), drawn(width, 3, before + after)
    shown = drawn(width, 3, before)
    spans = canvas.changes_since(previous, join_within=join_within)
    assert spans == sorted(spans, key=lambda span: (span.y, span.start))
    for one, next_one in pairwise(spans):
        assert one.y != next_one.y or next_one.start - one.stop > join_within
    for span in spans:
        assert 0 <= span.start < span.stop <= width
        text = canvas.line_text(span.y, span.start, span.stop)
        assert cell_len(text) == span.stop - span.start
        shown.text(span.start, span.y, text)
        shown.styles[span.y, span.start : span.stop] = canvas.styles[span.y, span.start : span.stop]
    assert shown.lines() == canvas.lines()
    assert ((shown.styles == canvas.styles) | (canvas.chars == ord(" "))).all()
