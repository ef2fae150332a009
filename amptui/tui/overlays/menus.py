"""The help and the menu of precisions."""

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from amptui.diagnosis.labels import signed_label
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
from amptui.tui.panels.phrases import Line, Phrase, flowed, phrase, whole_words, wrapped_phrases, write
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

TERMS = (
    ("loss scale", "fp16's factor on the loss, so that small gradients survive"),
    ("headroom", "how often the loss scale can double before an overflow"),
    ("underflow", "gradients too small for float16: zero, or with few bits"),
    ("cosine", "1 if the gradients of AMP or FP8 point where FP32's do"),
)
"""Words that the screen uses, for those who have not met them."""

PAGES = "{keys} lead from one page to the next; esc closes it"
"""What works where one of them is open; the keys that a page names in its lower edge come first."""

_HELP_LABEL_WIDTH = len("run folder")

_LABEL_WIDTH = max(len(f"1 {signed_label(name)}") for name in PRECISIONS)

_MIN_MEANING_WIDTH = 10

_MIN_MENU_WIDTH = 72

_BORDERS = 4
"""Cells of a box beside its text."""

_MAX_MEANING_LINES = 12
"""As many as the longest text takes in the fewest columns."""


About: TypeAlias = Sequence[tuple[str, str | Sequence[Phrase]]]
"""Terms, and what they mean."""


class Help(Overlay):
    """The keys that work and what they do, and below them what there is to know ``about`` the screen.

    Arrows scroll where not all of it fits.
    """

    name: ClassVar[str] = "help"

    def __init__(self, title: str, keys: Sequence[Key], about: About = ()) -> None:
        self._title = title
        self._keys = keys
        self._about = about
        self._scroll = Scroll()

    def draw(self, canvas: Canvas, _view: SessionView, screen: ScreenState) -> None:
        width, x = min(78, canvas.width), _HELP_LABEL_WIDTH + 2
        room = max(_MIN_MEANING_WIDTH, width - 4 - x)
        entries: list[tuple[str, int, str | Sequence[Phrase]]] = [
            *((key.label, Style.KEY | BOLD, key.meaning) for key in self._keys),
            *([("", Style.TEXT, "")] if self._about else []),
            *((term, Style.DIM, meaning) for term, meaning in self._about),
        ]
        rows = [
            ("" if i else label, style, line)
            for label, style, meaning in entries
            for i, line in enumerate(_meaning(meaning, room))
        ]
        inner = open_box(canvas, self._title, width=width, height=len(rows) + 2)
        visible = self._scroll.visible(len(rows), inner.height)
        for y, (label, style, meaning) in enumerate(rows[visible]):
            inner.text(0, y, label, style, width=_HELP_LABEL_WIDTH, align="right")
            write(inner, x, y, meaning)
        if words := self._scroll.words:
            box = canvas.part(Rect((canvas.width - width) // 2, 0, width, canvas.height))
            write_edge(box, (("↑ ↓", "scroll"), ("any key", "close")), screen, right=f"{words} lines")

    def press(self, key: str, _view: SessionView) -> Answer:
        """Any key closes it, but those that scroll; that of a page then opens it."""
        if not (self._scroll.words and key in SCROLL_KEYS):
            return CLOSE
        self._scroll.press(key)
        return STAY

    def leads_on(self, key: str) -> bool:
        return key != "question_mark"


def _meaning(meaning: str | Sequence[Phrase], width: int) -> list[Line]:
    """In lines of ``width`` cells."""
    if not isinstance(meaning, str):
        return flowed(meaning, width)
    return wrapped_phrases(meaning, Style.TEXT, width, lines=_MAX_MEANING_LINES) or [[]]


def about_run(view: SessionView, keys: Sequence[Key]) -> About:
    """Which keys lead from page to page, the signs of the precisions, where the run is kept, and terms."""
    pages = " ".join(key.label for key in keys if key.is_page)
    return (
        *((("pages", PAGES.format(keys=pages)),) if pages else ()),
        ("precisions", [phrase(signed_label(name), precision_style(name)) for name in PRECISIONS]),
        ("run folder", view.run_dir),
        *TERMS,
    )


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
            inner.text(2, y, f"{y + 1} {signed_label(name)}", style, width=_LABEL_WIDTH)
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
