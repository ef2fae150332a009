"""A comparison as one self-contained HTML page, in the style of the page of one run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from amptui.base.table import Column, Row, text_of
from amptui.base.units import SEVERITY_SIGNS
from amptui.base.version import __version__
from amptui.diagnosis.words import long_words
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.grid import Grid, grid
from amptui.reports.compare.groups import Group
from amptui.reports.compare.tables import group_columns, members, run_columns
from amptui.reports.export.charts import MAX_COLUMNS, Chart, figure
from amptui.reports.export.template import Block, Span, Words, document, table, verdict
from amptui.telemetry.view import EMPTY_SERIES

_MORE = {"plain": "curve0", "": "other"}
"""Classes of the style sheet for colours of groups; precisions have classes of their own names."""


def page(comparison: Compared) -> str:
    """The page as HTML."""
    about, _, where = sentences.heading(comparison).partition(": ")
    groups = comparison.groups
    named = [(name, False) for name in sentences.AXES]
    if any(run.validations for run in comparison.runs):
        named += [(name, True) for name in sentences.AXES]
    grids = [grid(comparison, name, MAX_COLUMNS, validation=validation) for name, validation in named]
    charts = [
        _figure(groups, curves, place, validation=validation)
        for place, (curves, (_, validation)) in enumerate(zip(grids, named, strict=True))
    ]
    verdicts: list[Words] = [] if comparison.contrasts else [sentences.ONE_GROUP]
    for finding in (contrast.finding for contrast in comparison.contrasts):
        words = long_words(finding)
        verdicts.append(words if finding.grade == "unknown" else verdict(finding.severity, "", words))
    verdicts += map(sentences.speed, comparison.contrasts)
    sign = Span(SEVERITY_SIGNS["warning"], "sign warning")
    checks = [[sign, f" {check.words}"] for check in comparison.checks]
    legend = [Span(f"{group.name}, {sentences.seeds(group)}", _class(group)) for group in groups]
    legend += [Span(sentences.LEGEND, "dots"), Span("× NaN or Inf", "nonfinite")]
    names = [Span(group.name, f"chip {_class(group)}") for group in groups]
    differences = [["", *names], *((option.name, *option.values) for option in comparison.differences)]
    cards = [
        ("verdict", ("verdict", verdicts), ("note", checks)),
        ("training", ("charts", charts[:1]), ("legend", legend)),
        ("groups", _table(group_columns(comparison), groups, lambda group: group)),
        ("curves", ("charts", charts[1:])),
        ("runs", _table(run_columns(comparison), members(comparison), lambda member: member[0])),
        ("what differs", ("table", differences)),
        ("how it is measured", ("note", sentences.how_measured(comparison))),
    ]
    return document(
        f"{len(comparison.runs)} runs compared · amptui",
        cards,
        heading=about,
        where=where,
        axes=[*map(_axis, grids)],
        footer=f"compared by amptui {__version__}",
    )


def _class(group: Group) -> str:
    return _MORE.get(group.colour, group.colour)


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row], group_of: Callable[[Row], Group]) -> Block:
    """A column for each row, headed in the colour of its group."""
    first, *others = columns

    def name(row: Row) -> Span:
        return Span(text_of(first.cell(row)), f"chip {_class(group_of(row))}")

    def words(column: Column[Row], row: Row) -> str:
        return text_of(column.cell(row))

    figures = [(text_of(column.title), partial(words, column)) for column in others]
    return table(rows, [("", name), *figures], upright=True)


# ------------------------------------------------------------------------------------- charts


def _figure(groups: Sequence[Group], curves: Grid, place: int, *, validation: bool) -> dict[str, Any] | None:
    """The mean of each group in a band; without a mean, dashed, where some of its runs have ended."""
    shown = [(group, curve) for group, curve in zip(groups, curves.curves, strict=True) if curve is not None]
    series = {
        group.name: replace(
            EMPTY_SERIES,
            first_step=0,
            minimum=curve.low,
            mean=curve.mean,
            maximum=curve.high,
            nonfinite=curve.nonfinite.astype(np.int64),
        )
        for group, curve in shown
    }
    chart = Chart(
        sentences.curve_title(curves.axis, validation=validation),
        series,
        scaled_to="usual",
        joins="none",
        height=260,
        colours=[_class(group) for group, _ in shown],
    )
    return figure(chart, place)


def _axis(curves: Grid) -> dict[str, Any]:
    """Each column counts as a step, labelled as what the axis is of."""
    words, width = sentences.axis_words(curves.axis), curves.high - curves.low
    labels = [(share, words(curves.low + share * width)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return {"first": 0, "count": MAX_COLUMNS, "labels": labels, "switches": []}
