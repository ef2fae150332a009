"""Curves of several runs brought to the columns of one plot: by step, by samples or by training time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.trace import Curve, RunFigures
from amptui.telemetry.axis import LARGEST
from amptui.telemetry.smoothing import smoothed
from amptui.telemetry.view import Floats

Bools = npt.NDArray[np.bool_]

_SMOOTHING_PART = 30
"""A training loss is averaged over a thirtieth of the plot's width to both sides, twice."""


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


def grid(found: Compared, axis: str, columns: int, *, validation: bool) -> Grid:
    """The curves of ``found`` over ``axis`` in so many columns."""
    lines = [[_line(run, axis, validation=validation) for run in group.runs] for group in found.groups]
    ends = [(x[0], x[-1]) for group in lines for x, _, _ in group if len(x)]
    if not ends or columns < 1:
        return Grid(axis, 0.0, 1.0, tuple(None for _ in lines))
    low = min(float(first) for first, _ in ends)
    high = max(float(last) for _, last in ends)
    if axis == "steps":
        # From the first step of the first bucket to the last step of the last one.
        reached = [run.view.loss for run in found.runs if run.view.loss.count]
        low = min([low, *(float(series.first_step) for series in reached)])
        high = max([high, *(float(series.last_step) for series in reached)])
    high = high if high > low else low + 1.0
    reach = 0 if validation else max(1, columns // _SMOOTHING_PART)
    curves = [_group_curve(group, low, high, columns, reach) for group in lines]
    return Grid(axis, low, high, tuple(curves))


def _line(run: RunFigures, axis: str, *, validation: bool) -> tuple[Floats, Floats, Floats]:
    """Where the run's values are, the values, and how many were not finite; in order, all finite places."""
    if validation:
        x = np.array([getattr(each, _OF_MOMENT[axis]) for each in run.validations], np.float64)
        loss = np.array([each.loss for each in run.validations], np.float64)
        nonfinite = (~np.isfinite(loss)).astype(np.float64)
    else:
        curve: Curve = run.curve
        x, loss, nonfinite = getattr(curve, axis), curve.loss, curve.nonfinite
    if axis == "seconds" and run.seconds is None:
        x = np.full(len(loss), np.nan)
    known = np.isfinite(x) & (np.abs(x) < LARGEST)
    return x[known], np.clip(loss[known], -LARGEST, LARGEST), nonfinite[known]


_OF_MOMENT = {"steps": "step", "samples": "samples", "seconds": "seconds"}


def _group_curve(
    lines: Sequence[tuple[Floats, Floats, Floats]], low: float, high: float, columns: int, reach: int
) -> GroupCurve | None:
    rows, gaps = [], np.zeros(columns, np.bool_)
    for x, loss, nonfinite in lines:
        if len(x):
            places = np.minimum((x - low) / (high - low) * columns, columns - 1).astype(np.int64)
            bad = np.zeros(columns, np.bool_)
            bad[places[nonfinite > 0]] = True
            gaps |= bad
            rows.append(smoothed(_spread_out(places, loss, columns), reach))
    if not rows:
        return None
    stacked = np.array(rows)
    known = np.isfinite(stacked)
    some, all_of_them = known.any(axis=0), known.all(axis=0)
    return GroupCurve(
        # Where one run ends before the others, a mean over those left would jump, and mean something else.
        mean=np.where(all_of_them, (stacked / len(stacked)).sum(axis=0), np.nan),
        low=np.where(some, np.where(known, stacked, np.inf).min(axis=0), np.nan),
        high=np.where(some, np.where(known, stacked, -np.inf).max(axis=0), np.nan),
        nonfinite=gaps,
    )


def _spread_out(places: npt.NDArray[np.int64], loss: Floats, columns: int) -> Floats:
    """The mean of each column, and straight lines through columns between; NaN outside and in gaps.

    A gap is a place with losses none of which is finite.
    """
    finite = np.isfinite(loss)
    counts = np.bincount(places[finite], minlength=columns)
    shares = loss[finite] / counts[places[finite]]
    means = np.bincount(places[finite], weights=shares, minlength=columns)
    held = np.flatnonzero(counts)
    line = np.full(columns, np.nan)
    if not len(held):
        return line
    within = slice(int(held[0]), int(held[-1]) + 1)
    line[within] = np.interp(np.arange(columns)[within], held, means[held])
    empty = np.setdiff1d(places[~finite], held)
    line[empty] = np.nan
    return line
