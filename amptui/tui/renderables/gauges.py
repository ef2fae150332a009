"""Drawings in a line or three: bars, large digits, a ratio with its interval, and a stack of parts."""

import math
from collections.abc import Iterable

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import Style

DIGIT_LINES = 3
"""Lines of a large digit."""

_FONT = {
    "0": ("▄▄▄", "█ █", "█▄█"),
    "1": (" ▄ ", "▀█ ", "▄█▄"),
    "2": ("▄▄▄", "▄▄█", "█▄▄"),
    "3": ("▄▄▄", "▄▄█", "▄▄█"),
    "4": ("▄ ▄", "█▄█", "  █"),
    "5": ("▄▄▄", "█▄▄", "▄▄█"),
    "6": ("▄▄▄", "█▄▄", "█▄█"),
    "7": ("▄▄▄", "  █", "  █"),
    "8": ("▄▄▄", "█▄█", "█▄█"),
    "9": ("▄▄▄", "█▄█", "▄▄█"),
    ".": (" ", " ", "▄"),
    "-": ("   ", "▄▄▄", "   "),
}

INTERVAL_LINES = 2
"""Lines of an interval: the marks, and the labels of the axis."""

_MAX_AXIS_WIDTH = 61
_AXIS_ENDS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
"""Ratios at which an axis may end: few ones, so that it rarely changes while the ratio does."""

_MAX_DOT_PART = 0.85
"""The dot lies within this part of either half of the axis: there is room for its whisker."""

_MIN_LABEL_GAP = 2
"""Blanks between two labels."""


def draw_bar(canvas: Canvas, x: int, y: int, width: int, fraction: float | None, style: int) -> None:
    """Draw how full something is: ``▰▰▰▱▱▱▱▱``, ``width`` cells from column ``x`` of line ``y``.

    It looks empty only at 0 and full only at 1. ``fraction`` is limited to 0 and 1; None and NaN, which mean
    "not measured", are an empty bar.
    """
    filled = _parts_done(fraction, width)
    canvas.fill(Rect(x, y, filled, 1), "▰", style)
    canvas.fill(Rect(x + filled, y, width - filled, 1), "▱", Style.DIM)


def draw_progress(canvas: Canvas, x: int, y: int, width: int, fraction: float | None, style: int) -> None:
    """Draw progress to half a cell: ``━━━╸────``; otherwise as ``draw_bar``."""
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


def draw_digits(canvas: Canvas, x: int, y: int, number: str, style: int) -> int:
    """Draw ``number`` in large digits from line ``y`` on; return the column after it.

    ``number`` has digits, points and minus signs. A terminal without UTF-8 gets it as text in the last line.
    """
    if canvas.ascii_only:
        return canvas.text(x, y + DIGIT_LINES - 1, number, style)
    for line in range(DIGIT_LINES):
        end = canvas.text(x, y + line, " ".join(_FONT[character][line] for character in number), style)
    return end


def draw_interval(canvas: Canvas, ratio: float, low: float | None, high: float | None, *, style: int) -> None:
    """Draw ``────│──├─●─┤──`` above the labels of its logarithmic axis; all values are above 0.

    The axis depends on the ratio alone: a whisker that is too long for it ends in an arrow. Without an
    interval there is only the dot.
    """
    half = (min(canvas.width, _MAX_AXIS_WIDTH) - 1) // 2
    if half < 1:
        return
    distance = abs(math.log(ratio))
    span = next((end for end in _AXIS_ENDS if distance <= _MAX_DOT_PART * math.log(end)), _AXIS_ENDS[-1])
    scale = half / math.log(span)
    canvas.fill(Rect(0, 0, 2 * half + 1, 1), "─", Style.DIM)
    canvas.text(half, 0, "│", Style.DIM)
    if low is not None and high is not None:
        start, stop = half + _offset(low, scale, half), half + _offset(high, scale, half)
        canvas.fill(Rect(start, 0, stop - start + 1, 1), "━", style)
        if start < half < stop:
            canvas.text(half, 0, "┼", style)
        canvas.text(start, 0, "←" if math.log(low) * scale < -half - 1 else "├", style)
        canvas.text(stop, 0, "→" if math.log(high) * scale > half + 1 else "┤", style)
    canvas.text(half + _offset(ratio, scale, half), 0, "●", style)
    _draw_axis_labels(canvas, span, half)


def _offset(ratio: float, scale: float, half: int) -> int:
    """Cells right of the middle, limited to the axis."""
    return max(-half, min(half, round(math.log(ratio) * scale)))


def _draw_axis_labels(canvas: Canvas, span: float, half: int) -> None:
    """Label both ends and the middle of the axis; of a short one the middle only."""
    low, high = f"{1 / span:.2f}×", f"{span:.2f}×"
    canvas.text(half, 1, "1×", Style.DIM)
    if half >= len(low) + _MIN_LABEL_GAP and half + 1 >= len("1×") + _MIN_LABEL_GAP + len(high):
        canvas.text(0, 1, low, Style.DIM)
        canvas.text(2 * half + 1 - len(high), 1, high, Style.DIM)


def draw_stack(canvas: Canvas, x: int, y: int, parts: Iterable[tuple[int, str, int]]) -> None:
    """Draw parts side by side from column ``x`` of line ``y``: how many cells, of what sign and style."""
    for cells, sign, style in parts:
        canvas.fill(Rect(x, y, cells, 1), sign, style)
        x += cells
