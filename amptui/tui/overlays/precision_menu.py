"""The menu of precisions."""

from typing import ClassVar

from amptui.records import PRECISIONS
from amptui.telemetry.labels import signed_label
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
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


class PrecisionMenu(Overlay):
    """Every precision; those that this device does not support with the reason."""

    name: ClassVar[str] = "precisions"

    def __init__(self, view: SessionView) -> None:
        self._chosen = PRECISIONS.index(view.precision) if view.precision in PRECISIONS else 0

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        inner = open_box(canvas, "precision", width=72, height=len(PRECISIONS) + 4)
        refused = unsupported(view)
        for y, name in enumerate(PRECISIONS):
            style = Style.DIM if name in refused else precision_style(name)
            marker = "▸" if y == self._chosen else " "
            inner.text(0, y, marker, Style.KEY | BOLD)
            inner.text(2, y, f"{y + 1} {signed_label(name)}", style, width=14)
            words = refused.get(name) or MEANINGS[name]
            now = " (now)" if name == view.precision else ""
            inner.text(17, y, f"{words}{now}", Style.DIM, width=max(0, inner.width - 17))
        inner.text(2, len(PRECISIONS) + 1, "enter or 1-5: switch, esc: back", Style.DIM)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Arrows move, enter or a number chooses."""
        if key in ("up", "down", "k", "j"):
            self._chosen = (self._chosen + (1 if key in ("down", "j") else -1)) % len(PRECISIONS)
            return STAY
        if key == "enter":
            return Answer(close=True, precision=PRECISIONS[self._chosen])
        if key.isdecimal() and 1 <= int(key) <= len(PRECISIONS):
            return Answer(close=True, precision=PRECISIONS[int(key) - 1])
        return CLOSE if key in ("escape", "m", "q", "ctrl+q") else STAY
