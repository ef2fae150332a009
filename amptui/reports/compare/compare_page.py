"""A comparison as one self-contained HTML page, in the style of the page of one run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from amptui.base import units
from amptui.base.units import SEVERITY_SIGNS
from amptui.base.version import __version__
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.grid import Grid, GroupCurve, grid
from amptui.reports.compare.groups import Group
from amptui.reports.compare.tables import Table, group_table, run_table
from amptui.reports.export.chart import WIDTH, band_path, beyond, line_path, pixels, plot_area, value_labels
from amptui.reports.export.exporting import write_file
from amptui.reports.export.markup import Markup, card, document, element, paragraph, table, verdict
from amptui.telemetry.axis import Axis, axis, extent, kind_for
from amptui.telemetry.view import Floats

_COLUMNS = 600
"""Columns of a curve: more than a phone has pixels across."""

_HEIGHT = 260

_X = (np.arange(_COLUMNS) + 0.5) * WIDTH / _COLUMNS

_ENDS = ("low", "high")

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


def _table(content: Table, groups: Sequence[Group]) -> Markup:
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
    curves = grid(comparison, name, _COLUMNS, validation=validation)
    measured = [curve for curve in curves.curves if curve is not None]
    low, high = (np.concatenate([np.empty(0), *(getattr(curve, end) for curve in measured)]) for end in _ENDS)
    if not np.isfinite(low).any():
        return None
    kind = kind_for(np.append(low, high))
    vertical = axis(*extent(low, high, kind, with_outliers=False), kind)
    arrows, words = beyond([(curve.low, curve.high, _X / WIDTH) for curve in measured], vertical)
    how = " (logarithmic)" if vertical.is_logarithmic else ""
    title = sentences.curve_titles(name, validation=validation)[0]
    plot = element(
        "div",
        value_labels(vertical, _HEIGHT, units.loss),
        _area(comparison, curves, vertical, title, arrows),
        _gaps(curves),
        _axis(curves),
        class_="plot",
    )
    caption = element("figcaption", element("h3", title, element("small", how) if how else None))
    note = element("p", words, class_="note") if words else None
    return element("figure", caption, plot, note, class_="chart")


def _area(comparison: Compared, lines: Grid, vertical: Axis, title: str, arrows: Sequence[Markup]) -> Markup:
    pairs = zip(comparison.groups, lines.curves, strict=True)
    curves = [(group, curve) for group, curve in pairs if curve is not None]
    bands = [_band(curve, vertical, _class(group)) for group, curve in curves]
    means = [_line(curve, vertical, _class(group), sentences.group_name(group)) for group, curve in curves]
    tails = [tail for group, curve in curves for tail in _tails(curve, vertical, _class(group))]
    return plot_area(vertical, _HEIGHT, [*bands, *means, *tails], *arrows, label=title)


def _line(curve: GroupCurve, vertical: Axis, colour: str, name: str) -> Markup:
    """The mean; its name is shown where the pointer is on it."""
    return element("path", element("title", name), d=_path(vertical, curve.mean), class_=f"line {colour}")


def _tails(curve: GroupCurve, vertical: Axis, colour: str) -> list[Markup]:
    """The lowest and the highest of the runs that go on where others have ended, dashed."""
    ends = np.isfinite(curve.mean)
    paths = {_path(vertical, np.where(ends, np.nan, edge)) for edge in (curve.low, curve.high)}
    return [
        element("path", d=path, class_=f"line {colour}", stroke_dasharray="4 4")
        for path in sorted(paths)
        if path
    ]


def _path(vertical: Axis, values: Floats) -> str:
    """The line through all columns, with gaps."""
    y = pixels(vertical, values, _HEIGHT)
    places = np.flatnonzero(np.isfinite(y))
    pieces = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return "".join(line_path(_X[piece], y[piece]) for piece in pieces)


def _band(curve: GroupCurve, vertical: Axis, colour: str) -> Markup | None:
    high, low = (pixels(vertical, edge, _HEIGHT) for edge in (curve.high, curve.low))
    finite = np.isfinite(low) & np.isfinite(high)
    if not (curve.high[finite] > curve.low[finite]).any():
        return None
    return element("path", d=band_path(_X, high, low), class_=f"band {colour}")


def _gaps(curves: Grid) -> Markup | None:
    places = {
        round(float(place) / _COLUMNS, 3)
        for curve in curves.curves
        if curve is not None
        for place in np.flatnonzero(curve.nonfinite)
    }
    crosses = [
        element("text", "×", x=f"{100 * place:.2f}%", y=10, class_="nonfinite") for place in sorted(places)
    ]
    return element("svg", *crosses, class_="marks", height=12, aria_hidden="true") if crosses else None


def _axis(curves: Grid) -> Markup:
    words = sentences.axis_words(curves.axis)
    labels = [element("text", words(curves.low), x="0%", y=13, class_="first")]
    labels += [
        element("text", words(curves.low + share * (curves.high - curves.low)), x=f"{100 * share:g}%", y=13)
        for share in (0.25, 0.5, 0.75)
    ]
    labels.append(element("text", words(curves.high), x="100%", y=13, class_="last"))
    return element("svg", *labels, class_="steps", height=18, aria_hidden="true")


def write_page(comparison: Compared, place: Path) -> None:
    """Write the page to ``place``, atomically. Raises ``AmptuiError`` if it cannot be written."""
    write_file(place, page(comparison))
