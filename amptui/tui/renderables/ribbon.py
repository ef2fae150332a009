"""The lines below a plot: the precision of each step, skipped steps, and step numbers."""

import numpy as np

from amptui.diagnosis.labels import precision_letter
from amptui.telemetry.axis import round_up
from amptui.telemetry.view import PrecisionSwitch, Series
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.renderables.columns import columns_above_zero, nonfinite_columns
from amptui.tui.renderables.step_window import GUTTER, Window, stretches
from amptui.tui.style import BOLD, Style, precision_style

_CELLS_A_LABEL = 20
"""Cells for each label of the step axis."""

_MIN_LABEL_GAP = 2
"""Blanks between two labels."""


def draw_ribbon(
    canvas: Canvas,
    *,
    window: Window,
    switches: tuple[PrecisionSwitch, ...],
    skips: Series,
    nonfinite: Series | None = None,
) -> None:
    """Draw the precisions along the x axis of a plot of the same width, on the first line of ``canvas``.

    Each stretch in one precision is a line in its style, marked with its letter. A ``×`` marks columns with a
    skipped step, in red those with NaN or Inf in ``nonfinite``. The letter stands in the first column without
    a mark, or replaces the first mark.
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
        if not part.width:
            continue
        style = Style.DIM if stretch.precision is None else precision_style(stretch.precision)
        part.fill(Rect(0, 0, part.width, 1), "▔", style)
        part_marks = marks[stretch.start :][: part.width]
        marked = part_marks > 0
        part.chars[0, marked] = part.code_point("×")
        part.styles[0, marked] = part_marks[marked]
        if stretch.precision is not None:
            free = np.flatnonzero(~marked)
            at, letter_style = (int(free[0]), style | BOLD) if len(free) else (0, int(part_marks[0]))
            part.text(at, 0, precision_letter(stretch.precision), letter_style)


def draw_step_axis(canvas: Canvas, *, window: Window) -> None:
    """Write the first and the last step, and round steps between them centred on their columns.

    Labels that would be too close to another are left out.
    """
    columns = canvas.width - GUTTER
    if columns <= 0:
        return
    end = canvas.text(GUTTER, 0, f"{window.first_step:,}", Style.DIM)
    last = f"{window.last_step:,}"
    free = canvas.width - len(last)
    if free < end + _MIN_LABEL_GAP:
        return
    canvas.text(free, 0, last, Style.DIM)
    interval = round(round_up(max(1.0, window.steps * _CELLS_A_LABEL / columns)))
    for step in range(window.first_step // interval * interval + interval, window.last_step, interval):
        label = f"{step:,}"
        x = GUTTER + window.column_of(step, columns) - len(label) // 2
        if x >= end + _MIN_LABEL_GAP and x + len(label) + _MIN_LABEL_GAP <= free:
            end = canvas.text(x, 0, label, Style.DIM)
