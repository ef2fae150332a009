"""Curves of several runs brought to the columns of one plot: by step, by samples or by training time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.trace import RunFigures
from amptui.telemetry.axis import LARGEST, SMOOTHING_PART, smoothed
from amptui.telemetry.view import Floats

Bools = npt.NDArray[np.bool_]

_LEAST_SHARE = 1e-9
"""The width of an axis with a single value, relative to that: enough not to be lost in rounding."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The curves of all groups over one axis."""

    axis: str
    """A field of ``Curve``."""
    low: float
    """The value at the left edge of the first column."""
    high: float
    """The value at the right edge of the last one."""
    curves: tuple[GroupCurve | None, ...]
    """One a group; None for a group that has nothing on this axis."""


def grid(comparison: Compared, axis: str, columns: int, *, validation: bool) -> Grid:
    """The curves of ``comparison`` over ``axis`` in so many columns."""
    lines = [[_line(run, axis, validation=validation) for run in group.runs] for group in comparison.groups]
    ends = [(float(x[0]), float(x[-1])) for group in lines for x, _, _ in group if len(x)]
    if not ends or columns < 1:
        return Grid(axis, 0.0, 1.0, tuple(None for _ in lines))
    low, high = min(first for first, _ in ends), max(last for _, last in ends)
    if axis == "steps":
        # From the first step of the first bucket to the last step of the last one.
        reached = [run.view.loss for run in comparison.runs if run.view.loss.count]
        low = min([low, *(float(series.first_step) for series in reached)])
        high = max([high, *(float(series.last_step) for series in reached)])
    if high <= low:
        high = low + max(1.0, abs(low) * _LEAST_SHARE)
    reach = 0 if validation else max(1, columns // SMOOTHING_PART)
    curves = []
    for group in lines:
        runs = []
        for x, loss, nonfinite in group:
            if len(x):
                places = np.floor((x - low) / (high - low) * columns).astype(np.int64)
                places = np.clip(places, 0, columns - 1)
                bad = np.zeros(columns, np.bool_)
                bad[places[nonfinite > 0]] = True
                runs.append((smoothed(_spread_out(places, loss, columns), reach), bad))
        curves.append(_group_curve(runs) if runs else None)
    return Grid(axis, low, high, tuple(curves))


def _line(run: RunFigures, axis: str, *, validation: bool) -> tuple[Floats, Floats, Floats]:
    """Where the run's values are, the values, and how many were not finite; in order, all finite places."""
    if validation:
        place = "step" if axis == "steps" else axis
        x = np.array([getattr(moment, place) for moment in run.validations], np.float64)
        loss = np.array([moment.loss for moment in run.validations], np.float64)
        nonfinite = (~np.isfinite(loss)).astype(np.float64)
    else:
        x, loss, nonfinite = getattr(run.curve, axis), run.curve.loss, run.curve.nonfinite
    if axis == "seconds" and run.seconds is None:
        x = np.full(len(loss), np.nan)
    on_axis = np.isfinite(x) & (np.abs(x) < LARGEST)
    return x[on_axis], np.clip(loss[on_axis], -LARGEST, LARGEST), nonfinite[on_axis]


def _group_curve(runs: Sequence[tuple[Floats, Bools]]) -> GroupCurve:
    """Of the losses of its runs, and where they are not finite."""
    stacked = np.array([loss for loss, _ in runs])
    finite = np.isfinite(stacked)
    some, all_of_them = finite.any(axis=0), finite.all(axis=0)
    return GroupCurve(
        # Where one run ends before the others, a mean over those left would jump, and mean something else.
        mean=np.where(all_of_them, (stacked / len(stacked)).sum(axis=0), np.nan),
        low=np.where(some, np.where(finite, stacked, np.inf).min(axis=0), np.nan),
        high=np.where(some, np.where(finite, stacked, -np.inf).max(axis=0), np.nan),
        nonfinite=np.logical_or.reduce([bad for _, bad in runs]),
    )


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
