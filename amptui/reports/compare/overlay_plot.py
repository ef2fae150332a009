"""Draws the curves of all groups over each other on a canvas: a line, a band and a letter each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from amptui.base import units
from amptui.reports.compare import sentences
from amptui.reports.compare.grid import Grid, GroupCurve
from amptui.reports.compare.groups import COLOURS, Group
from amptui.telemetry.axis import Axis, Kind, usual_range
from amptui.telemetry.view import Floats
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.plot import (
    DOTS_ACROSS,
    DOTS_DOWN,
    YLimits,
    area_dots,
    braille,
    by_cell,
    draw_labels,
    line_dots,
    mark,
)
from amptui.tui.renderables.step_window import GUTTER
from amptui.tui.style import BOLD, Style, precision_style

STYLES = {name: precision_style(name) for name in COLOURS}
"""The style of each colour of a group."""

MAX_GROUPS = len(COLOURS)
"""Groups with a curve: the eye cannot distinguish more colours."""

_LETTER_EVERY = 18
"""Cells from one letter on a line to the next."""

_BAND_ONE_IN = 4
"""One in so many dots of a band is set: the line stands out."""

_TAKE_TURNS = 3
"""Cells in a row of one colour where lines coincide."""

Cells = npt.NDArray[np.int64]

AXIS_LINES = 1
"""Lines below the curves for the labels of the x axis."""


class OverlayPlot:
    """Draws the curves, frame after frame; the y axis changes rarely."""

    def __init__(self) -> None:
        self._limits = YLimits()

    def draw(self, canvas: Canvas, grid: Grid, groups: Sequence[Group], *, log_y: bool) -> bool:
        """Draw on a cleared canvas, labels in the left ``GUTTER`` cells; false if there is nothing to draw.

        Columns with NaN or Inf of any run are marked ``×`` in the top line. On a logarithmic axis losses of
        0 and below are left out.
        """
        area = canvas.columns(GUTTER).rows(0, canvas.height - AXIS_LINES)
        curves = [(place, curve) for place, curve in enumerate(grid.curves[:MAX_GROUPS]) if curve is not None]
        measured = [curve for _, curve in curves if np.isfinite(curve.low).any()]
        if not measured or area.width < 1 or area.height < 1:
            return False
        values = np.concatenate([losses for curve in measured for losses in (curve.low, curve.high)])
        kind: Kind = "log10" if log_y and (values > 0).any() else "linear"
        axis = self._limits.axis(*usual_range(values, kind), kind)
        draw_labels(canvas.rows(0, area.height), axis, units.loss)
        # The two ends of the x axis and the middle of it.
        words, last = sentences.axis_words(grid.axis), canvas.height - 1
        canvas.text(GUTTER, last, words(grid.low), Style.DIM)
        for text, share in ((words((grid.low + grid.high) / 2), 2), (words(grid.high), 1)):
            canvas.text(GUTTER + (canvas.width - GUTTER - len(text)) // share, last, text, Style.DIM)
        styles = [STYLES[group.colour] for group in groups[:MAX_GROUPS]]
        down, one_in = (1, 1) if area.ascii_only else (DOTS_DOWN, _BAND_ONE_IN)
        dot_rows = area.height * down
        for place, curve in curves:
            low_rows, in_sight = _rows(curve.low, axis, dot_rows)
            # One run that goes on alone has no spread: its dots stand for it.
            in_sight &= (curve.high > curve.low) | ~np.isfinite(curve.mean)
            high_rows, _ = _rows(curve.high, axis, dot_rows)
            dots = area_dots(high_rows, low_rows, in_sight, dot_rows, one_in=one_in)
            _put(area, dots, ".", styles[place])
        shared = np.zeros(area.chars.shape, np.int64)
        for place, curve in curves:
            dots = line_dots(*_rows(curve.mean, axis, dot_rows), dot_rows)
            _put(area, dots, "*", styles[place] | BOLD, shared=shared)
        for place, curve in curves:
            letter, shift = groups[place].letter, _LETTER_EVERY // len(curves) * place + 3
            _draw_letters(area, letter, shift, curve, axis, styles[place])
        return True


def dot_columns(width: int, *, ascii_only: bool) -> int:
    """How many columns of values the curves have on a canvas ``width`` cells wide."""
    return max(0, width - GUTTER) * (1 if ascii_only else DOTS_ACROSS)


def _rows(curve: Floats, axis: Axis, height: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Dot rows from the top, the edge for values outside the limits; and which columns have a value."""
    heights = axis.heights(curve)
    rows = np.rint((1 - np.nan_to_num(np.clip(heights, 0.0, 1.0))) * (height - 1)).astype(np.int64)
    return rows, np.isfinite(heights)


def _put(
    area: Canvas, dots: npt.NDArray[np.bool_], plain: str, style: int, *, shared: Cells | None = None
) -> None:
    """Add dots to what is there: a cell keeps all of them and has the style of the last curve.

    ``shared`` counts the lines in each cell. Where lines share cells they take turns with their styles: lines
    that coincide show all their colours.
    """
    new = dots.copy() if area.ascii_only else (characters := braille(dots)) != ord(" ")
    styled = new
    if shared is not None:
        column = np.arange(area.width) // _TAKE_TURNS
        styled = new & ((shared == 0) | (column % (shared + 1) == shared))
        shared += new
    if area.ascii_only:
        area.chars[styled] = ord(plain)
    else:
        old = (area.chars >= 0x2800) & (area.chars < 0x2900)
        # Braille patterns are bit sets: the dots of both.
        area.chars[new & old] |= characters[new & old]
        area.chars[new & ~old] = characters[new & ~old]
    area.styles[styled] = style


def _draw_letters(area: Canvas, letter: str, shift: int, curve: GroupCurve, axis: Axis, style: int) -> None:
    """The group's letter on its line now and then, from column ``shift`` on; ``×`` over gaps."""
    across = 1 if area.ascii_only else DOTS_ACROSS
    mark(area, 0, "×", by_cell(curve.nonfinite, across), Style.ERROR)
    line = np.where(np.isfinite(curve.mean), curve.mean, curve.low)[::across]
    down = 1 if area.ascii_only else DOTS_DOWN
    rows, has_value = _rows(line, axis, area.height * down)
    in_sight = has_value.nonzero()[0].tolist()
    if not in_sight:
        return
    places = [x for x in range(shift, area.width, _LETTER_EVERY) if has_value[x]]
    for x in places or in_sight[-1:]:
        area.text(x, int(rows[x]) // down, letter, style | BOLD)
