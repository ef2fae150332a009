"""The interface of overlays: they draw on the dashboard's own canvas, and take and answer key presses.

The panels stay visible around a small overlay, and nothing is laid out again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from amptui.telemetry.view import SessionView
from amptui.tui.backdrop import draw_box
from amptui.tui.canvas import Canvas, Rect, text_width
from amptui.tui.panels.footer import NOTICE_INKS, standing_news
from amptui.tui.panels.phrases import GAP, Phrase, Word, fitting, line_width, wrapped, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import Style


@dataclass(frozen=True, slots=True)
class Answer:
    """What a key press in an overlay leads to: the precision first, then the action."""

    close: bool = False
    action: str = ""
    """An action of the app to run."""
    precision: str = ""
    """A precision to ask for."""


Hints = Sequence[tuple[str, str]]
"""Keys of an overlay and what they do, the most important first."""

STAY = Answer()
CLOSE = Answer(close=True)


class Overlay(Protocol):
    """Something over the panels that has the keyboard."""

    name: ClassVar[str]
    """Tells the screen which overlay is open."""
    covers_all: ClassVar[bool] = False
    """Whether it hides all panels: then they need not be drawn."""

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState, /) -> None:
        """Draw over the panels."""

    def press(self, key: str, view: SessionView, /) -> Answer:
        """Take a key press, by Textual's name."""


def open_box(canvas: Canvas, title: str, *, width: int, height: int) -> Canvas:
    """Clear a box of at most that size in the middle, frame it, and return the canvas within."""
    width, height = min(width, canvas.width), min(height, canvas.height)
    box = canvas.part(Rect((canvas.width - width) // 2, (canvas.height - height) // 2, width, height))
    box.clear()
    draw_box(box)
    box.text(2, 0, f" {title} ", Style.STRONG, width=max(0, min(text_width(title) + 2, box.width - 4)))
    return box.part(Rect(2, 1, max(0, box.width - 4), max(0, box.height - 2)))


def write_edge(canvas: Canvas, hints: Hints, screen: ScreenState, *, right: str = "") -> None:
    """The lower edge of an overlay that hides the footer: its keys, or the footer's message.

    If not all keys fit, the last are dropped first, and the first always stays; ``right`` is right-aligned.
    """
    y, room = canvas.height - 1, max(0, canvas.width - 8)
    if 2 * text_width(right) < room:
        room -= text_width(right) + GAP
        canvas.text(canvas.width - 5 - text_width(right), y, f" {right} " if right else "", Style.DIM)
    phrases = _edge_phrases(hints, screen, room)
    used = max(0, min(room, line_width(phrases)))
    edge = canvas.part(Rect(3, y, used + 2, 1))
    edge.clear()
    write(edge.part(Rect(1, 0, used, 1)), 0, 0, phrases)


def _edge_phrases(hints: Hints, screen: ScreenState, room: int) -> list[Phrase]:
    if screen.message:
        return [Phrase((Word(line, NOTICE_INKS[screen.severity]),)) for line in _cut(screen.message, room)]
    news, style = standing_news(screen)
    if news:
        return [Phrase((Word(line, style),)) for line in _cut(news, room)]
    keys = enumerate(hints)
    phrases = [Phrase((Word(key, Style.KEY), Word(f" {words}", Style.DIM)), i) for i, (key, words) in keys]
    return fitting(phrases, room)


def _cut(text: str, room: int) -> list[str]:
    return wrapped(text, room, lines=1)


def unsupported(view: SessionView) -> Mapping[str, str]:
    """The precisions that the device does not support, each with the reason."""
    return view.run.unsupported if view.run is not None else {}


def shifted(top: int, key: str, *, page: int, last: int) -> int | None:
    """The first visible line after ``key``, from 0 to ``last``; None for a key that does not scroll."""
    moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, "space": page}
    ends = {"home": 0, "g": 0, "end": last, "G": last, "upper_g": last}
    if key not in moves and key not in ends:
        return None
    return max(0, min(ends.get(key, top + moves.get(key, 0)), last))
