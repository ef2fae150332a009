"""What of a screen is there before anything is known of the run: the boxes of the panels and their titles."""

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.layout import PANELS, Layout
from amptui.tui.style import Style

TITLES = {name: name for name in PANELS} | {"scale": "loss scale"}
"""Panels by the names that the layout has for them."""


def draw_backdrop(canvas: Canvas, layout: Layout) -> None:
    """Draw a box with its title for each framed place of ``layout``."""
    for place in layout:
        if place.framed:
            box = canvas.part(place.rect)
            draw_box(box)
            box.text(1, 0, f" {TITLES[place.name]} ")


def draw_box(canvas: Canvas) -> None:
    """Draw a rounded frame along the edges of ``canvas``."""
    right, bottom = canvas.width - 1, canvas.height - 1
    for y in (0, bottom):
        canvas.fill(Rect(0, y, canvas.width, 1), "─", Style.FRAME)
    for x in (0, right):
        canvas.fill(Rect(x, 0, 1, canvas.height), "│", Style.FRAME)
    for x, y, corner in ((0, 0, "╭"), (right, 0, "╮"), (0, bottom, "╰"), (right, bottom, "╯")):
        canvas.text(x, y, corner, Style.FRAME)
