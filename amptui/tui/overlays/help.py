"""The help: the keys, and a glossary."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import ClassVar, TypeAlias

from amptui.diagnosis.labels import GLOSSARY, signed_label
from amptui.records.run import PRECISIONS
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect, text_width
from amptui.tui.keys import Key
from amptui.tui.overlays.overlay import (
    CLOSE,
    SCROLL_KEYS,
    STAY,
    Answer,
    Overlay,
    Scroll,
    entry,
    open_box,
    write_edge,
)
from amptui.tui.panels.phrases import GAP, Line, Phrase, phrase, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style, precision_style

_HELP_WIDTH = 78
"""Columns of the help's box."""

_KEY_WIDTH, _TERM_WIDTH = len("ctrl+c"), max(map(len, GLOSSARY))

_MIN_MEANING_WIDTH = 10

_BORDERS = 4
"""Cells of a box beside its text."""


About: TypeAlias = Sequence[tuple[str, str | Sequence[Phrase]]]
"""Terms, and what they mean."""


WORDS: About = (
    ("precisions", [phrase(signed_label(name), precision_style(name)) for name in PRECISIONS]),
    *GLOSSARY.items(),
)
"""The letters of the precisions, and words of the screen of a run."""


class Help(Overlay):
    """The keys that work, by what they are for, and on a second page what the screen is ``about``.

    Arrows scroll where not all of it fits.
    """

    name: ClassVar[str] = "help"

    def __init__(self, title: str, keys: Sequence[Key], about: About = ()) -> None:
        self._title = title
        self._keys = keys
        self._about = about
        self._is_turned = False
        self._scroll = Scroll()

    def draw(self, canvas: Canvas, _view: SessionView, screen: ScreenState) -> None:
        width = min(_HELP_WIDTH, canvas.width)
        room = max(_KEY_WIDTH + GAP + _MIN_MEANING_WIDTH, width - _BORDERS)
        title, lines = self._title, _key_lines(self._keys, room)
        if self._is_turned:
            title, entries = (
                "glossary",
                (entry(_label(term, Style.DIM), words, room) for term, words in self._about),
            )
            lines = [line for entry in entries for line in entry]
        inner = open_box(canvas, title, width=width, height=len(lines) + 2)
        visible = self._scroll.visible(len(lines), inner.height)
        for y, line in enumerate(lines[visible]):
            write(inner, 0, y, line)
        turns = (("?", "glossary"),) if self._about and not self._is_turned else ()
        scrolls = (("↑ ↓", "scroll"),) if self._scroll.words else ()
        top = (canvas.height - inner.height - 2) // 2
        box = canvas.part(Rect((canvas.width - width) // 2, top, width, inner.height + 2))
        write_edge(box, (*turns, *scrolls, ("any other key", "close")), screen, right=self._scroll.words)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Its own key turns the page; any other closes it, but those that scroll."""
        if self._scroll.words and key in SCROLL_KEYS:
            self._scroll.press(key)
        elif key == "question_mark" and self._about and not self._is_turned:
            self._is_turned, self._scroll.top = True, 0
        else:
            return CLOSE
        return STAY

    def leads_on(self, key: str) -> bool:
        return key != "question_mark"


def _key_lines(keys: Sequence[Key], width: int) -> list[Line]:
    """The keys in lines of ``width`` cells below their tasks; two with short meanings share a line."""
    lines: list[Line] = []
    room = (width - GAP) // 2 - _KEY_WIDTH - GAP
    for task, of_task in groupby(keys, attrgetter("task")):
        lines += [[phrase(task, Style.DIM)]] if task else []
        is_half = False
        for key in of_task:
            if not task or text_width(key.meaning) > room:
                lines += entry(_label(key.label, Style.KEY | BOLD), key.meaning, width)
                is_half = False
                continue
            half = [_label(key.label, Style.KEY | BOLD), phrase(key.meaning.ljust(room))]
            lines = [*lines[:-1], [*lines[-1], *half]] if is_half else [*lines, half]
            is_half = not is_half
    return lines


def _label(text: str, style: int) -> Phrase:
    """In the column of keys, or of words."""
    return phrase(text.rjust(_KEY_WIDTH if style == Style.KEY | BOLD else _TERM_WIDTH), style)
