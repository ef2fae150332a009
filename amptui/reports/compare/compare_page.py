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
from amptui.reports.compare.trace import MEAN_STEPS
from amptui.reports.export.charts import MAX_COLUMNS, Chart, figure
from amptui.reports.export.template import Block, Span, Words, document, table, verdict
from amptui.telemetry.axis import LARGEST
from amptui.telemetry.view import EMPTY_SERIES, Floats, Series

_LEAST_SHARE = 1e-9
"""The width of an axis with a single value, relative to that: enough not to be lost in rounding."""


_AXES = {"steps": "step", "seconds": "training time"}
"""What curves can be drawn over: fields of ``Curve``, and their names."""

_LEGEND = f"a line for each run; training: mean of {MEAN_STEPS} steps"


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
    checks = [[sign, f" {text}"] for text in comparison.checks.values()]
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
    """An axis and the losses of all runs over it: of validations or not, by that field of ``Curve``."""
    validation, axis = shown
    drawn, colours = [], []
    for group in groups:
        for run in group.runs:
            curve = run.validation if validation else run.training
            is_smooth = not validation and np.isfinite(run.means).any()  # of a short run all losses are drawn
            values = run.means if is_smooth else curve.loss
            x = getattr(curve, axis)
            on_axis = np.isfinite(x) & (axis != "seconds" or run.seconds is not None)
            if on_axis.any():
                drawn.append((x[on_axis], values[on_axis], curve.loss[on_axis]))
                colours.append(group.colour)
    low = min((float(x[0]) for x, *_ in drawn), default=0.0)
    high = max((float(x[-1]) for x, *_ in drawn), default=1.0)
    if high <= low:
        high = low + max(1.0, abs(low) * _LEAST_SHARE)
    count = MAX_COLUMNS
    series = {}
    for number, (x, values, losses) in enumerate(drawn):
        places = np.clip((x - low) / (high - low) * count, 0, count - 1).astype(np.int64)
        series[str(number)] = _series(places, np.clip(values, -LARGEST, LARGEST), losses, count)
    title = f"validation loss by {_AXES[axis]}" if validation else f"training loss by {_AXES[axis]}"
    chart = Chart(title, series, scaled_to="usual", joins="all", height=260, colours=colours)
    # Each column counts as a step, labelled as what the axis is of.
    words = _axis_words(axis)
    labels = [(share, words(low + share * (high - low))) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return {"first": 0, "count": count, "labels": labels, "switches": []}, figure(chart, place)


def _series(places: npt.NDArray[np.int64], values: Floats, losses: Floats, count: int) -> Series:
    """The mean of the values in each of so many columns, and where a loss is not finite."""
    finite = np.isfinite(values)
    sums = np.bincount(places[finite], weights=values[finite], minlength=count)
    with np.errstate(invalid="ignore"):
        mean = sums / np.bincount(places[finite], minlength=count)  # NaN in a column without values
    nonfinite = np.bincount(places[~np.isfinite(losses)], minlength=count)
    return replace(EMPTY_SERIES, first_step=0, minimum=mean, mean=mean, maximum=mean, nonfinite=nonfinite)


def _axis_words(axis: str) -> Callable[[float], str]:
    """How values of an axis are written."""
    if axis == "seconds":
        return units.duration
    return lambda value: units.count(round(value)) if abs(value) < 1e6 else units.short_count(value)
