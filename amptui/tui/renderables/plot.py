"""A curve over steps: the mean in the colours of the precisions, the extremes dim behind it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from amptui.telemetry.smoothing import smoothed_by_weight
from amptui.telemetry.view import PrecisionSwitch, Series
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.renderables.columns import Bools, Columns, extent, sample
from amptui.tui.renderables.dots import DOTS_ACROSS, DOTS_DOWN, area_dots, braille, line_dots
from amptui.tui.renderables.limits import Axis, YLimits
from amptui.tui.renderables.step_window import GUTTER, Window, stretches
from amptui.tui.style import Style, precision_style

_MIDDLE_LABEL_HEIGHT = 5
"""Lines needed for a label between top and bottom."""

_SMOOTHING_PART = 40
"""The line is averaged twice, over a fortieth of the plot's width to both sides."""

_TOLERANCE = 1e-9
"""Values are not marked as outside for a rounding error."""


class CurvePlot:
    """One curve, drawn frame after frame; its y axis changes rarely.

    With ``band`` the series is noisy: a dim area shows its extremes, the line is the mean averaged over
    neighbouring columns, but never across a switch or a gap, and rare outliers may lie outside, marked ``↑``
    and ``↓``. Without ``band`` the line is the mean of each column, and all of it is visible.
    """

    def __init__(self, format_y: Callable[[float], str], *, band: bool = True) -> None:
        self._format_y = format_y
        self._band = band
        self._limits = YLimits()

    def draw(
        self,
        canvas: Canvas,
        series: Series,
        *,
        window: Window,
        switches: tuple[PrecisionSwitch, ...],
        log_y: bool = False,
    ) -> None:
        """Draw the part of ``series`` in ``window`` on a cleared canvas, labels in the left ``GUTTER`` cells.

        Columns with NaN or Inf are a gap under a ``×``. On a logarithmic axis values of 0 and below are
        marked ``↓``; a series without positive ones gets a linear axis.
        """
        area = canvas.part(Rect(GUTTER, 0, max(0, canvas.width - GUTTER), canvas.height))
        if not area.width or not area.height:
            return
        across = 1 if canvas.ascii_only else DOTS_ACROSS
        columns = sample(series, window, area.width * across)
        styles = np.zeros(area.width, np.uint8)
        for stretch in stretches(window, switches, area.width):
            styles[stretch.start : stretch.stop] = precision_style(stretch.precision)
        gaps = by_cell(columns.nonfinite, across)
        if np.isfinite(columns.mean).any():
            log = log_y and bool((columns.high > 0).any())
            axis = self._limits.axis(*extent(columns, log=log, with_outliers=not self._band), log=log)
            draw_labels(canvas, axis, self._format_y)
            _draw_curve(area, columns, axis, styles, gaps=gaps, band=self._band)
        mark(area, 0, "×", gaps, Style.ERROR)


def draw_labels(canvas: Canvas, axis: Axis, format_y: Callable[[float], str]) -> None:
    """Label the ends of the axis and a round number near its middle."""
    last = canvas.height - 1
    labels = {last: axis.low, 0: axis.high}
    if canvas.height >= _MIDDLE_LABEL_HEIGHT:
        middle = axis.middle_tick()
        row = round((1 - float(axis.fraction(np.array([middle]))[0])) * last)
        labels = {row: middle} | labels
    for row, value in labels.items():
        canvas.text(0, row, format_y(value), Style.DIM, width=GUTTER - 1, align="right")


def _draw_curve(
    area: Canvas, columns: Columns, axis: Axis, styles: npt.NDArray[np.uint8], *, gaps: Bools, band: bool
) -> None:
    """Draw line and band; a cell shows only one of them, since it has one style."""
    across, down = (1, 1) if area.ascii_only else (DOTS_ACROSS, DOTS_DOWN)
    height = area.height * down
    # All three at once: on so few numbers the calls are what costs time.
    fractions = axis.fraction(np.stack((columns.low, columns.high, columns.mean)))
    within = np.minimum(np.maximum(fractions, 0), 1)
    line = within[2]
    if columns.weights is not None:
        line[:] = fractions[2]  # what lies outside takes its part in the mean
    line[np.repeat(gaps, across)] = np.nan
    if band:
        switches = (styles[1:] != styles[:-1]).nonzero()[0] + 1
        reach = max(1, len(line) // _SMOOTHING_PART)
        line[:] = smoothed_by_weight(line, columns.weights, reach, switches * across)
    np.clip(line, 0, 1, out=line)
    measured = np.isfinite(within)
    # Dot rows from the top; any row where there is no value.
    rows = np.rint((1 - np.where(measured, within, 0.0)) * (height - 1)).astype(np.int64)
    bottom, top, line_rows = rows
    line_chars = _characters(line_dots(line_rows, measured[2], height), "*", ascii_only=area.ascii_only)
    area.chars[...] = line_chars
    area.styles[...] = styles
    if band:
        # A quarter of the braille dots lets the line stand out; one dot a cell is sparse as it is.
        one_in = 1 if area.ascii_only else 4
        dots = area_dots(top, bottom, measured[0], height, one_in=one_in)
        behind = line_chars == ord(" ")
        np.copyto(area.chars, _characters(dots, ".", ascii_only=area.ascii_only), where=behind)
        np.copyto(area.styles, np.uint8(Style.DIM), where=behind)
    mark(area, 0, "↑", by_cell(fractions[1] > 1 + _TOLERANCE, across), styles)
    mark(area, area.height - 1, "↓", by_cell(fractions[0] < -_TOLERANCE, across), styles)


def _characters(dots: Bools, plain: str, *, ascii_only: bool) -> npt.NDArray[np.uint32]:
    return np.where(dots, np.uint32(ord(plain)), np.uint32(ord(" "))) if ascii_only else braille(dots)


def by_cell(dots: Bools, across: int) -> Bools:
    """Whether any of a cell's ``across`` dot columns is set."""
    cells: Bools = np.logical_or.reduce(dots.reshape(-1, across), axis=1)
    return cells


def mark(area: Canvas, y: int, sign: str, where: Bools, styles: npt.NDArray[np.uint8] | int) -> None:
    """Put ``sign`` at the columns ``where`` of line ``y``."""
    if not where.any():
        return
    area.chars[y, where] = area.code_point(sign)
    area.styles[y, where] = np.broadcast_to(styles, where.shape)[where]
