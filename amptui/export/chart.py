"""Draws one or more curves over the run's steps as a figure: lines and bands in SVG, axes and marks."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from amptui import units
from amptui.export.axis import Axis, Kind, axis
from amptui.export.markup import Markup, css_class, element, percent
from amptui.export.steps import Columns, Steps, columns, marks, ribbon, step_axis
from amptui.telemetry.view import EMPTY_SERIES, Floats, Series

_WIDTH = 1000
"""The width of a drawing in its own units; the page stretches it."""

_MARGIN = 8
"""Free pixels above and below a curve: half a label."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One value per step."""

    name: str
    series: Series


@dataclass(frozen=True, slots=True)
class Point:
    """A single value beside the curves, and its description."""

    step: int
    value: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What to draw."""

    title: str
    curves: tuple[Curve, ...]
    """A single one has the colours of the precisions; several have colours of their own and a legend."""
    unit: str = ""
    unit_value: float = 1.0
    """The size of one ``unit`` in the curves' own unit."""
    format_value: Callable[[float | None], str] = units.loss
    kind: Kind | None = None
    """Of the vertical axis; None: chosen by the values."""
    height: int = 150
    """In pixels."""
    points: tuple[Point, ...] = ()
    skips: Series = EMPTY_SERIES
    """Skipped steps to mark."""
    sparse: bool = False
    """Not every step has a value: the line also connects values across a switch of the precision."""
    note: str = ""
    """How to read it."""


def draw(chart: Chart, steps: Steps) -> Markup | None:
    """The chart as a figure; None without a finite value."""
    curves = tuple(replace(curve, series=_in_units(curve.series, chart.unit_value)) for curve in chart.curves)
    cuts = [columns(curve.series) for curve in curves]
    points = np.array([point.value for point in chart.points]) / chart.unit_value
    extremes = (values for cut in cuts for values in (cut.minimum, cut.maximum))
    vertical = axis(np.concatenate([points, *extremes]), chart.kind)
    if vertical is None:
        return None
    title = f"{chart.title}, {chart.unit}" if chart.unit else chart.title
    how = "" if vertical.kind == "linear" else " (logarithmic)"
    caption = element(
        "figcaption",
        element("h3", title, element("small", how) if how else None),
        element("output", _newest(chart, curves), class_="readout"),
    )
    plot = element(
        "div",
        _labels(chart, vertical),
        _area(chart, steps, vertical, cuts),
        marks(steps, chart.skips, [curve.series for curve in curves]),
        ribbon(steps),
        step_axis(steps),
        class_="plot",
    )
    legend = _legend(curves) if len(curves) > 1 else None
    note = element("p", chart.note, class_="note") if chart.note else None
    data = json.dumps(_values(chart, curves, cuts), separators=(",", ":"))
    return element("figure", caption, plot, legend, note, class_="chart", data_values=data)


def _in_units(series: Series, unit: float) -> Series:
    if unit == 1.0:
        return series
    return replace(
        series,
        minimum=series.minimum / unit,
        maximum=series.maximum / unit,
        mean=series.mean / unit,
        recent=series.recent / unit,
    )


def _newest(chart: Chart, curves: tuple[Curve, ...]) -> str:
    """The last values, shown until the user points at others."""
    found = []
    for curve in curves:
        known = curve.series.recent[np.isfinite(curve.series.recent)]
        if len(known):
            name = f"{curve.name} " if len(curves) > 1 else ""
            found.append(f"{name}{chart.format_value(float(known[-1]))}")
    return " · ".join(found)


def _labels(chart: Chart, vertical: Axis) -> Markup:
    """The vertical axis: right-aligned labels at their heights."""
    heights = _pixels(chart, vertical.heights(np.array(vertical.ticks))).tolist()
    labels = [
        element("text", chart.format_value(tick), x="100%", y=f"{y + 4:.0f}")
        for tick, y in zip(vertical.ticks, heights, strict=True)
    ]
    return element("svg", *labels, class_="values", height=chart.height, aria_hidden="true")


def _pixels(chart: Chart, heights: Floats) -> Floats:
    """Heights from 0 to 1 as pixels from the top."""
    return _MARGIN + (1 - heights) * (chart.height - 2 * _MARGIN)


def _area(chart: Chart, steps: Steps, vertical: Axis, cuts: list[Columns]) -> Markup:
    ticks = _pixels(chart, vertical.heights(np.array(vertical.ticks))).tolist()
    grid = [element("line", x1="0", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid") for y in ticks]
    drawing = element(
        "svg",
        *_lines(chart, steps, vertical, cuts),
        viewBox=f"0 0 {_WIDTH} {chart.height}",
        preserveAspectRatio="none",
        width="100%",
        height=chart.height,
    )
    dots = [_dot(chart, steps, vertical, point) for point in chart.points]
    cursor = element("line", x1="0", x2="0", y1="0", y2="100%", class_="cursor", visibility="hidden")
    words = _in_words(chart, cuts)
    parts = (*grid, drawing, *dots, cursor)
    return element("svg", *parts, class_="area", height=chart.height, role="img", aria_label=words)


def _lines(chart: Chart, steps: Steps, vertical: Axis, cuts: list[Columns]) -> Iterator[Markup]:
    """Lines of the means, and bands from minimum to maximum if columns hold several steps."""
    for number, cut in enumerate(cuts):
        x = _WIDTH * steps.shares(cut.middles())
        low, middle, high = (
            _pixels(chart, vertical.heights(values)) for values in (cut.minimum, cut.mean, cut.maximum)
        )
        parts = [(slice(0, len(x)), f"curve{number}")] if len(cuts) > 1 else _parts(chart, steps, cut)
        for part, class_ in parts:
            if cut.width_steps > 1:
                yield element("path", d=_band(x[part], high[part], low[part]), class_=f"band {class_}")
            yield element("path", d=_line(x[part], middle[part]), class_=f"line {class_}")


def _parts(chart: Chart, steps: Steps, cut: Columns) -> Iterator[tuple[slice, str]]:
    """The columns of each colour that hold a value.

    Each part begins with the last column of the previous one, so that the line has no gap at a switch.
    """
    known = np.flatnonzero(np.isfinite(cut.mean))
    begin = 0
    for precision, group in groupby(steps.precisions(cut.middles())):
        end = begin + len(list(group))
        inner = known[(known >= begin) & (known < end)]
        if len(inner):
            before = known[known < begin]
            joins = len(before) > 0 and (chart.sparse or inner[0] - before[-1] == 1)
            yield slice(int(before[-1] if joins else begin), end), css_class(precision)
        begin = end


def _line(x: Floats, y: Floats) -> str:
    known = np.isfinite(y)
    places = [f"{a:.1f} {b:.1f}" for a, b in zip(x[known].tolist(), y[known].tolist(), strict=True)]
    # A line of one point would be invisible.
    return f"M{'L'.join(places)}" if len(places) > 1 else "".join(f"M{place}h.1" for place in places)


def _band(x: Floats, high: Floats, low: Floats) -> str:
    known = np.isfinite(high) & np.isfinite(low)
    x, high, low = x[known], high[known], low[known]
    around = zip([*x, *x[::-1]], [*high, *low[::-1]], strict=True)
    places = [f"{a:.1f} {b:.1f}" for a, b in around]
    return f"M{'L'.join(places)}Z" if places else ""


def _dot(chart: Chart, steps: Steps, vertical: Axis, point: Point) -> Markup | None:
    values = np.array([point.value]) / chart.unit_value
    height = float(vertical.heights(values)[0])
    if not 0 <= height <= 1:
        return None
    share = float(steps.shares(np.array([point.step + 0.5]))[0])
    y = float(_pixels(chart, np.array([height]))[0])
    return element(
        "circle", element("title", point.words), cx=percent(share), cy=f"{y:.1f}", r=3, class_="dot"
    )


def _legend(curves: tuple[Curve, ...]) -> Markup:
    names = [element("li", curve.name, class_=f"curve{i}") for i, curve in enumerate(curves)]
    return element("ul", *names, class_="legend")


def _in_words(chart: Chart, cuts: list[Columns]) -> str:
    """The range of each curve, for those who do not see it."""
    ranges = []
    for curve, cut in zip(chart.curves, cuts, strict=True):
        if np.isfinite(cut.mean).any():
            low, high = float(np.nanmin(cut.minimum)), float(np.nanmax(cut.maximum))
            ranges.append(f"{curve.name} from {chart.format_value(low)} to {chart.format_value(high)}")
    return f"{', '.join(ranges)} {chart.unit}".rstrip()


def _values(chart: Chart, curves: tuple[Curve, ...], cuts: list[Columns]) -> dict[str, object]:
    """What the page's script shows for the step that the user points at."""
    return {
        "unit": chart.unit,
        "curves": [
            {
                "name": curve.name if len(curves) > 1 else "",
                "first": cut.first_step,
                "width": cut.width_steps,
                "mean": _numbers(cut.mean),
                "low": _numbers(cut.minimum) if cut.width_steps > 1 else [],
                "high": _numbers(cut.maximum) if cut.width_steps > 1 else [],
                "nonfinite": np.flatnonzero(cut.nonfinite).tolist(),
            }
            for curve, cut in zip(curves, cuts, strict=True)
        ],
    }


def _numbers(values: Floats) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
