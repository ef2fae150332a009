"""A comparison as one self-contained HTML page, in the style of the page of one run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product, starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from amptui.base import units
from amptui.base.table import Column, Row, text_of
from amptui.base.units import SEVERITY_SIGNS
from amptui.base.version import __version__
from amptui.diagnosis.words import long_words
from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.groups import Group
from amptui.reports.compare.tables import (
    ONE_GROUP,
    group_columns,
    heading,
    how_measured,
    members,
    run_columns,
    seeds,
    speed,
)
from amptui.reports.compare.trace import RunFigures
from amptui.reports.export.charts import MAX_COLUMNS, Chart, figure
from amptui.reports.export.template import Block, Span, Words, document, table, verdict
from amptui.telemetry.axis import LARGEST, SMOOTHING_PART, smoothed
from amptui.telemetry.view import EMPTY_SERIES, Floats, Series

_LEAST_SHARE = 1e-9
"""The width of an axis with a single value, relative to that: enough not to be lost in rounding."""


_AXES = {"steps": "step", "seconds": "training time"}
"""What curves can be drawn over: fields of ``Curve``, and their names."""

_LEGEND = "line: mean of a group's runs; band: lowest to highest; after a run ends: the remaining runs"


def page(comparison: Compared) -> str:
    """The page as HTML."""
    about, _, where = heading(comparison).partition(": ")
    groups = comparison.groups
    has_validations = any(len(run.validation.loss) for run in comparison.runs)
    shown = [*product((False, True) if has_validations else (False,), _AXES)]
    axes, charts = zip(*starmap(partial(_chart, groups), enumerate(shown)), strict=True)
    verdicts: list[Words] = [] if comparison.contrasts else [ONE_GROUP]
    for finding in (contrast.finding for contrast in comparison.contrasts):
        words = long_words(finding)
        verdicts.append(words if finding.grade == "unknown" else verdict(finding.severity, "", words))
    verdicts += map(speed, comparison.contrasts)
    sign = Span(SEVERITY_SIGNS["warning"], "sign warning")
    checks = [[sign, f" {check.words}"] for check in comparison.checks]
    legend = [Span(f"{group.name}, {seeds(group)}", group.colour) for group in groups]
    legend += [Span(_LEGEND, "dots"), Span("× NaN or Inf", "nonfinite")]
    names = [Span(group.name, f"chip {group.colour}") for group in groups]
    differences = [["", *names], *((name, *values) for name, values in comparison.differences.items())]
    cards = [
        ("verdict", ("verdict", verdicts), ("note", checks)),
        ("training", ("charts", charts[:1]), ("legend", legend)),
        ("groups", _table(group_columns(comparison), groups, lambda group: group)),
        ("curves", ("charts", charts[1:])),
        ("runs", _table(run_columns(comparison), members(comparison), lambda member: member[0])),
        ("what differs", ("table", differences)),
        ("how it is measured", ("note", how_measured(comparison))),
    ]
    return document(
        f"{len(comparison.runs)} runs compared · amptui",
        cards,
        heading=about,
        where=where,
        axes=axes,
        footer=f"compared by amptui {__version__}",
    )


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row], group_of: Callable[[Row], Group]) -> Block:
    """A column for each row, headed in the colour of its group."""
    first, *others = columns

    def name(row: Row) -> Span:
        return Span(text_of(first.cell(row)), f"chip {group_of(row).colour}")

    def words(column: Column[Row], row: Row) -> str:
        return text_of(column.cell(row))

    figures = [(text_of(column.title), partial(words, column)) for column in others]
    return table(rows, [("", name), *figures], upright=True)


# ------------------------------------------------------------------------------------- charts


def _chart(
    groups: Sequence[Group], place: int, shown: tuple[bool, str]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """An axis and the losses of the groups over it: of validations or not, by that field of ``Curve``."""
    validation, axis = shown
    lines = [[_line(run, axis, validation=validation) for run in group.runs] for group in groups]
    ends = [float(end) for group in lines for x, _ in group if len(x) for end in (x[0], x[-1])]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    if high <= low:
        high = low + max(1.0, abs(low) * _LEAST_SHARE)
    reach = 0 if validation else MAX_COLUMNS // SMOOTHING_PART
    series = {}
    for group, runs in zip(groups, lines, strict=True):
        columns = [
            (np.clip((x - low) / (high - low) * MAX_COLUMNS, 0, MAX_COLUMNS - 1).astype(np.int64), loss)
            for x, loss in runs
            if len(x)
        ]
        if columns:
            series[group] = _series(columns, reach)
    chart = Chart(
        f"validation loss by {_AXES[axis]}" if validation else f"training loss by {_AXES[axis]}, smoothed",
        {group.name: series[group] for group in series},
        scaled_to="usual",
        joins="none",
        height=260,
        colours=[group.colour for group in series],
    )
    # Each column counts as a step, labelled as what the axis is of.
    words = _axis_words(axis)
    labels = [(share, words(low + share * (high - low))) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return {"first": 0, "count": MAX_COLUMNS, "labels": labels, "switches": []}, figure(chart, place)


def _line(run: RunFigures, axis: str, *, validation: bool) -> tuple[Floats, Floats]:
    """Where the run's losses are, and the losses: in order, all finite places."""
    curve = run.validation if validation else run.training
    x = getattr(curve, axis)
    on_axis = np.isfinite(x) & (axis != "seconds" or run.seconds is not None)
    return x[on_axis], np.clip(curve.loss[on_axis], -LARGEST, LARGEST)


def _series(runs: Sequence[tuple[npt.NDArray[np.int64], Floats]], reach: int) -> Series:
    """The mean of a group's runs in a band, of the columns that their losses are in, and the losses.

    Without a mean, dashed, where some of the runs have ended: a mean over those left would jump.
    """
    nonfinite = np.zeros(MAX_COLUMNS, np.int64)
    for places, loss in runs:
        nonfinite[places[~np.isfinite(loss)]] = 1
    stacked = np.array([smoothed(_spread_out(places, loss), reach) for places, loss in runs])
    return replace(
        EMPTY_SERIES,
        first_step=0,
        minimum=np.fmin.reduce(stacked),
        mean=(stacked / len(stacked)).sum(axis=0),
        maximum=np.fmax.reduce(stacked),
        nonfinite=nonfinite,
    )


def _spread_out(places: npt.NDArray[np.int64], loss: Floats) -> Floats:
    """The mean of each column, and straight lines through columns between; NaN outside and in gaps.

    A gap is a place with losses none of which is finite.
    """
    finite = np.isfinite(loss)
    counts = np.bincount(places[finite], minlength=MAX_COLUMNS)
    shares = loss[finite] / counts[places[finite]]
    filled = np.flatnonzero(counts)
    line = np.full(MAX_COLUMNS, np.nan)
    if len(filled):
        means = np.bincount(places[finite], weights=shares, minlength=MAX_COLUMNS)[filled]
        line = np.interp(np.arange(MAX_COLUMNS), filled, means, left=np.nan, right=np.nan)
        line[np.setdiff1d(places[~finite], filled)] = np.nan
    return line


def _axis_words(axis: str) -> Callable[[float], str]:
    """How values of an axis are written."""
    if axis == "seconds":
        return units.duration
    return lambda value: units.count(round(value)) if abs(value) < 1e6 else units.short_count(value)
