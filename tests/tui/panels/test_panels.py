"""What holds for every panel whatever it shows: nothing moves, nothing is torn, all is in proportion."""

from collections.abc import Callable
from dataclasses import replace

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import (
    header,
)
from amptui.tui.panels.screen_state import ScreenState
from tests.tui import views


def draw_alone(
    draw: Callable[[Canvas, SessionView, ScreenState], None], view: SessionView, width: int, height: int = 1
) -> Canvas:
    """What a panel leaves on a blank canvas."""
    canvas = Canvas(width, height)
    draw(canvas, view, ScreenState(now=views.NOW))
    return canvas


# -------------------------------------------------------------------------------- nothing moves


def test_from_step_to_step_nothing_moves_in_the_header() -> None:
    view = views.compared()
    early = replace(view, step=9, epoch=1, epoch_step=9)
    before, after = (draw_alone(header.draw, one, 160).lines()[0] for one in (early, view))
    for word in ("epoch", "step", "ETA", "running", "▲"):
        assert before.index(word) == after.index(word)
