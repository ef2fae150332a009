"""What of a screen is there before anything is known of the run: the boxes of the panels and their titles."""

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.ink import Ink
from amptui.tui.layout import Layout

TITLES = {
    "loss": "loss",
    "throughput": "throughput",
    "scale": "loss scale",
    "numerics": "numerics",
    "memory": "memory",
    "comparison": "comparison",
    "events": "events",
}
"""Panels by the names that the layout has for them."""


def draw_backdrop(canvas: Canvas, layout: Layout) -> None:
    """Draw a box with its title for each framed place of ``layout``."""
    for place in layout.places:
        if place.framed:
            _draw_box(canvas.part(place.rect), TITLES[place.name])


def _draw_box(canvas: Canvas, title: str) -> None:
    """A rounded box with a title in its upper edge."""
    right, bottom = canvas.width - 1, canvas.height - 1
    for y in (0, bottom):
        canvas.fill(Rect(0, y, canvas.width, 1), "─", Ink.FRAME)
    for x in (0, right):
        canvas.fill(Rect(x, 0, 1, canvas.height), "│", Ink.FRAME)
    for x, y, corner in ((0, 0, "╭"), (right, 0, "╮"), (0, bottom, "╰"), (right, bottom, "╯")):
        canvas.text(x, y, corner, Ink.FRAME)
    canvas.text(1, 0, f" {title} ")
