"""Bars that say how full or how far something is, in one line of cells."""

import math

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import Style


def draw_bar(canvas: Canvas, x: int, y: int, width: int, fraction: float | None, style: int) -> None:
    """Draw how full something is: ``▰▰▰▱▱▱▱▱``, ``width`` cells from column ``x`` of line ``y``.

    It looks empty only at 0 and full only at 1, and to the nearest cell between. ``fraction`` is kept
    within 0 and 1; None or NaN, which is not measured, is an empty bar.
    """
    filled = _parts_done(fraction, width)
    canvas.fill(Rect(x, y, filled, 1), "▰", style)
    canvas.fill(Rect(x + filled, y, width - filled, 1), "▱", Style.DIM)


def draw_progress(canvas: Canvas, x: int, y: int, width: int, fraction: float | None, style: int) -> None:
    """Draw how far something has come: ``━━━╸────``, to half a cell; the rest as ``draw_bar``."""
    whole, half = divmod(_parts_done(fraction, 2 * width), 2)
    canvas.fill(Rect(x, y, whole, 1), "━", style)
    canvas.fill(Rect(x + whole, y, half, 1), "╸", style)
    canvas.fill(Rect(x + whole + half, y, width - whole - half, 1), "─", Style.DIM)


def _parts_done(fraction: float | None, parts: int) -> int:
    """How many of ``parts`` are done: none only at 0, all only at 1."""
    if fraction is None or math.isnan(fraction) or fraction <= 0 or parts <= 0:
        return 0
    if fraction >= 1:
        return parts
    return min(max(1, round(fraction * parts)), parts - 1)
