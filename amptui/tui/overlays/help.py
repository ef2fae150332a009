"""The help: the keys, and below them a glossary."""

from collections.abc import Sequence
from typing import ClassVar

from amptui.diagnosis.labels import GLOSSARY, signed_label
from amptui.records.run import PRECISIONS
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect
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


class Help(Overlay):
    """The keys that work; with a ``glossary`` also the letters of the precisions and words of a run's screen.

    Arrows scroll where not all of it fits.
    """

    name: ClassVar[str] = "help"

    def __init__(self, title: str, keys: Sequence[Key], *, glossary: bool = False) -> None:
        self._title = title
        self._keys = keys
        self._glossary = glossary
        self._scroll = Scroll()

    def draw(self, canvas: Canvas, _view: SessionView, screen: ScreenState) -> None:
        width = min(_HELP_WIDTH, canvas.width)
        room = max(_KEY_WIDTH + GAP + _MIN_MEANING_WIDTH, width - _BORDERS)
        lines = list[Line]()
        for key in self._keys:
            lines += entry(phrase(key.label.rjust(_KEY_WIDTH), Style.KEY | BOLD), key.meaning, room)
        if self._glossary:
            letters = [phrase(signed_label(name), precision_style(name)) for name in PRECISIONS]
            words: dict[str, str | Sequence[Phrase]] = {"precisions": letters, **GLOSSARY}
            lines.append([phrase("glossary", Style.STRONG)])
            for term, meaning in words.items():
                lines += entry(phrase(term.rjust(_TERM_WIDTH), Style.DIM), meaning, room)
        inner = open_box(canvas, self._title, width=width, height=len(lines) + 2)
        visible = self._scroll.visible(len(lines), inner.height)
        for y, line in enumerate(lines[visible]):
            write(inner, 0, y, line)
        scrolls = (("↑ ↓", "glossary" if self._glossary else "scroll"),) if self._scroll.words else ()
        top = (canvas.height - inner.height - 2) // 2
        box = canvas.part(Rect((canvas.width - width) // 2, top, width, inner.height + 2))
        write_edge(box, (*scrolls, ("any other key", "close")), screen, right=self._scroll.words)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Any key closes it, but those that scroll."""
        if self._scroll.words and key in SCROLL_KEYS:
            self._scroll.press(key)
            return STAY
        return CLOSE

    def leads_on(self, key: str) -> bool:
        return key != "question_mark"
