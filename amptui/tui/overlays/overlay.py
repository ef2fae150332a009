"""The interface of overlays, and the parts that they share: box, lower edge, choices, scrolling.

An overlay draws on the canvas of the panels, so that they stay visible around it.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

from textual.keys import key_to_character

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect, text_width
from amptui.tui.keys import KEYS
from amptui.tui.layout import draw_box
from amptui.tui.panels.footer import NOTICE_STYLES, standing_news
from amptui.tui.panels.phrases import (
    GAP,
    Line,
    Phrase,
    Word,
    fitting,
    flowed,
    line_width,
    phrase,
    whole_words,
    wrapped,
    wrapped_phrases,
    write,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import Style


@dataclass(frozen=True, slots=True)
class Answer:
    """What a key press leads to: the precision is asked for before the action runs."""

    close: bool = False
    action: str = ""
    """An action of the app to run."""
    precision: str = ""
    """A precision to ask for."""


_MAX_INDENT = 12
"""Wrapped lines are indented at most this much."""

_MAX_MEANING_LINES = 12
"""As many as the longest text takes in the fewest columns."""

STAY = Answer()
CLOSE = Answer(close=True)


class Overlay(Protocol):
    """Something over the panels that takes the keys."""

    name: ClassVar[str]
    """Tells the screen which overlay is open."""
    covers_all: ClassVar[bool] = False
    """Whether it hides all panels: then they are not drawn."""

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState, /) -> None:
        """Draw over the panels."""

    def press(self, key: str, view: SessionView, /) -> Answer:
        """Handle a key press, by Textual's name."""

    def leads_on(self, _key: str, /) -> bool:
        """Whether ``key``, if it opens a page, does so from here: this is only read, and has no such key."""
        return False


def entry(
    first: Phrase, meaning: str | Sequence[Phrase], width: int, *, most: int = _MAX_MEANING_LINES
) -> list[Line]:
    """What ``first`` means beside it, in lines of ``width`` cells in all and in ``most`` of them."""
    room = width - first.width - GAP
    if isinstance(meaning, str):
        lines = wrapped_phrases(meaning, Style.TEXT, room, lines=most) or [[]]
    else:
        lines = flowed(meaning, room)
    return [[phrase(" " * first.width) if i else first, *line] for i, line in enumerate(lines)]


def open_box(canvas: Canvas, title: str, *, width: int | None = None, height: int | None = None) -> Canvas:
    """Clear and frame a box of at most that size in the middle, or all of it; return the canvas within."""
    width = canvas.width if width is None else min(width, canvas.width)
    height = canvas.height if height is None else min(height, canvas.height)
    box = canvas.part(Rect((canvas.width - width) // 2, (canvas.height - height) // 2, width, height))
    box.clear()
    draw_box(box)
    title = f" {whole_words(title, box.width - 6)} "
    box.text(2, 0, title, Style.STRONG, width=max(0, min(text_width(title), box.width - 4)))
    return box.part(Rect(2, 1, max(0, box.width - 4), max(0, box.height - 2)))


def pages_beside(own: str = "") -> tuple[str, str]:
    """The keys of the pages that every run has, but its ``own``, for the lower edge of a page."""
    labels = (key.label for key in KEYS if key.action.startswith("open("))
    return " ".join(label for label in labels if label != own), "other pages"


def write_edge(
    canvas: Canvas, hints: Sequence[tuple[str, str]], screen: ScreenState, *, right: str = ""
) -> None:
    """Write the keys of an overlay that hides the footer into its lower edge, after a message or news.

    If not all keys fit, the last are dropped first, and the first always stays; ``right`` is right-aligned.
    """
    y, room = canvas.height - 1, max(0, canvas.width - 8)
    if 2 * text_width(right) < room:
        room -= text_width(right) + GAP
        canvas.text(canvas.width - 5 - text_width(right), y, f" {right} " if right else "", Style.DIM)
    text, style = standing_news(screen)
    if screen.message:
        text, style = screen.message, NOTICE_STYLES[screen.severity]
    keys = enumerate(hints)
    phrases = [Phrase((Word(key, Style.KEY), Word(f" {words}", Style.DIM)), i) for i, (key, words) in keys]
    news_room = room - line_width(phrases[:1]) - GAP
    news = [Phrase((Word(line, style),), -1) for line in wrapped(text, news_room, lines=1)]
    phrases = fitting([*news, *phrases], room)
    width = max(0, min(room, line_width(phrases)))
    edge = canvas.part(Rect(3, y, width + 2, 1))
    edge.clear()
    write(edge.part(Rect(1, 0, width, 1)), 0, 0, phrases)


def line_after(line: int, key: str, *, page: int, last: int) -> int:
    """Where ``key`` moves from ``line``, from 0 to ``last``; ``line`` for a key that does not move."""
    moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
    return max(0, min({"home": 0, "end": last}.get(key, line + moves.get(key, 0)), last))


def cut_lines(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` cells, whose columns are kept: words may be cut."""
    size = _characters(text, width)
    return [text[i : i + size] for i in range(0, len(text), size)] or [""]


@lru_cache(maxsize=8192)
def wrapped_lines(text: str, width: int, *, hang: str = "") -> Sequence[str]:
    """The same between words; further lines are indented like the first, plus ``hang``."""
    indent = text[: len(text) - len(text.lstrip())][:_MAX_INDENT]
    return textwrap.wrap(text, _characters(text, width), subsequent_indent=indent + hang) or [""]


def _characters(text: str, width: int) -> int:
    """How many characters of ``text`` fit for certain: half as many if some take two cells."""
    return width if text_width(text) <= len(text) else max(1, width // 2)


SCROLL_KEYS = ("up", "down", "pageup", "pagedown", "home", "end")


class Scroll:
    """Which lines of a long text or table are visible."""

    def __init__(self) -> None:
        self.top = 0
        self._page = 1
        self._lines = 0

    @property
    def _last_top(self) -> int:
        return max(0, self._lines - self._page)

    def visible(self, lines: int, page: int) -> slice:
        """The lines to show, of ``lines`` and at most ``page``."""
        self._page, self._lines = max(1, page), lines
        self.top = max(0, min(self.top, self._last_top))
        return slice(self.top, self.top + self._page)

    def press(self, key: str) -> None:
        """Scroll, if ``key`` is one for that."""
        self.top = line_after(self.top, key, page=self._page, last=self._last_top)

    @property
    def is_at_end(self) -> bool:
        """Whether the last line is visible."""
        return self.top >= self._last_top

    @property
    def words(self) -> str:
        """``1–20 of 102``; empty if all lines are visible."""
        if not self._last_top:
            return ""
        return f"{self.top + 1}–{min(self._lines, self.top + self._page)} of {self._lines:,}"


_SIGNS = {"minus": "-", "plus": "+", "underscore": "_", "at": "@", "slash": "/", "backslash": "\\"}
"""What Textual calls by names of its own."""


class Search:
    """A text that is typed after ``/``, to find lines or charts by."""

    def __init__(self) -> None:
        self.text = ""
        self.is_typing = False

    def press(self, key: str) -> bool:
        """Take a key; return whether it was for the search."""
        letter = _SIGNS.get(key) or key_to_character(key.removeprefix("upper_"))
        if not self.is_typing:
            is_clearing = key == "escape" and bool(self.text)
            self.is_typing = key == "slash"
            self.text = "" if is_clearing else self.text
            return self.is_typing or is_clearing
        if key in ("enter", "escape"):
            self.is_typing = False
            self.text = self.text if key == "enter" else ""
        elif key in ("backspace", "ctrl+h"):
            self.text = self.text[:-1]
        elif key == "ctrl+u":
            self.text = ""
        elif letter is not None and letter.isprintable():
            self.text += letter
        else:
            return False
        return True


class Page(Overlay):
    """An overlay that covers all panels: a list or a text that scrolls and may be searched.

    The key that opens it closes it too.
    """

    covers_all: ClassVar[bool] = True
    opened_by: ClassVar[str]

    def __init__(self) -> None:
        self._scroll = Scroll()
        self._search = Search()

    def closes(self, key: str) -> bool:
        """Whether ``key`` leaves the page."""
        return key in ("escape", "q", "ctrl+q", self.opened_by)

    def leads_on(self, key: str) -> bool:
        return key != self.opened_by and not self._search.is_typing
