"""What opens over the panels: help, the menu of precisions, the question before quitting, all events.

Overlays are drawn on the dashboard's own canvas, so that the training stays in sight around them and
nothing is laid out anew. An overlay takes key presses and answers what shall happen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from amptui.records import PRECISIONS
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.ink import BOLD, Ink, precision_glyph, precision_ink
from amptui.tui.keys import KEYS
from amptui.tui.panels import events as events_panel
from amptui.tui.panels.state import ScreenState


@dataclass(frozen=True, slots=True)
class Answer:
    """What a key press in an overlay leads to."""

    close: bool = False
    action: str = ""
    """An action of the app to run."""
    precision: str = ""
    """A precision to ask for."""


STAY = Answer()
CLOSE = Answer(close=True)


class Overlay(Protocol):
    """Something over the panels that has the keyboard."""

    def draw(self, canvas: Canvas, view: SessionView) -> None:
        """Draw over what is there."""

    def press(self, key: str, view: SessionView) -> Answer:
        """Take a key press, by Textual's name."""


class Help:
    """All keys and what they do."""

    def draw(self, canvas: Canvas, view: SessionView) -> None:
        """See :class:`Overlay`."""
        inner = open_box(canvas, "keys", width=76, height=len(KEYS) + 6)
        for y, key in enumerate(KEYS):
            inner.text(1, y, key.label, Ink.KEY | BOLD, width=7, align="right")
            inner.text(10, y, key.meaning, width=max(0, inner.width - 10))
        y = len(KEYS) + 1
        inner.text(1, y, "precisions", Ink.DIM)
        x = 12
        for name in PRECISIONS:
            x = inner.text(x, y, f"{precision_glyph(name)} {precision_label(name)}", precision_ink(name)) + 2
        inner.text(1, y + 1, f"run folder {view.run_dir}", Ink.DIM, width=max(0, inner.width - 1))

    def press(self, key: str, view: SessionView) -> Answer:  # noqa: ARG002 - the protocol's arguments
        """Any key closes it."""
        return CLOSE


class QuitQuestion:
    """Asks before a run is stopped."""

    def draw(self, canvas: Canvas, view: SessionView) -> None:
        """See :class:`Overlay`."""
        inner = open_box(canvas, "quit", width=58, height=7)
        inner.text(1, 0, f"Training is at step {view.step:,}. Stop it and leave?", width=inner.width - 1)
        x = inner.text(1, 2, "enter", Ink.KEY | BOLD)
        inner.text(x + 1, 2, "stop after this step, keep the journal", width=max(0, inner.width - x))
        x = inner.text(1, 3, "  esc", Ink.KEY | BOLD)
        inner.text(x + 1, 3, "go back, training goes on", width=max(0, inner.width - x - 1))

    def press(self, key: str, view: SessionView) -> Answer:  # noqa: ARG002 - the protocol's arguments
        """Enter or y stops; anything that means no goes back."""
        if key in ("enter", "y"):
            return Answer(close=True, action="stop")
        return CLOSE if key in ("escape", "n", "q", "ctrl+q") else STAY


class PrecisionMenu:
    """Every precision, those this device cannot run with the reason."""

    def __init__(self, view: SessionView) -> None:
        self._chosen = PRECISIONS.index(view.precision) if view.precision in PRECISIONS else 0

    def draw(self, canvas: Canvas, view: SessionView) -> None:
        """See :class:`Overlay`."""
        inner = open_box(canvas, "precision", width=72, height=len(PRECISIONS) + 4)
        unsupported = view.run.unsupported if view.run is not None else {}
        for y, name in enumerate(PRECISIONS):
            ink = Ink.DIM if name in unsupported else precision_ink(name)
            marker = "▸" if y == self._chosen else " "
            inner.text(0, y, marker, Ink.KEY | BOLD)
            inner.text(2, y, f"{y + 1} {precision_glyph(name)} {precision_label(name)}", ink, width=14)
            words = unsupported.get(name) or MEANINGS[name]
            now = " (now)" if name == view.precision else ""
            inner.text(17, y, f"{words}{now}", Ink.DIM, width=max(0, inner.width - 17))
        inner.text(2, len(PRECISIONS) + 1, "enter or 1-5 switches, esc goes back", Ink.DIM)

    def press(self, key: str, view: SessionView) -> Answer:  # noqa: ARG002 - the protocol's arguments
        """Arrows move, enter or a number chooses."""
        if key in ("up", "down", "k", "j"):
            self._chosen = (self._chosen + (1 if key in ("down", "j") else -1)) % len(PRECISIONS)
            return STAY
        if key == "enter":
            return Answer(close=True, precision=PRECISIONS[self._chosen])
        if key.isdecimal() and 1 <= int(key) <= len(PRECISIONS):
            return Answer(close=True, precision=PRECISIONS[int(key) - 1])
        return CLOSE if key in ("escape", "m", "q", "ctrl+q") else STAY


MEANINGS = {
    "fp32": "float32 as by default: convolutions may use TF32",
    "ieee": "float32 with TF32 off everywhere",
    "tf32": "float32 with TF32 on everywhere",
    "fp16": "autocast to float16, gradients scaled",
    "bf16": "autocast to bfloat16, nothing to scale",
}
"""What each precision is, in half a line."""


class EventBrowser:
    """All events, the newest first; the chosen one in full below."""

    def __init__(self) -> None:
        self._chosen: int | None = None
        self._index = 0
        self._page = 1
        self._detail_top = 0

    def draw(self, canvas: Canvas, view: SessionView) -> None:
        """See :class:`Overlay`."""
        title = f"events ({len(view.events):,})"
        inner = open_box(canvas, title, width=canvas.width, height=canvas.height)
        self._follow(view)
        detail = self._detail_lines(view, inner.width)
        shown = min(len(detail), max(3, inner.height // 2)) if detail else 0
        self._page = max(1, inner.height - shown - 2)
        top = max(0, min(self._index - self._page // 2, len(view.events) - self._page))
        listed = replace(view, events=view.events[top : top + self._page])
        lines = inner.part(Rect(2, 0, max(0, inner.width - 2), self._page))
        events_panel.draw(lines, listed, ScreenState())
        if view.events:
            inner.text(0, self._index - top, "▸", Ink.KEY | BOLD)
        self._detail_top = max(0, min(self._detail_top, len(detail) - shown))
        for y, line in enumerate(detail[self._detail_top : self._detail_top + shown]):
            inner.text(1, self._page + 1 + y, line)
        keys = "↑ ↓ choose, ← → scroll the details, esc goes back"
        canvas.text(3, canvas.height - 1, f" {keys} ", Ink.DIM)

    def press(self, key: str, view: SessionView) -> Answer:
        """Arrows and pages move; the chosen event stays chosen while new ones arrive."""
        last = len(view.events) - 1
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._page, "pagedown": self._page}
        if key in moves:
            self._choose(self._index + moves[key], view)
        elif key in ("home", "g"):
            self._choose(0, view)
        elif key in ("end", "G", "upper_g"):
            self._choose(last, view)
        elif key in ("left", "right"):
            self._detail_top += 5 if key == "right" else -5
        return CLOSE if key in ("escape", "e", "q", "ctrl+q") else STAY

    def _choose(self, index: int, view: SessionView) -> None:
        self._index = max(0, min(index, len(view.events) - 1))
        self._chosen = view.events[self._index].number if view.events and self._index > 0 else None
        self._detail_top = 0

    def _follow(self, view: SessionView) -> None:
        """Keep the chosen event chosen; at the top, follow the newest."""
        numbers = [event.number for event in view.events]
        if self._chosen is None:
            self._index = 0
        elif self._chosen in numbers:
            self._index = numbers.index(self._chosen)
        self._index = max(0, min(self._index, len(view.events) - 1))

    def _detail_lines(self, view: SessionView, width: int) -> list[str]:
        """The chosen event in full, wrapped."""
        if not view.events:
            return []
        event = view.events[self._index]
        room = max(10, width - 2)
        text = [event.text, *event.detail.splitlines()]
        return [piece for line in text for piece in _hard_wrapped(line, room)]


def _hard_wrapped(line: str, width: int) -> Sequence[str]:
    """Pieces of ``width`` characters: a traceback's columns mean something, so words may be cut."""
    return [line[i : i + width] for i in range(0, len(line), width)] or [""]


def open_box(canvas: Canvas, title: str, *, width: int, height: int) -> Canvas:
    """Clear a box of at most that size in the middle, frame it, and return the canvas within."""
    width, height = min(width, canvas.width), min(height, canvas.height)
    box = canvas.part(Rect((canvas.width - width) // 2, (canvas.height - height) // 2, width, height))
    box.clear()
    right, bottom = box.width - 1, box.height - 1
    for y in (0, bottom):
        box.text(0, y, "─" * box.width, Ink.FRAME)
    for y in range(1, bottom):
        box.text(0, y, "│", Ink.FRAME)
        box.text(right, y, "│", Ink.FRAME)
    for x, y, corner in ((0, 0, "╭"), (right, 0, "╮"), (0, bottom, "╰"), (right, bottom, "╯")):
        box.text(x, y, corner, Ink.FRAME)
    box.text(2, 0, f" {title} "[: max(0, box.width - 4)], Ink.STRONG)
    return box.part(Rect(2, 1, max(0, box.width - 4), max(0, box.height - 2)))
