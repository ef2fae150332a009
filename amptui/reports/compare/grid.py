"""Curves of several runs brought to the columns of one plot: by step, by samples or by training time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.trace import Curve, RunFigures
from amptui.telemetry.axis import LARGEST, smoothed
from amptui.telemetry.view import Floats

Bools = npt.NDArray[np.bool_]

_SMOOTHING_PART = 30
"""A training loss is the running mean over a thirtieth of the plot's width to both sides."""


_MAX_ZOOM = 64
"""So many times narrower than all, a window shows 32 of the 2,048 means that are kept of a long run."""

_LEAST_SHARE = 1e-9
"""The width of an axis with a single value, relative to that: enough not to be lost in rounding."""

_MIN_POINTS = 4
"""A window is no narrower than so many values of the longest run."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of an axis, wider than nothing, spread evenly over the columns of a plot."""

    low: float
    """The value at the left edge of the first column."""
    high: float
    """The value at the right edge of the last one."""

    @property
    def width(self) -> float:
        """From one edge to the other."""
        return self.high - self.low

    def __contains__(self, position: float) -> bool:
        return self.low <= position <= self.high

    def places(self, positions: Floats, columns: int) -> npt.NDArray[np.int64]:
        """The column of each position, of so many in the span; outside of it the columns go on."""
        places: npt.NDArray[np.int64] = np.floor((positions - self.low) / self.width * columns).astype(
            np.int64
        )
        return places

    def column_of(self, position: float, columns: int) -> int:
        """The column of ``position``, limited to those there are."""
        return max(0, min(int(self.places(np.array([position]), columns)[0]), columns - 1))

    def middle_of(self, column: int, columns: int) -> float:
        """The value in the middle of a column."""
        return self.low + (column + 0.5) / columns * self.width

    def zoomed(self, position: float, width: float) -> "Span":
        """A span of that ``width``; ``position`` keeps its place across it."""
        low = position - (position - self.low) / self.width * width
        return Span(min(low, position), max(low + width, position))  # rounding must not lose it

    def centred_on(self, position: float) -> "Span":
        """As wide, around ``position``."""
        return Span(position - self.width / 2, position + self.width / 2)

    def within(self, whole: "Span") -> "Span":
        """As wide, moved into ``whole``; that if it is narrower."""
        if not self.width < whole.width:
            return whole
        moved = self
        if self.low < whole.low:
            moved = Span(whole.low, whole.low + self.width)
        elif self.high > whole.high:
            moved = Span(whole.high - self.width, whole.high)
        return moved if moved.width > 0 else whole


@dataclass(frozen=True, slots=True, eq=False)
class RunCurve:
    """A run's part in the curve of its group."""

    loss: Floats
    nonfinite: Bools


@dataclass(frozen=True, slots=True, eq=False)
class GroupCurve:
    """A group's curve: one element per column, NaN without a value."""

    mean: Floats
    """Over all runs of the group; NaN where one of them has no value, as after its end."""
    low: Floats
    """Over those that have one."""
    high: Floats
    nonfinite: Bools
    """Columns in which a loss of any run was NaN or Inf."""
    runs: tuple[RunCurve | None, ...]
    """One a run; None for a run that has nothing on this axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The curves of all groups over one axis."""

    axis: str
    """A field of ``Curve``."""
    shown: Span
    whole: Span
    """What is shown without a zoom."""
    measured: Span
    """From the first value of any run to the last one."""
    min_width: float
    """The narrowest span that shows more than fewer columns would."""
    curves: tuple[GroupCurve | None, ...]
    """One a group; None for a group that has nothing on this axis."""

    @property
    def low(self) -> float:
        """The value at the left edge of the first column."""
        return self.shown.low

    @property
    def high(self) -> float:
        """The value at the right edge of the last one."""
        return self.shown.high


def grid(
    comparison: Compared,
    axis: str,
    columns: int,
    *,
    validation: bool,
    look: Callable[[Span, float], Span] | None = None,
) -> Grid:
    """The curves of ``comparison`` over ``axis`` in so many columns.

    ``look`` chooses the span to show, the whole without it: within that, and no narrower than a given width.
    """
    lines = [[_line(run, axis, validation=validation) for run in group.runs] for group in comparison.groups]
    ends = [(x[0], x[-1]) for group in lines for x, _, _ in group if len(x)]
    if not ends or columns < 1:
        nothing = Span(0.0, 1.0)
        return Grid(axis, nothing, nothing, nothing, 1.0, tuple(None for _ in lines))
    measured = Span(min(float(first) for first, _ in ends), max(float(last) for _, last in ends))
    whole = _whole(comparison, axis, measured)
    points = max(len(x) for group in lines for x, _, _ in group)
    min_width = whole.width * min(1.0, max(1 / _MAX_ZOOM, _MIN_POINTS / points))
    shown = whole if look is None else look(whole, min_width)
    reach = 0 if validation else max(1, columns // _SMOOTHING_PART)
    curves = [_group_curve(group, _Columns(shown, whole, columns), reach) for group in lines]
    return Grid(axis, shown, whole, measured, min_width, tuple(curves))


def _whole(comparison: Compared, axis: str, measured: Span) -> Span:
    low, high = measured.low, measured.high
    if axis == "steps":
        # From the first step of the first bucket to the last step of the last one.
        reached = [run.view.loss for run in comparison.runs if run.view.loss.count]
        low = min([low, *(float(series.first_step) for series in reached)])
        high = max([high, *(float(series.last_step) for series in reached)])
    return Span(low, high if high > low else low + max(1.0, abs(low) * _LEAST_SHARE))


def _line(run: RunFigures, axis: str, *, validation: bool) -> tuple[Floats, Floats, Floats]:
    """Where the run's values are, the values, and how many were not finite; in order, all finite places."""
    if validation:
        x = np.array([getattr(moment, _OF_MOMENT[axis]) for moment in run.validations], np.float64)
        loss = np.array([moment.loss for moment in run.validations], np.float64)
        nonfinite = (~np.isfinite(loss)).astype(np.float64)
    else:
        curve: Curve = run.curve
        x, loss, nonfinite = getattr(curve, axis), curve.loss, curve.nonfinite
    if axis == "seconds" and run.seconds is None:
        x = np.full(len(loss), np.nan)
    on_axis = np.isfinite(x) & (np.abs(x) < LARGEST)
    return x[on_axis], np.clip(loss[on_axis], -LARGEST, LARGEST), nonfinite[on_axis]


_OF_MOMENT = {"steps": "step", "samples": "samples", "seconds": "seconds"}


class _Columns:
    """Brings values to the columns of ``shown``, as a part of as many as all of ``whole`` would have.

    ``near`` are those shown and a plot's width to both sides, more than smoothing reaches: a curve is no
    other near an edge of the window.
    """

    def __init__(self, shown: Span, whole: Span, columns: int) -> None:
        self._shown = shown
        self._shown_columns = columns
        ends = shown.places(np.array([whole.low, whole.high]), columns).tolist()
        self._first = min(int(ends[0]), 0)
        self.count = max(int(ends[1]), columns) - self._first
        """Of the whole."""
        at = -self._first
        self.near = slice(max(0, at - columns), at + 2 * columns)
        self._of_near = slice(at - self.near.start, at - self.near.start + columns)

    def places(self, x: Floats) -> npt.NDArray[np.int64]:
        """The column of each value, from 0 on."""
        places = self._shown.places(x, self._shown_columns) - self._first
        return np.clip(places, 0, self.count - 1)

    def cut(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Those of the near ones that are shown."""
        return values[self._of_near]


def _group_curve(
    lines: Sequence[tuple[Floats, Floats, Floats]], columns: _Columns, reach: int
) -> GroupCurve | None:
    runs = [_run_curve(*line, columns, reach) if len(line[0]) else None for line in lines]
    with_values = [run for run in runs if run is not None]
    if not with_values:
        return None
    stacked = np.array([run.loss for run in with_values])
    finite = np.isfinite(stacked)
    some, all_of_them = finite.any(axis=0), finite.all(axis=0)
    return GroupCurve(
        # Where one run ends before the others, a mean over those left would jump, and mean something else.
        mean=np.where(all_of_them, (stacked / len(stacked)).sum(axis=0), np.nan),
        low=np.where(some, np.where(finite, stacked, np.inf).min(axis=0), np.nan),
        high=np.where(some, np.where(finite, stacked, -np.inf).max(axis=0), np.nan),
        nonfinite=np.logical_or.reduce([run.nonfinite for run in with_values]),
        runs=tuple(runs),
    )


def _run_curve(x: Floats, loss: Floats, nonfinite: Floats, columns: _Columns, reach: int) -> RunCurve:
    places = columns.places(x)
    bad = np.zeros(columns.count, np.bool_)
    bad[places[nonfinite > 0]] = True
    line = smoothed(_spread_out(places, loss, columns.count)[columns.near], reach)
    return RunCurve(loss=columns.cut(line), nonfinite=columns.cut(bad[columns.near]))


def _spread_out(places: npt.NDArray[np.int64], loss: Floats, columns: int) -> Floats:
    """The mean of each column, and straight lines through columns between; NaN outside and in gaps.

    A gap is a place with losses none of which is finite.
    """
    finite = np.isfinite(loss)
    counts = np.bincount(places[finite], minlength=columns)
    shares = loss[finite] / counts[places[finite]]
    means = np.bincount(places[finite], weights=shares, minlength=columns)
    filled = np.flatnonzero(counts)
    line = np.full(columns, np.nan)
    if not len(filled):
        return line
    within = slice(int(filled[0]), int(filled[-1]) + 1)
    line[within] = np.interp(np.arange(columns)[within], filled, means[filled])
    empty = np.setdiff1d(places[~finite], filled)
    line[empty] = np.nan
    return line
