"""Which steps a plot shows, the column of each step, and what a column shows of a series."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amptui.telemetry.axis import LARGEST, round_down
from amptui.telemetry.view import Counts, Floats, PrecisionSwitch, Series

Bools = npt.NDArray[np.bool_]

GUTTER = 8
"""Cells left of a plot's first column: seven for the y label and a blank, also left of ribbon and axis."""

_MIN_STEPS = 32
"""A window shows at least so many steps: a run begins at its left end."""

_MAX_FREE_PART = 16
"""Right of a slow curve, at most one in so many columns is free."""

_STILL_SECONDS = 6.0
"""How long a fast curve grows before its window moves, which changes some 4 KB of cells."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps from ``first_step`` to ``last_step``, both included, spread evenly over all columns.

    Several steps may share a column. A step may also have several columns: it begins in the first.
    """

    first_step: int
    last_step: int

    @property
    def steps(self) -> int:
        """How many steps are shown, at least 1."""
        return max(1, self.last_step - self.first_step + 1)

    def __contains__(self, step: int) -> bool:
        return self.first_step <= step <= self.last_step

    def within(self, whole: "Window") -> "Window":
        """As many steps, moved into ``whole``; that if there are more."""
        if self.steps >= whole.steps:
            return whole
        first = min(max(self.first_step, whole.first_step), whole.last_step - self.steps + 1)
        return Window(first, first + self.steps - 1)

    def centred_on(self, step: int) -> "Window":
        """As many steps around ``step``."""
        first = step - self.steps // 2
        return Window(first, first + self.steps - 1)

    def column_of(self, step: int, columns: int) -> int:
        """The column where ``step`` begins, limited to ``[0, columns)``."""
        return min(max(0, self._columns_before(step, columns)), columns - 1)

    def columns_through(self, step: int, columns: int) -> int:
        """How many columns there are up to the end of ``step``, at least to the one where it begins."""
        begin = self.column_of(step, columns)
        return min(max(begin + 1, self._columns_before(step + 1, columns)), columns)

    def _columns_before(self, step: int, columns: int) -> int:
        return (step - self.first_step) * columns // self.steps

    def columns_of(self, steps: Counts, columns: int) -> Counts:
        """``column_of`` for many steps at once."""
        columns_of: Counts = np.clip((steps - self.first_step) * columns // self.steps, 0, columns - 1)
        return columns_of


def visible_window(series: Series, zoom: int, *, ahead: int = 0) -> Window:
    """The window of ``series`` at a zoom level: 0 shows the whole run, each level half as many steps.

    It ends at a round step at or after the newest: the curve grows into free columns and rarely moves as a
    whole, and cells that do not change cost nothing to send. At most a sixteenth of the width is free, or
    the columns of ``ahead`` steps (see `steps_ahead`), up to half of the width.
    """
    first, newest = series.first_step, max(series.first_step, series.last_step)
    count = newest - first + 1
    end = max(first + _MIN_STEPS - 1, _round_end(newest, count, min(ahead, count)))
    if zoom <= 0:
        return Window(first, end)
    steps = max(_MIN_STEPS, (end - first + 1) >> min(zoom, 62))
    end = max(first + steps - 1, _round_end(newest, steps, min(ahead, steps // 2)))
    return Window(end - steps + 1, end)


def steps_ahead(previous: int, step_seconds: float | None) -> int:
    """For how many steps curves leave room: those of `_STILL_SECONDS`.

    The answer stays ``previous`` while that is about right, since a change may move all curves.
    """
    if not step_seconds or step_seconds <= 0:
        return previous
    soon = int(min(_STILL_SECONDS / step_seconds, 1e9))
    return previous if previous // 2 <= soon <= 4 * previous else round(round_down(max(1, soon)))


def _round_end(newest: int, steps: int, ahead: int) -> int:
    """A round step from ``newest`` on, nearer than a sixteenth of ``steps`` or than ``ahead``."""
    grain = round(round_down(max(_MIN_STEPS // _MAX_FREE_PART, steps // _MAX_FREE_PART, ahead)))
    return -(-newest // grain) * grain


class Stretch(NamedTuple):
    """Columns ``[start, stop)``, whose steps ran in ``precision``; None if unknown."""

    start: int
    stop: int
    precision: str | None


def stretches(window: Window, switches: tuple[PrecisionSwitch, ...], columns: int) -> list[Stretch]:
    """The precision of every column, in order. Of several switches in one column the last counts.

    ``switches`` are sorted by step.
    """
    if columns <= 0:
        return []
    step_of = attrgetter("step")
    before = max(0, bisect_right(switches, window.first_step, key=step_of) - 1)
    within = switches[before : bisect_right(switches, window.last_step, key=step_of)]
    precisions: dict[int, str | None] = {0: None}
    for switch in within:
        precisions[window.column_of(switch.step, columns)] = switch.precision
    return [Stretch(start, stop, precisions[start]) for start, stop in pairwise([*precisions, columns])]


# ------------------------------------------------------------------------- what a column shows


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """The values of a series within a window: single steps, or buckets of several."""

    steps: Counts
    """The first step of each point."""
    last_step: int
    """The last step of the last point."""
    low: Floats
    high: Floats
    mean: Floats
    nonfinite: Bools
    weights: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One element for each column; NaN for a column without a finite value."""

    low: Floats
    high: Floats
    mean: Floats
    nonfinite: Bools
    """Columns in which a value was NaN or Inf."""
    weights: Floats | None
    """Of rates: the seconds of each column, by which ``mean`` is weighted."""
    points: Points
    """What they are made of."""


def sample(series: Series, window: Window, columns: int) -> Columns:
    """Reduce the part of ``series`` in ``window`` to ``columns``, exactly where recent values suffice.

    Points that begin in one column are combined; their means are averaged as if all buckets were full, which
    only the newest may not be, and those of rates by their seconds. Where there are fewer points than
    columns, each point fills all columns of its steps.
    """
    low, high, mean = np.full((3, columns), np.nan)
    nonfinite = np.zeros(columns, np.bool_)
    weights = None if series.weights is None else np.zeros(columns)
    points = _points_within(series, window)
    if len(points.steps) and columns > 0:
        starts, widths, filled = _groups(points, window, columns)
        low[filled] = np.repeat(_bounded(np.fmin.reduceat(points.low, starts)), widths)
        high[filled] = np.repeat(_bounded(np.fmax.reduceat(points.high, starts)), widths)
        means, seconds = _means(points.mean, points.weights, starts)
        mean[filled] = np.repeat(means, widths)
        if weights is not None:
            weights[filled] = np.repeat(seconds / widths, widths)
        nonfinite[filled] = np.repeat(np.logical_or.reduceat(points.nonfinite, starts), widths)
    return Columns(low, high, mean, nonfinite, weights, points)


def marked_columns(series: Series, window: Window, columns: int, *, nonfinite: bool) -> Bools:
    """Columns with NaN or Inf, or else with a value above 0, such as a skipped step: as in ``sample``."""
    points = _points_within(series, window)
    marked = points.nonfinite if nonfinite else points.high > 0
    result = np.zeros(columns, np.bool_)
    if marked.any() and columns > 0:
        starts, widths, filled = _groups(points, window, columns)
        result[filled] = np.repeat(np.logical_or.reduceat(marked, starts), widths)
    return result


def _groups(points: Points, window: Window, columns: int) -> tuple[Counts, Counts, slice]:
    """Points that begin in one column: the first of each group, its number of columns, and all of these."""
    column_of = window.columns_of(points.steps, columns)
    starts = np.append(0, (column_of[1:] != column_of[:-1]).nonzero()[0] + 1)
    begins = column_of[starts]
    stop = window.columns_through(points.last_step, columns)
    return starts, np.append(begins[1:], stop) - begins, slice(int(begins[0]), stop)


def _means(values: Floats, weights: Floats | None, starts: Counts) -> tuple[Floats, Floats]:
    """The means of the finite values from each start to the next, and their weights; NaN for no value."""
    finite = np.isfinite(values)
    weights = finite.astype(np.float64) if weights is None else np.where(finite & (weights > 0), weights, 0.0)
    totals = np.add.reduceat(weights, starts)
    sums = np.add.reduceat(np.where(weights > 0, _bounded(values), 0.0) * weights, starts)
    return np.divide(sums, totals, out=np.full(len(starts), np.nan), where=totals > 0), totals


def _bounded(values: Floats) -> Floats:
    return np.minimum(np.maximum(values, -LARGEST), LARGEST)


def _points_within(series: Series, window: Window) -> Points:
    """The recent steps one by one if they reach back to the first of the window, else buckets of several."""
    if max(window.first_step, series.first_step) >= series.first_recent:
        first, size = series.first_recent, 1
        low = high = mean = series.recent
        nonfinite, weights = series.recent_nonfinite, series.recent_weights
    else:
        first, size = series.first_step, series.bucket_steps
        low, high, mean = series.minimum, series.maximum, series.mean
        nonfinite, weights = series.nonfinite > 0, series.weights
    start = max(0, (window.first_step - first) // size)
    stop = max(start, min(len(mean), (window.last_step - first) // size + 1))
    return Points(
        np.arange(first + start * size, first + stop * size, size),
        min(first + stop * size - 1, series.last_step),
        low[start:stop],
        high[start:stop],
        mean[start:stop],
        nonfinite[start:stop],
        None if weights is None else weights[start:stop],
    )
