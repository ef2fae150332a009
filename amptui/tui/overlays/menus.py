"""The help and the menu of precisions."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import ClassVar, TypeAlias

from amptui.diagnosis.labels import GLOSSARY, precision_label, signed_label
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
    open_box,
    unsupported,
    write_edge,
)
from amptui.tui.panels.phrases import GAP, Line, Phrase, flowed, phrase, whole_words, wrapped_phrases, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style, precision_style

MEANINGS = {
    "fp32": "PyTorch's default: convolutions may use TF32",
    "ieee": "float32 with TF32 off everywhere",
    "tf32": "float32 with TF32 on everywhere",
    "fp16": "autocast to float16, with loss scaling",
    "bf16": "autocast to bfloat16, no loss scaling",
    "fp8": "bf16, and Linear layers multiply in float8",
    "fp8-emulated": "float8's rounding, not its speed",
}
"""What each precision is, in half a line."""

_HELP_WIDTH = 78
"""Columns of the help's box."""

_KEY_WIDTH, _TERM_WIDTH = len("ctrl+c"), max(map(len, GLOSSARY))

_LABEL_WIDTH = max(len(f"1 {precision_label(name)}") for name in PRECISIONS)

_MIN_MEANING_WIDTH = 10

_MIN_MENU_WIDTH = 72

_BORDERS = 4
"""Cells of a box beside its text."""

_MAX_MEANING_LINES = 12
"""As many as the longest text takes in the fewest columns."""


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
            title, entries = "glossary", (_entry(term, Style.DIM, words, room) for term, words in self._about)
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
                lines += _entry(key.label, Style.KEY | BOLD, key.meaning, width)
                is_half = False
                continue
            half = [_label(key.label, Style.KEY | BOLD), phrase(key.meaning.ljust(room))]
            lines = [*lines[:-1], [*lines[-1], *half]] if is_half else [*lines, half]
            is_half = not is_half
    return lines


def _entry(label: str, style: int, meaning: str | Sequence[Phrase], width: int) -> list[Line]:
    """A label, and beside it what it means in lines of ``width`` cells in all."""
    first = _label(label, style)
    room = width - first.width - GAP
    if isinstance(meaning, str):
        lines = wrapped_phrases(meaning, Style.TEXT, room, lines=_MAX_MEANING_LINES) or [[]]
    else:
        lines = flowed(meaning, room)
    return [[phrase(" " * first.width) if i else first, *line] for i, line in enumerate(lines)]


def _label(text: str, style: int) -> Phrase:
    """In the column of keys, or of words."""
    return phrase(text.rjust(_KEY_WIDTH if style == Style.KEY | BOLD else _TERM_WIDTH), style)


class PrecisionMenu(Overlay):
    """Every precision; one that the device does not support with the reason."""

    name: ClassVar[str] = "precisions"

    def __init__(self, view: SessionView) -> None:
        self._line = PRECISIONS.index(view.precision) if view.precision in PRECISIONS else 0

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        refused = unsupported(view)
        texts = [
            (refused.get(name) or MEANINGS[name], " (now)" if name == view.precision else "")
            for name in PRECISIONS
        ]
        widest = max(text_width(words + now) for words, now in texts)
        width = max(_MIN_MENU_WIDTH, _BORDERS + 3 + _LABEL_WIDTH + widest)
        inner = open_box(canvas, "precision", width=width, height=len(PRECISIONS) + 4)
        for y, name in enumerate(PRECISIONS):
            style = Style.DIM if name in refused else precision_style(name)
            inner.text(0, y, "▸" if y == self._line else " ", Style.KEY | BOLD)
            inner.text(2, y, f"{y + 1} {precision_label(name)}", style, width=_LABEL_WIDTH)
            words, now = texts[y]
            room = max(0, inner.width - 3 - _LABEL_WIDTH)
            words = whole_words(words, room - len(now))
            inner.text(3 + _LABEL_WIDTH, y, f"{words}{now}", Style.DIM, width=room)
        inner.text(2, len(PRECISIONS) + 1, f"enter or 1-{len(PRECISIONS)}: switch, esc: back", Style.DIM)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Arrows move; enter or a number switches."""
        if key in ("escape", "m", "q", "ctrl+q"):
            return CLOSE
        line = int(key) - 1 if key.isdecimal() else self._line
        if (key == "enter" or key.isdecimal()) and 0 <= line < len(PRECISIONS):
            return Answer(close=True, precision=PRECISIONS[line])
        self._line = (self._line + {"down": 1, "j": 1, "up": -1, "k": -1}.get(key, 0)) % len(PRECISIONS)
        return STAY
