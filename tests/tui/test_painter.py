"""A terminal emulator shows what the painter writes: exactly the canvas."""

import pyte
from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Canvas, Span
from amptui.tui.painter import Painter
from amptui.tui.style import BOLD, Style

WIDTH, HEIGHT = 24, 4
COLOURS = {
    Style.TEXT: ("default", False),
    Style.DIM: ("brightblack", False),
    Style.STRONG: ("default", True),
    Style.FP32: ("brightcyan", False),
    Style.FP16: ("brown", False),
    Style.ERROR: ("brightred", False),
    Style.ERROR | BOLD: ("brightred", True),
    Style.FP16 | BOLD: ("brown", True),
}
drawings = st.lists(
    st.tuples(
        st.integers(0, WIDTH),
        st.integers(0, HEIGHT - 1),
        st.text(st.sampled_from("ab 1⣿▔日"), max_size=12),
        st.sampled_from(list(COLOURS)),
    ),
    max_size=8,
)


def drawn(some: list[tuple[int, int, str, int]]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT)
    for x, y, text, style in some:
        canvas.text(x, y, text, style)
    return canvas


@given(drawings, drawings)
def test_the_terminal_shows_the_canvas_frame_after_frame(
    first: list[tuple[int, int, str, int]], second: list[tuple[int, int, str, int]]
) -> None:
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.Stream(screen)
    painter, shown = Painter(), Canvas(WIDTH, HEIGHT)
    for canvas in (drawn(first), drawn(first + second), drawn(second)):
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


def test_a_blank_needs_no_colour() -> None:
    canvas = Canvas(12, 1)
    canvas.text(0, 0, "ab", Style.FP32)
    canvas.text(2, 0, "   ", Style.DIM)
    canvas.text(5, 0, "cd", Style.FP32)
    assert Painter().paint(canvas, [Span(0, 0, 7)]) == "\x1b[1;1H\x1b[96mab   cd\x1b[m"


def test_spans_of_one_line_are_reached_by_a_short_move() -> None:
    canvas = Canvas(24, 1)
    canvas.text(0, 0, "ab")
    canvas.text(20, 0, "cd")
    assert Painter().paint(canvas, [Span(0, 0, 2), Span(0, 20, 22)]) == "\x1b[1;1Hab\x1b[18Ccd"
