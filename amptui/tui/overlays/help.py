"""The help: all keys and what they do."""

from typing import ClassVar

from amptui.records import PRECISIONS
from amptui.telemetry.labels import signed_label
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.ink import BOLD, Ink, precision_ink
from amptui.tui.keys import KEYS
from amptui.tui.overlays.overlay import CLOSE, Answer, open_box
from amptui.tui.panels.screen_state import ScreenState


class Help:
    """All keys and what they do, the signs of the precisions, and where the run is kept."""

    name: ClassVar[str] = "help"
    covers_all: ClassVar[bool] = False

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:  # noqa: ARG002 - the protocol's
        """See :class:`Overlay`."""
        inner = open_box(canvas, "keys", width=76, height=len(KEYS) + 5)
        for y, key in enumerate(KEYS):
            inner.text(1, y, key.label, Ink.KEY | BOLD, width=7, align="right")
            inner.text(10, y, key.meaning, width=max(0, inner.width - 10))
        y = len(KEYS) + 1
        inner.text(1, y, "precisions", Ink.DIM)
        x = 12
        for name in PRECISIONS:
            x = inner.text(x, y, signed_label(name), precision_ink(name)) + 2
        inner.text(1, y + 1, f"run folder {view.run_dir}", Ink.DIM, width=max(0, inner.width - 1))

    def press(self, key: str, view: SessionView) -> Answer:  # noqa: ARG002 - the protocol's arguments
        """Any key closes it."""
        return CLOSE
