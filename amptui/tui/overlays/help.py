"""The help: all keys and what they do."""

from collections.abc import Sequence
from typing import ClassVar

from amptui.records import PRECISIONS
from amptui.telemetry.labels import signed_label
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.keys import KEYS, Key
from amptui.tui.overlays.overlay import CLOSE, Answer, Overlay, open_box
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style, precision_style


class Help(Overlay):
    """All keys and what they do, the signs of the precisions, and where the run is kept."""

    name: ClassVar[str] = "help"

    def __init__(
        self, title: str = "keys", keys: Sequence[Key] = KEYS, precisions: Sequence[str] = PRECISIONS
    ) -> None:
        self._title = title
        self._keys = keys
        self._precisions = precisions

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        below = 5 if self._precisions else 4
        inner = open_box(canvas, self._title, width=76, height=len(self._keys) + below)
        for y, key in enumerate(self._keys):
            inner.text(1, y, key.label, Style.KEY | BOLD, width=7, align="right")
            inner.text(10, y, key.meaning, width=max(0, inner.width - 10))
        y, x = len(self._keys) + 1, 12
        if self._precisions:
            inner.text(1, y, "precisions", Style.DIM)
            for name in self._precisions:
                x = inner.text(x, y, signed_label(name), precision_style(name)) + 2
            y += 1
        inner.text(1, y, f"run folder {view.run_dir}", Style.DIM, width=max(0, inner.width - 1))

    def press(self, _key: str, _view: SessionView) -> Answer:
        """Any key closes it."""
        return CLOSE
