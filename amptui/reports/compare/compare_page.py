"""A comparison as one self-contained HTML page, in the style of the page of one run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from amptui.base.units import SEVERITY_SIGNS
from amptui.base.version import __version__
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.grid import Grid, GroupCurve, grid
from amptui.reports.compare.groups import Group
from amptui.reports.compare.tables import Table, group_table, run_table
from amptui.reports.export.charts import MAX_COLUMNS, Chart, Line, figure
from amptui.reports.export.exporting import write_file
from amptui.reports.export.markup import Markup, card, data, document, element, paragraph, table, verdict

_MORE = {"first": "curve1", "second": "curve0", "third": "curve2", "": "other"}
"""Classes of the style sheet for colours of groups; precisions have classes of their own names."""


def page(comparison: Compared) -> str:
    """The page as HTML."""
    title = f"{len(comparison.runs)} runs compared · amptui"
    return document(title, _main(comparison), element("footer", f"compared by amptui {__version__}"))


def _main(comparison: Compared) -> Markup:
    charts = [
        _chart(comparison, name, validation=validation)
        for validation in (False, True)
        if not validation or any(run.validations for run in comparison.runs)
        for name in sentences.AXES
    ]
    runs = run_table(comparison)
    return element(
        "main",
        _header(comparison),
        card("verdict", *_verdicts(comparison)),
        card("training", charts[0], _legend(comparison.groups)),
        card("groups", _table(group_table(comparison), comparison.groups)),
        card("curves", element("div", *charts[1:], class_="charts") if any(charts[1:]) else None),
        card("runs", _table(runs, [comparison.groups[place] for place in runs.groups])),
        card("what differs", _differences(comparison)),
        card("how it is measured", *(paragraph(t, "note") for t in sentences.how_measured(comparison))),
    )


def _header(comparison: Compared) -> Markup:
    about, _, where = sentences.heading(comparison).partition(": ")
    return element("header", element("h1", about), element("p", where, class_="where"))


def _verdicts(comparison: Compared) -> Iterator[Markup | None]:
    for contrast in comparison.contrasts:
        severity = sentences.severity(contrast)
        words = sentences.verdict(contrast, comparison)
        yield verdict(severity, "", words) if severity is not None else paragraph(words, "verdict")
    if not comparison.contrasts:
        yield paragraph(sentences.ONE_GROUP, "verdict")
    for text in map(sentences.speed, comparison.contrasts):
        yield paragraph(text, "verdict")
    for check in comparison.checks:
        sign = element("span", SEVERITY_SIGNS["warning"], class_="sign warning")
        yield element("p", sign, " ", sentences.check(check), class_="note")


def _legend(groups: Sequence[Group]) -> Markup:
    items = [
        element("li", f"{sentences.group_name(group)}, {sentences.seeds(group)}", class_=_class(group))
        for group in groups
    ]
    bands = element("li", sentences.LEGEND, class_="dots")
    gaps = element("li", "× NaN or Inf", class_="nonfinite")
    return element("ul", *items, bands, gaps, class_="legend")


def _class(group: Group) -> str:
    return _MORE.get(group.colour, group.colour)


def _table(content: Table, groups: Sequence[Group]) -> Markup | None:
    """A column for each row of ``content``, headed in the colour of its group."""
    turned = content.turned()
    names = [_chip(name, group) for name, group in zip(turned.head[1:], groups, strict=True)]
    return table(("", *names), turned.rows)


def _chip(name: str, group: Group) -> Markup:
    return element("span", name, class_=f"chip {_class(group)}")


def _differences(comparison: Compared) -> Markup | None:
    if not comparison.differences:
        return None
    names = [_chip(sentences.group_name(group), group) for group in comparison.groups]
    return table(("", *names), [(option.name, *option.values) for option in comparison.differences])


# ------------------------------------------------------------------------------------- charts


def _chart(comparison: Compared, name: str, *, validation: bool) -> Markup | None:
    """One figure; None if there is nothing to draw."""
    curves = grid(comparison, name, MAX_COLUMNS, validation=validation)
    lines: list[Line] = []
    for group, curve in zip(comparison.groups, curves.curves, strict=True):
        if curve is not None:
            lines += _lines(sentences.group_name(group), _class(group), curve)
    title = sentences.curve_titles(name, validation=validation)[0]
    drawn = figure(Chart(title=title, is_noisy=True, has_gaps=True, height=260), lines)
    return None if drawn is None else element("div", drawn, data_axis=_axis(curves))


def _lines(name: str, colour: str, curve: GroupCurve) -> Iterator[Line]:
    """The mean in a band; dashed, the lowest and the highest of runs that go on where others have ended."""
    yield Line(
        name=name,
        colour=colour,
        low=curve.low,
        mean=curve.mean,
        high=curve.high,
        nonfinite=np.flatnonzero(curve.nonfinite).tolist(),
    )
    for edge in (curve.low, curve.high):
        tail = np.where(np.isfinite(curve.mean), np.nan, edge)
        yield Line(name=name, colour=colour, low=tail, mean=tail, high=tail, is_dashed=True)


def _axis(curves: Grid) -> str:
    """Each column counts as a step, labelled as what the axis is of."""
    words, width = sentences.axis_words(curves.axis), curves.high - curves.low
    labels = [(share, words(curves.low + share * width)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return data({"first": 0, "count": MAX_COLUMNS, "labels": labels, "switches": []})


def write_page(comparison: Compared, place: Path) -> None:
    """Write the page to ``place``, atomically. Raises ``AmptuiError`` if it cannot be written."""
    write_file(place, page(comparison))
