"""One panel on a canvas of its own."""

from collections.abc import Callable

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import Line, Word
from amptui.tui.panels.screen_state import ScreenState
from tests.tui import views

Draw = Callable[[Canvas, SessionView, ScreenState], None]


SCREEN = ScreenState(now=views.NOW)


def draw_alone(
    draw: Draw, view: SessionView, width: int, height: int = 1, *, screen: ScreenState = SCREEN
) -> Canvas:
    """What ``draw`` leaves on a blank canvas."""
    canvas = Canvas(width, height)
    draw(canvas, view, screen)
    return canvas


def line_text(line: Line) -> str:
    """The words of a line, with the blanks between its phrases but without its gauges."""
    return "  ".join("".join(w.text for w in phrase.words if isinstance(w, Word)) for phrase in line)
