"""The help and the menu of precisions."""

from collections.abc import Sequence
from typing import ClassVar

from amptui.diagnosis.labels import signed_label
from amptui.records.run import PRECISIONS
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.keys import Key
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay, open_box, unsupported
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style, precision_style

MEANINGS = {
    "fp32": "PyTorch's default: convolutions may use TF32",
    "ieee": "float32 with TF32 off everywhere",
    "tf32": "float32 with TF32 on everywhere",
    "fp16": "autocast to float16, with loss scaling",
    "bf16": "autocast to bfloat16, no loss scaling",
}
"""What each precision is, in half a line."""

TERMS = (
    ("loss scale", "fp16's factor on the loss, so that small gradients survive"),
    ("headroom", "how often the loss scale can double before an overflow"),
    ("underflow", "gradients too small for float16: zero, or with few bits"),
    ("cosine", "1 if AMP's gradients point where FP32's do"),
)
"""Words that the screen uses, for those who have not met them."""

_HELP_LABEL_WIDTH = len("run folder")


class Help(Overlay):
    """The keys that work and what they do, the signs of the precisions, and where the run is kept."""

    name: ClassVar[str] = "help"

    def __init__(self, title: str, keys: Sequence[Key]) -> None:
        self._title = title
        self._keys = keys

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        blank = int(len(self._keys) + 5 <= canvas.height)
        height = len(self._keys) + 4 + blank
        terms = TERMS if height + 1 + len(TERMS) <= canvas.height else ()
        inner = open_box(canvas, self._title, width=78, height=height + bool(terms) + len(terms))
        x = _HELP_LABEL_WIDTH + 2
        for y, key in enumerate(self._keys):
            inner.text(0, y, key.label, Style.KEY | BOLD, width=_HELP_LABEL_WIDTH, align="right")
            inner.text(x, y, key.meaning, width=max(0, inner.width - x))
        y = len(self._keys) + blank
        inner.text(0, y, "precisions", Style.DIM)
        if y + 1 < inner.height:
            inner.text(0, y + 1, "run folder", Style.DIM)
            inner.text(x, y + 1, view.run_dir, Style.DIM, width=max(0, inner.width - x))
        else:  # the lower edge of the box has room for it
            words = f" run folder  {view.run_dir} "
            room = max(0, min(text_width(words), inner.width))
            canvas.text((canvas.width - inner.width) // 2, canvas.height - 1, words, Style.DIM, width=room)
        for row, (term, meaning) in enumerate(terms, y + 3):
            inner.text(0, row, term, Style.DIM)
            inner.text(x, row, meaning, width=max(0, inner.width - x))
        for name in PRECISIONS:
            x = inner.text(x, y, signed_label(name), precision_style(name)) + 2

    def press(self, _key: str, _view: SessionView) -> Answer:
        """Any key closes it."""
        return CLOSE


class PrecisionMenu(Overlay):
    """Every precision; one that the device does not support with the reason."""

    name: ClassVar[str] = "precisions"

    def __init__(self, view: SessionView) -> None:
        self._line = PRECISIONS.index(view.precision) if view.precision in PRECISIONS else 0

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        inner = open_box(canvas, "precision", width=72, height=len(PRECISIONS) + 4)
        refused = unsupported(view)
        for y, name in enumerate(PRECISIONS):
            style = Style.DIM if name in refused else precision_style(name)
            inner.text(0, y, "▸" if y == self._line else " ", Style.KEY | BOLD)
            inner.text(2, y, f"{y + 1} {signed_label(name)}", style, width=14)
            words = refused.get(name) or MEANINGS[name]
            now = " (now)" if name == view.precision else ""
            inner.text(17, y, f"{words}{now}", Style.DIM, width=max(0, inner.width - 17))
        inner.text(2, len(PRECISIONS) + 1, "enter or 1-5: switch, esc: back", Style.DIM)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Arrows move; enter or a number switches."""
        if key in ("up", "down", "k", "j"):
            self._line = (self._line + (1 if key in ("down", "j") else -1)) % len(PRECISIONS)
            return STAY
        if key == "enter":
            return Answer(close=True, precision=PRECISIONS[self._line])
        if key.isdecimal() and 1 <= int(key) <= len(PRECISIONS):
            return Answer(close=True, precision=PRECISIONS[int(key) - 1])
        return CLOSE if key in ("escape", "m", "q", "ctrl+q") else STAY
