"""Text and fills on a canvas, and what a terminal shows of them, frame after frame."""

import unicodedata
from collections.abc import Callable
from functools import partial

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from amptui.tui.canvas import Canvas, Painter, Rect, Span
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


def drawn(width: int, height: int, some_drawings: list[Drawing]) -> Canvas:
    canvas = Canvas(width, height)
    for draw in some_drawings:
        draw(canvas)
    return canvas


@given(st.integers(0, 18), st.integers(0, 4), drawings, st.booleans())
def test_every_line_is_as_wide_as_the_canvas_and_printable(
    width: int, height: int, some_drawings: list[Drawing], ascii_only: bool
) -> None:
    canvas = drawn(width, height, some_drawings)
    if ascii_only:
        canvas.make_ascii()
    lines = canvas.lines()
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


# --------------------------------------------------------------------------- what a terminal shows

WIDTH, HEIGHT = 24, 4
COLOURS = {
    Style.TEXT: ("default", False),
    Style.DIM: ("brightblack", False),
    Style.STRONG: ("default", True),
    Style.FP32: ("brightblue", False),
    Style.FP16: ("brightmagenta", False),
    Style.ERROR: ("brightred", False),
    Style.ERROR | BOLD: ("brightred", True),
    Style.FP16 | BOLD: ("brightmagenta", True),
}
writings = st.lists(
    st.tuples(
        st.integers(0, WIDTH),
        st.integers(0, HEIGHT - 1),
        st.text(st.sampled_from("ab 1⣿▔日"), max_size=12),
        st.sampled_from(list(COLOURS)),
    ),
    max_size=8,
)


def written(some: list[tuple[int, int, str, int]]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT)
    for x, y, text, style in some:
        canvas.text(x, y, text, style)
    return canvas


@given(writings, writings)
def test_the_terminal_shows_the_canvas_frame_after_frame(
    first: list[tuple[int, int, str, int]], second: list[tuple[int, int, str, int]]
) -> None:
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.Stream(screen)
    painter, shown = Painter(), Canvas(WIDTH, HEIGHT)
    for canvas in (written(first), written(first + second), written(second)):
        stream.feed(painter.paint(canvas, canvas.changes_since(shown)))
        shown = canvas
        assert [line.rstrip() for line in screen.display] == [line.rstrip() for line in canvas.lines()]
        for y in range(HEIGHT):
            for x in range(WIDTH):
                cell = screen.buffer[y][x]
                if cell.data not in ("", " "):
                    assert (cell.fg, cell.bold) == COLOURS[int(canvas.styles[y, x])]
        assert screen.cursor.attrs.fg == "default"
        assert not screen.cursor.attrs.bold


def test_without_colour_only_bold_is_left() -> None:
    canvas = Canvas(9, 1)
    canvas.text(0, 0, "abc", Style.ERROR)
    canvas.text(3, 0, "def", Style.ERROR | BOLD)
    assert Painter(no_color=True).paint(canvas, [Span(0, 0, 6)]) == "\x1b[1;1Habc\x1b[1mdef\x1b[m"
