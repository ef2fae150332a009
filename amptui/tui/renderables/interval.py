"""A ratio and its interval as a dot with whiskers, on an axis with 1 in its middle."""

import math

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import Style

LINES = 2
"""The marks, and the labels of the axis."""

_WIDEST = 61
"""Cells from which on a wider axis tells no more."""

_SPANS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
"""Ratios that an axis may end at: round ones, so that it seldom changes while the ratio settles."""

_FULLEST = 0.85
"""The dot stands within this part of either half: there is room for its whisker."""

_BETWEEN_LABELS = 2
"""Blanks between two labels at least."""


def draw_interval(canvas: Canvas, ratio: float, low: float | None, high: float | None, *, style: int) -> None:
    """Draw ``────│──├─●─┤──`` over the labels of its logarithmic axis; all values are above 0.

    The axis depends on the ratio alone: whiskers that are too long for it end in an arrow. Without an
    interval there is only the dot.
    """
    half = (min(canvas.width, _WIDEST) - 1) // 2
    if half < 1:
        return
    span = next((span for span in _SPANS if abs(math.log(ratio)) <= _FULLEST * math.log(span)), _SPANS[-1])
    scale = half / math.log(span)
    canvas.fill(Rect(0, 0, 2 * half + 1, 1), "─", Style.DIM)
    canvas.text(half, 0, "│", Style.DIM)
    at = half + _offset(ratio, scale, half)
    if low is not None and high is not None:
        start, stop = half + _offset(low, scale, half), half + _offset(high, scale, half)
        canvas.fill(Rect(start, 0, stop - start + 1, 1), "━", style)
        if start < half < stop:
            canvas.text(half, 0, "┼", style)
        canvas.text(start, 0, "←" if math.log(low) * scale < -half - 1 else "├", style)
        canvas.text(stop, 0, "→" if math.log(high) * scale > half + 1 else "┤", style)
    canvas.text(at, 0, "●", style)
    _draw_labels(canvas, span, half)


def _offset(ratio: float, scale: float, half: int) -> int:
    """Cells right of the middle; what lies beyond the axis is at its end."""
    return max(-half, min(half, round(math.log(ratio) * scale)))


def _draw_labels(canvas: Canvas, span: float, half: int) -> None:
    """Both ends and the middle of the axis; on a short one the middle alone."""
    left, right = f"{1 / span:.2f}×", f"{span:.2f}×"
    canvas.text(half, 1, "1×", Style.DIM)
    if half >= len(left) + _BETWEEN_LABELS and half + 1 >= len("1×") + _BETWEEN_LABELS + len(right):
        canvas.text(0, 1, left, Style.DIM)
        canvas.text(2 * half + 1 - len(right), 1, right, Style.DIM)
