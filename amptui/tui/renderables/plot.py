"""A curve over steps, its axis, the dots it is drawn of, and the lines of precisions and steps below it.

The smoothed line has the colours of the precisions; the values around it are dim.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from amptui.base import units
from amptui.diagnosis.labels import precision_letter, short_label
from amptui.telemetry.axis import SMOOTHING_PART, Axis, Kind, axis, noisy_curve, round_up, usual_distance
from amptui.telemetry.view import Counts, Floats, PrecisionSwitch, Series
from amptui.tui.canvas import BLANK, BRAILLE, Canvas, Rect
from amptui.tui.renderables.step_window import (
    GUTTER,
    Bools,
    Columns,
    Points,
    Window,
    marked_columns,
    sample,
    stretches,
)
from amptui.tui.style import BOLD, Style, precision_style

DOTS_ACROSS = 2
DOTS_DOWN = 4
"""Dots of a braille cell."""

_BITS = np.array([[0x01], [0x02], [0x04], [0x40]], np.uint8)
"""The bit of each dot in the left half of a cell; on the right they are 0x08, 0x10, 0x20 and 0x80."""

_BRAILLE = np.arange(BRAILLE, BRAILLE + 256, dtype=np.uint32)
"""The character for each set of bits."""

_BRAILLE[0] = BLANK

_MIN_FILL = 0.5
"""Limits are tightened when the curve would fill less than this part of the height."""

_MAX_LABELS = 6
"""Of a value axis; on a lower plot every second line has room for one."""

_CELLS_A_LABEL = 20
"""Cells for each label of the step axis."""

_MIN_LABEL_GAP = 2
"""Blanks between two labels."""

_TOLERANCE = 1e-9
"""Values are not marked as outside for a rounding error."""

_LONELY = 2.0
"""A single step has a dot so many times as far from the line as those of nine in ten columns."""

_MAX_MARKED = 0.25
"""Where steps lie outside in more of the columns, they are only counted: that is how far they scatter."""


class YLimits:
    """Limits that change only when they must, because every change repaints the whole plot.

    They widen when what is needed falls outside, and tighten when the curve fills less than half of the
    height. ``ceiling`` as for :func:`axis`.
    """

    def __init__(self, ceiling: float = math.inf) -> None:
        self._ceiling = ceiling
        self._axis: Axis | None = None

    def axis(self, low: float, high: float, kind: Kind, *, needed: tuple[float, float] | None = None) -> Axis:
        """The axis for finite values from ``low`` to ``high``, of which only ``needed`` must be on it."""
        current, proposed = self._axis, axis(low, high, kind, ceiling=self._ceiling)
        least, most = needed or (low, high)
        if current is None or current.kind != proposed.kind or least < current.low or most > current.high:
            self._axis = proposed
            return proposed
        (bottom, top), (low, high) = current.ends(), proposed.ends()
        self._axis = current if high - low >= _MIN_FILL * (top - bottom) else proposed
        return self._axis


class CurvePlot:
    """One curve, drawn frame after frame; its y axis changes rarely.

    With ``band`` the series is noisy: the line is the mean averaged over neighbouring columns, but never
    across a switch or a gap, and the axis is scaled to it. Dim dots are the means of single columns, and the
    steps that are far from the others. Steps outside are counted and, where they are rare, marked
    ``↑`` and ``↓``. Without ``band`` the line is the mean of each column, and all of it is visible.
    A dim line joins values between which nothing was measured, as those of validations. ``ceiling`` as for
    :func:`axis`.
    """

    def __init__(
        self,
        format_y: Callable[[float], str],
        *,
        band: bool = True,
        ceiling: float = math.inf,
    ) -> None:
        self._format_y = format_y
        self._band = band
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
        columns = sample(series, window, area.width * DOTS_ACROSS)
        styles = np.zeros(area.width, np.uint8)
        for stretch in stretches(window, switches, area.width):
            styles[stretch.start : stretch.stop] = precision_style(stretch.precision)
        gaps = by_cell(columns.nonfinite)
        if np.isfinite(columns.mean).any():
            kind = kind if ((columns.mean if self._band else columns.low) > 0).any() else "linear"
            line, y_axis = self._line_and_axis(columns, kind, np.repeat(gaps, DOTS_ACROSS), styles)
            draw_labels(canvas, y_axis, self._format_y)
            heights = y_axis.heights(np.stack((line, columns.mean, columns.low, columns.high)))
            styles = np.where(by_cell(np.isfinite(line)), styles, np.uint8(Style.DIM))
            _connect(heights[0], np.repeat(gaps, DOTS_ACROSS))
            _draw_curve(area, heights, styles, band=self._band)
        mark(area, 0, "×", gaps, Style.ERROR)
        if np.isfinite(columns.mean).any():
            _mark_outside(area, columns.points, y_axis, heights, styles)

    def _line_and_axis(
        self, columns: Columns, kind: Kind, gaps: Bools, styles: npt.NDArray[np.uint8]
    ) -> tuple[Floats, Axis]:
        """The line, with NaN in ``gaps``, and the axis that is scaled to it."""
        line = np.where(gaps, np.nan, columns.mean)
        if not self._band:
            lows = columns.low if kind == "linear" else columns.low[columns.low > 0]
            return line, self._limits.axis(float(np.nanmin(lows)), float(np.nanmax(columns.high)), kind)
        values = line if np.isfinite(line).any() else columns.mean
        switches = ((styles[1:] != styles[:-1]).nonzero()[0] + 1) * DOTS_ACROSS
        reach = max(1, len(line) // SMOOTHING_PART)
        line, needed, limits = noisy_curve(values, kind, reach, switches, columns.weights)
        return np.where(gaps, np.nan, line), self._limits.axis(*limits, kind, needed=needed)


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


def _draw_curve(area: Canvas, heights: Floats, styles: npt.NDArray[np.uint8], *, band: bool) -> None:
    """Draw the line, and dots where it leaves a cell free: a cell has one style.

    ``heights``: of the line, and of the mean, the lowest and the highest value of each column.
    """
    height, finite = area.height * DOTS_DOWN, np.isfinite(heights)
    # Dot rows from the top; any row where there is no value.
    within = np.minimum(np.maximum(heights, 0), 1)
    rows = np.rint((1 - np.where(finite, within, 0.0)) * (height - 1)).astype(np.int64)
    area.chars[...] = braille(line_dots(rows[0], finite[0], height))
    area.styles[...] = styles
    if not band:
        return
    has_dot = (heights[1:] >= 0) & (heights[1:] <= 1)
    distances = np.abs(within[2:] - within[0])
    has_dot[1:] &= distances > _LONELY * np.array([[usual_distance(side)] for side in distances])
    dots = np.zeros((height, len(heights[0])), np.bool_)
    dots[rows[1:][has_dot], has_dot.nonzero()[1]] = True
    behind = area.chars == BLANK
    np.copyto(area.chars, braille(dots), where=behind)
    np.copyto(area.styles, np.uint8(Style.DIM), where=behind)


def _mark_outside(
    area: Canvas, points: Points, axis: Axis, heights: Floats, styles: npt.NDArray[np.uint8]
) -> None:
    """Mark the columns with steps outside, or, where these are many, those with their mean there.

    The number of these steps is where there is room, at the right: the least one if a bucket hides how many.
    """
    more = "" if len(points.steps) > points.last_step - points.steps[0] else "+"
    sides = (
        (0, 1, "↑", "above", heights[3], points.high),
        (area.height - 1, -1, "↓", "below", heights[2], points.low),
    )
    for y, side, sign, word, extremes, values in sides:
        marked = by_cell(_is_outside(extremes, side))
        if not marked.any():
            continue
        if marked.mean() > _MAX_MARKED:
            marked = by_cell(_is_outside(heights[1], side))
        mark(area, y, sign, marked, styles)
        steps = np.count_nonzero(_is_outside(axis.heights(values), side))
        words = f" {steps:,}{more} step{'' if steps == 1 and not more else 's'} {word} "
        free = (area.chars[y] == BLANK) | (area.styles[y] == Style.DIM)
        x = free.tobytes().rfind(b"\1" * len(words))
        if x >= 0:
            area.text(x, y, words, Style.DIM)


def _is_outside(heights: Floats, side: int) -> Bools:
    """Of each height, whether it is above the axis, or, with a ``side`` of -1, below."""
    result: Bools = side * (heights - 0.5) > 0.5 + _TOLERANCE
    return result


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


def by_cell(dots: Bools) -> Bools:
    """Whether any of a cell's dot columns is set."""
    cells: Bools = np.logical_or.reduce(dots.reshape(-1, DOTS_ACROSS), axis=1)
    return cells


def mark(area: Canvas, y: int, sign: str, where: Bools, styles: npt.NDArray[np.uint8] | int) -> None:
    """Put ``sign`` at the columns ``where`` of line ``y``."""
    if not where.any():
        return
    area.chars[y, where] = ord(sign)
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


def braille(dots: Bools) -> npt.NDArray[np.uint32]:
    """The characters [height / 4, columns / 2] of ``dots``; blanks where there are none."""
    halves = np.bitwise_or.reduce(dots.view(np.uint8).reshape(-1, DOTS_DOWN, dots.shape[1]) * _BITS, axis=1)
    left, right = halves[:, ::DOTS_ACROSS], halves[:, 1::DOTS_ACROSS]
    characters: npt.NDArray[np.uint32] = _BRAILLE[left | (right & 0x07) << 3 | (right & 0x40) << 1]
    return characters


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

    Each stretch in one precision is a line in its style, marked with its letter, and where one has room first
    with its name, too. A ``×`` marks columns with a skipped step, in red those with NaN or Inf in
    ``nonfinite``. The letter stands in the first column without a mark, or replaces the first mark.
    """
    area = canvas.columns(GUTTER)
    if not area.width or not area.height:
        return
    marks = np.zeros(area.width, np.uint8)
    marks[marked_columns(skips, window, area.width, nonfinite=False)] = Style.WARNING | BOLD
    if nonfinite is not None:
        marks[marked_columns(nonfinite, window, area.width, nonfinite=True)] = Style.ERROR | BOLD
    end = window.columns_through(skips.last_step, area.width) if skips.count else area.width
    named = set[str]()
    for stretch in stretches(window, switches, area.width):
        part = area.part(Rect(stretch.start, 0, min(stretch.stop, end) - stretch.start, 1))
        if not part.width:
            continue
        style = Style.DIM if stretch.precision is None else precision_style(stretch.precision)
        part.fill(Rect(0, 0, part.width, 1), "▔", style)
        part_marks = marks[stretch.start :][: part.width]
        marked = part_marks > 0
        part.chars[0, marked] = ord("×")
        part.styles[0, marked] = part_marks[marked]
        if stretch.precision is not None:
            free = np.flatnonzero(~marked)
            at, letter_style = (int(free[0]), style | BOLD) if len(free) else (0, int(part_marks[0]))
            letter = precision_letter(stretch.precision)
            words = f"{letter} {short_label(stretch.precision)}"
            has_room = at + len(words) < part.width and not marked[at : at + len(words)].any()
            if has_room and words not in named:
                named.add(words)
                part.text(at, 0, words, letter_style)
            else:
                part.text(at, 0, letter, letter_style)


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
