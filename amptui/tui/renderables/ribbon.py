"""The lines below a plot: which precision ran where, which steps were skipped, and the steps' numbers."""

import numpy as np
import numpy.typing as npt

from amptui.telemetry.labels import precision_letter
from amptui.telemetry.view import PrecisionSwitch, Series
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.renderables.columns import columns_above_zero, nonfinite_columns
from amptui.tui.renderables.step_window import GUTTER, Window, round_above, stretches
from amptui.tui.style import BOLD, Style, precision_style

_CELLS_A_LABEL = 20
"""The step axis has at most one label in so many cells."""

_LABEL_DISTANCE = 2
"""Blanks that are left between two labels at least."""


def draw_ribbon(
    canvas: Canvas,
    *,
    window: Window,
    switches: tuple[PrecisionSwitch, ...],
    skips: Series,
    nonfinite: Series | None = None,
) -> None:
    """Draw the precisions along the x axis of a plot of the same width, on the first line of ``canvas``.

    Each stretch of steps in one precision is a line in its style that begins with its letter. A ``×`` marks
    columns with a skipped step, a red one those with NaN or Inf in ``nonfinite``. The letter stands right
    of the marks that a stretch begins with; where they leave it no room it takes the place of the first.
    """
    area = canvas.part(Rect(GUTTER, 0, max(0, canvas.width - GUTTER), 1))
    if not area.width or not area.height:
        return
    marks = np.zeros(area.width, np.uint8)
    marks[columns_above_zero(skips, window, area.width)] = Style.WARNING | BOLD
    if nonfinite is not None:
        marks[nonfinite_columns(nonfinite, window, area.width)] = Style.ERROR | BOLD
    end = window.columns_through(skips.last_step, area.width) if skips.count else area.width
    for stretch in stretches(window, switches, area.width):
        part = area.part(Rect(stretch.start, 0, min(stretch.stop, end) - stretch.start, 1))
        if part.width:
            _draw_stretch(part, stretch.precision, marks[stretch.start :][: part.width])


def _draw_stretch(part: Canvas, precision: str | None, marks: npt.NDArray[np.uint8]) -> None:
    """Line, marks (an style, or 0 for none) and letter of the cells of ``part``."""
    style = Style.DIM if precision is None else precision_style(precision)
    part.fill(Rect(0, 0, part.width, 1), "▔", style)
    marked = marks > 0
    part.chars[0, marked] = part.code_point("×")
    part.styles[0, marked] = marks[marked]
    if precision is not None:
        free = np.flatnonzero(~marked)
        at, letter_style = (int(free[0]), style | BOLD) if len(free) else (0, int(marks[0]))
        part.text(at, 0, precision_letter(precision), letter_style)


def draw_step_axis(canvas: Canvas, *, window: Window) -> None:
    """Write the first, the last and round steps between them under their columns of a plot.

    A label in between is centred on its column; labels that would come too near to another are left out.
    """
    columns = canvas.width - GUTTER
    if columns <= 0:
        return
    taken = canvas.text(GUTTER, 0, f"{window.first_step:,}", Style.DIM)
    last = f"{window.last_step:,}"
    free = canvas.width - len(last)
    if free < taken + _LABEL_DISTANCE:
        return
    canvas.text(free, 0, last, Style.DIM)
    interval = round_above(-(-window.steps * _CELLS_A_LABEL // columns))
    for step in range(window.first_step // interval * interval + interval, window.last_step, interval):
        label = f"{step:,}"
        x = GUTTER + window.column_of(step, columns) - len(label) // 2
        if x >= taken + _LABEL_DISTANCE and x + len(label) + _LABEL_DISTANCE <= free:
            taken = canvas.text(x, 0, label, Style.DIM)
