"""A curve over steps, its axis, the dots it is drawn of, and the lines of precisions and steps below it.

The mean has the colours of the precisions; the extremes are dim behind it.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from amptui.base import units
from amptui.diagnosis.labels import precision_letter
from amptui.telemetry.axis import Axis, Kind, axis, round_up, smoothed
from amptui.telemetry.view import Counts, Floats, PrecisionSwitch, Series
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.renderables.step_window import (
    GUTTER,
    Bools,
    Columns,
    Window,
    marked_columns,
    sample,
    shown_range,
    stretches,
)
from amptui.tui.style import BOLD, Style, precision_style

DOTS_ACROSS = 2
DOTS_DOWN = 4
"""Dots of a braille cell."""

_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)
"""The bit of each dot of a cell in the code points from U+2800 on."""

_MIN_FILL = 0.5
"""Limits are tightened when the curve would fill less than this part of the height."""

_MAX_LABELS = 6
"""Of a value axis; on a lower plot every second line has room for one."""

_SMOOTHING_PART = 30
"""The line is the running mean over a thirtieth of the plot's width to both sides."""

_CELLS_A_LABEL = 20
"""Cells for each label of the step axis."""

_MIN_LABEL_GAP = 2
"""Blanks between two labels."""

_TOLERANCE = 1e-9
"""Values are not marked as outside for a rounding error."""


class YLimits:
    """Limits that change only when they must, because every change repaints the whole plot.

    They widen when a value falls outside, and tighten when the curve fills less than half of the height.
    ``ceiling`` as for :func:`axis`.
    """

    def __init__(self, ceiling: float = math.inf) -> None:
        self._ceiling = ceiling
        self._axis: Axis | None = None

    def axis(self, low: float, high: float, kind: Kind = "linear") -> Axis:
        """The axis for finite values from ``low`` to ``high``."""
        current, proposed = self._axis, axis(low, high, kind, ceiling=self._ceiling)
        if current is None or current.kind != proposed.kind or low < current.low or high > current.high:
            self._axis = proposed
            return proposed
        (bottom, top), (low, high) = current.ends(), proposed.ends()
        self._axis = current if high - low >= _MIN_FILL * (top - bottom) else proposed
        return self._axis


class CurvePlot:
    """One curve, drawn frame after frame; its y axis changes rarely.

    With ``band`` the series is noisy: a dim area shows its extremes, the line is the mean averaged over
    neighbouring columns, but never across a switch or a gap, and rare outliers may lie outside, marked ``↑``
    and ``↓``. Without ``band`` the line is the mean of each column, and all of it is visible.
    With ``connected`` a dim line joins values between which nothing was measured, as those of validations.
    ``ceiling`` as for :func:`axis`.
    """

    def __init__(
        self,
        format_y: Callable[[float], str],
        *,
        band: bool = True,
        connected: bool = False,
        ceiling: float = math.inf,
    ) -> None:
        self._format_y = format_y
        self._band = band
        self._connected = connected
        self._limits = YLimits(ceiling)

    def draw(
        self,
        canvas: Canvas,
        series: Series,
        *,
        window: Window,
        switches: tuple[PrecisionSwitch, ...],
        kind: Kind = "linear",
    ) -> None:
        """Draw the part of ``series`` in ``window`` on a cleared canvas, labels in the left ``GUTTER`` cells.

        Columns with NaN or Inf are a gap under a ``×``. On a logarithmic axis values of 0 and below are
        marked ``↓``; a series without positive ones gets a linear axis.
        """
        area = canvas.columns(GUTTER)
        if not area.width or not area.height:
            return
        across = 1 if canvas.ascii_only else DOTS_ACROSS
        columns = sample(series, window, area.width * across)
        styles = np.zeros(area.width, np.uint8)
        for stretch in stretches(window, switches, area.width):
            styles[stretch.start : stretch.stop] = precision_style(stretch.precision)
        gaps = by_cell(columns.nonfinite, across)
        if np.isfinite(columns.mean).any():
            kind = kind if (columns.high > 0).any() else "linear"
            limits = shown_range(columns, kind, with_outliers=not self._band)
            y_axis = self._limits.axis(*limits, kind)
            draw_labels(canvas, y_axis, self._format_y)
            _draw_curve(area, columns, y_axis, styles, gaps=gaps, band=self._band, connected=self._connected)
        mark(area, 0, "×", gaps, Style.ERROR)


def draw_labels(canvas: Canvas, axis: Axis, format_y: Callable[[float], str]) -> None:
    """Label round values at equal distances; ``log`` stands on the first free line of a logarithmic axis."""
    last = canvas.height - 1
    ticks = axis.ticks(max(2, min(_MAX_LABELS, (canvas.height + 1) // 2))) if last else (axis.high,)
    rows = np.rint((1 - axis.heights(np.array(ticks))) * last).astype(np.int64).tolist()
    for row, value in zip(rows, ticks, strict=True):
        canvas.text(0, row, units.tick(format_y(value)), Style.DIM, width=GUTTER - 1, align="right")
    free = next((row for row in range(1, last) if row not in rows), None)
    if axis.is_logarithmic and free is not None:
        canvas.text(0, free, "log", Style.DIM, width=GUTTER - 1, align="right")


def _draw_curve(
    area: Canvas,
    columns: Columns,
    axis: Axis,
    styles: npt.NDArray[np.uint8],
    *,
    gaps: Bools,
    band: bool,
    connected: bool,
) -> None:
    """Draw line and band; a cell shows only one of them, since it has one style."""
    across, down = (1, 1) if area.ascii_only else (DOTS_ACROSS, DOTS_DOWN)
    height = area.height * down
    # All three at once: on so few numbers the calls are what costs time.
    fractions = axis.heights(np.stack((columns.low, columns.high, columns.mean)))
    within = np.minimum(np.maximum(fractions, 0), 1)
    line = within[2]
    if columns.weights is not None:
        line[:] = fractions[2]  # what lies outside takes its part in the mean
    line[np.repeat(gaps, across)] = np.nan
    if band:
        switches = (styles[1:] != styles[:-1]).nonzero()[0] + 1
        reach = max(1, len(line) // _SMOOTHING_PART)
        line[:] = smoothed(line, reach, switches * across, columns.weights)
    if connected:
        styles = np.where(by_cell(np.isfinite(line), across), styles, np.uint8(Style.DIM))
        _connect(line, np.repeat(gaps, across))
    np.clip(line, 0, 1, out=line)
    finite = np.isfinite(within)
    # Dot rows from the top; any row where there is no value.
    rows = np.rint((1 - np.where(finite, within, 0.0)) * (height - 1)).astype(np.int64)
    bottom, top, line_rows = rows
    line_chars = _characters(line_dots(line_rows, finite[2], height), "*", ascii_only=area.ascii_only)
    area.chars[...] = line_chars
    area.styles[...] = styles
    if band:
        # A quarter of the braille dots lets the line stand out; one dot a cell is sparse as it is.
        one_in = 1 if area.ascii_only else 4
        dots = area_dots(top, bottom, finite[0], height, one_in=one_in)
        behind = line_chars == ord(" ")
        np.copyto(area.chars, _characters(dots, ".", ascii_only=area.ascii_only), where=behind)
        np.copyto(area.styles, np.uint8(Style.DIM), where=behind)
    mark(area, 0, "↑", by_cell(fractions[1] > 1 + _TOLERANCE, across), styles)
    mark(area, area.height - 1, "↓", by_cell(fractions[0] < -_TOLERANCE, across), styles)


def _connect(line: Floats, gaps: Bools) -> None:
    """Fill the columns between two values with a straight line, unless a gap lies between them."""
    measured = np.flatnonzero(np.isfinite(line))
    if not len(measured):
        return
    columns = np.arange(len(line))
    after = measured.searchsorted(columns)
    is_between = (after > 0) & (after < len(measured)) & ~np.isfinite(line)
    gaps_before = np.cumsum(gaps)
    before, behind = measured[np.maximum(after, 1) - 1], measured[np.minimum(after, len(measured) - 1)]
    is_between &= gaps_before[before] == gaps_before[behind]
    line[is_between] = np.interp(columns[is_between], measured, line[measured])


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


def line_dots(rows: Counts, has_value: Bools, height: int) -> Bools:
    """Dots [height, columns] of a line through ``rows[column]`` of every column that ``has_value``.

    Each of two neighbours draws half of the dots between them, so that the line is one dot thick.
    """
    before, after = rows[:-1], rows[1:]
    joined = has_value[:-1] & has_value[1:]
    half = (before + after) // 2
    low, high = rows.copy(), rows.copy()
    low[:-1] = np.where(joined, np.minimum(before, half + 1), before)
    high[:-1] = np.where(joined, np.maximum(before, half), before)
    low[1:] = np.where(joined, np.minimum(low[1:], half + 1), low[1:])
    high[1:] = np.where(joined, np.maximum(high[1:], half), high[1:])
    y = np.arange(height)[:, np.newaxis]
    dots: Bools = (y >= low) & (y <= high) & has_value
    return dots


def area_dots(top: Counts, bottom: Counts, has_value: Bools, height: int, *, one_in: int) -> Bools:
    """One in so many of the dots [height, columns] from row ``top`` to row ``bottom`` of each column.

    They are spread evenly in every column, in staggered rows, so that a peak of one column is not missed. A
    column whose top is its bottom has that dot.
    """
    y, x = np.arange(height)[:, np.newaxis], np.arange(len(top))
    pattern = y % one_in == x * (one_in // 2) % one_in
    dots: Bools = (y >= top) & (y <= bottom) & has_value & (pattern | (top == bottom))
    return dots


def braille(dots: Bools) -> npt.NDArray[np.uint32]:
    """The characters [height / 4, columns / 2] of ``dots``; blanks where there are none."""
    height, width = dots.shape[0] // DOTS_DOWN, dots.shape[1] // DOTS_ACROSS
    cells = dots.reshape(height, DOTS_DOWN, width, DOTS_ACROSS).view(np.uint8)
    bits = np.einsum("ydxa,da->yx", cells, _BITS)
    return np.where(bits > 0, np.uint32(0x2800) + bits, np.uint32(ord(" ")))


# ------------------------------------------------------------------------ the lines below a plot


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
    area = canvas.columns(GUTTER)
    if not area.width or not area.height:
        return
    marks = np.zeros(area.width, np.uint8)
    marks[marked_columns(skips, window, area.width, nonfinite=False)] = Style.WARNING | BOLD
    if nonfinite is not None:
        marks[marked_columns(nonfinite, window, area.width, nonfinite=True)] = Style.ERROR | BOLD
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
