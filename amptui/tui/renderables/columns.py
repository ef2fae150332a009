"""Reduces a series to the columns of a plot: minimum, maximum and mean of each column."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amptui.telemetry.axis import LARGEST, Kind, extent, rate_limits
from amptui.telemetry.view import Counts, Floats, Series
from amptui.tui.renderables.step_window import Window

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One element for each column; NaN for a column without a finite value."""

    low: Floats
    high: Floats
    mean: Floats
    nonfinite: Bools
    """Columns in which a value was NaN or Inf."""
    weights: Floats | None = None
    """Of rates: the seconds of each column, by which ``mean`` is weighted."""


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
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
        if weights is None or points.weights is None:
            mean[filled] = np.repeat(_means(points.mean, starts), widths)
        else:
            means, seconds = _weighted_means(points.mean, points.weights, starts)
            mean[filled], weights[filled] = np.repeat(means, widths), np.repeat(seconds / widths, widths)
        nonfinite[filled] = np.repeat(np.logical_or.reduceat(points.nonfinite, starts), widths)
    return Columns(low, high, mean, nonfinite, weights)


def columns_above_zero(series: Series, window: Window, columns: int) -> Bools:
    """Columns with a value above 0, such as a skipped step: as ``sample(...).high > 0``."""
    points = _points_within(series, window)
    return _columns_with(points.high > 0, points, window, columns)


def nonfinite_columns(series: Series, window: Window, columns: int) -> Bools:
    """Columns with NaN or Inf: as ``sample(...).nonfinite``."""
    points = _points_within(series, window)
    return _columns_with(points.nonfinite, points, window, columns)


def _columns_with(marked: Bools, points: _Points, window: Window, columns: int) -> Bools:
    """The columns of the ``marked`` points."""
    result = np.zeros(columns, np.bool_)
    if marked.any() and columns > 0:
        starts, widths, filled = _groups(points, window, columns)
        result[filled] = np.repeat(np.logical_or.reduceat(marked, starts), widths)
    return result


def _groups(points: _Points, window: Window, columns: int) -> tuple[Counts, Counts, slice]:
    """Points that begin in one column: the first of each group, its number of columns, and all of these."""
    column_of = window.columns_of(points.steps, columns)
    starts = np.append(0, (column_of[1:] != column_of[:-1]).nonzero()[0] + 1)
    begins = column_of[starts]
    stop = window.columns_through(points.last_step, columns)
    return starts, np.append(begins[1:], stop) - begins, slice(int(begins[0]), stop)


def _means(values: Floats, starts: Counts) -> Floats:
    """The means of the finite values from each start to the next; NaN where there is none."""
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(finite, _bounded(values), 0.0), starts)
    means: Floats = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    return means


def _weighted_means(values: Floats, weights: Floats, starts: Counts) -> tuple[Floats, Floats]:
    """The same, weighted; and the sum of the weights."""
    weights = np.where(np.isfinite(values), np.nan_to_num(weights), 0.0)
    totals = np.add.reduceat(weights, starts)
    sums = np.add.reduceat(np.where(weights > 0, values, 0.0) * weights, starts)
    return np.divide(sums, totals, out=np.full(len(starts), np.nan), where=totals > 0), totals


def _bounded(values: Floats) -> Floats:
    return np.minimum(np.maximum(values, -LARGEST), LARGEST)


def shown_range(columns: Columns, kind: Kind, *, with_outliers: bool) -> tuple[float, float]:
    """The smallest and the largest value to show. Rates are further limited to the range of what is usual."""
    lowest, highest = extent(columns.low, columns.high, kind, with_outliers=with_outliers)
    if with_outliers or columns.weights is None:
        return lowest, highest
    bottom, top = rate_limits(columns.mean, columns.weights)
    return max(lowest, bottom), min(highest, top)


def _points_within(series: Series, window: Window) -> _Points:
    first_recent = series.first_recent
    if max(window.first_step, series.first_step) < first_recent:
        return _bucket_points(series, window)
    start = max(0, window.first_step - first_recent)
    stop = max(start, min(len(series.recent), window.last_step - first_recent + 1))
    values = series.recent[start:stop]
    steps = np.arange(first_recent + start, first_recent + stop)
    return _Points(
        steps,
        first_recent + stop - 1,
        values,
        values,
        values,
        series.recent_nonfinite[start:stop],
        None if series.recent_weights is None else series.recent_weights[start:stop],
    )


def _bucket_points(series: Series, window: Window) -> _Points:
    size = series.bucket_steps
    start = max(0, (window.first_step - series.first_step) // size)
    stop = max(start, min(len(series.mean), (window.last_step - series.first_step) // size + 1))
    steps = series.first_step + np.arange(start, stop) * size
    last_step = min(series.first_step + stop * size - 1, series.last_step)
    low, high, mean = series.minimum[start:stop], series.maximum[start:stop], series.mean[start:stop]
    weights = None if series.weights is None else series.weights[start:stop]
    return _Points(steps, last_step, low, high, mean, series.nonfinite[start:stop] > 0, weights)
