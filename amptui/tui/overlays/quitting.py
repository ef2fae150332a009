"""The question before a run is stopped."""

from typing import ClassVar

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.ink import BOLD, Ink
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, open_box
from amptui.tui.panels.state import ScreenState


class QuitQuestion:
    """Asks before a run is stopped."""

    covers_all: ClassVar[bool] = False

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:  # noqa: ARG002 - the protocol's
        """See :class:`Overlay`."""
        inner = open_box(canvas, "quit", width=58, height=7)
        inner.text(1, 0, f"Training is at step {view.step:,}. Stop it and leave?", width=inner.width - 1)
        x = inner.text(1, 2, "enter", Ink.KEY | BOLD)
        inner.text(x + 1, 2, "stop after this step, keep the journal", width=max(0, inner.width - x))
        x = inner.text(1, 3, "  esc", Ink.KEY | BOLD)
        goes_on = "the run stays paused" if view.state == "paused" else "training goes on"
        inner.text(x + 1, 3, f"go back, {goes_on}", width=max(0, inner.width - x - 1))

    def press(self, key: str, view: SessionView) -> Answer:  # noqa: ARG002 - the protocol's arguments
        """Enter or y stops; anything that means no goes back."""
        if key in ("enter", "y"):
            return Answer(close=True, action="stop")
        return CLOSE if key in ("escape", "n", "q", "ctrl+q") else STAY
