"""Draws one or more curves over the run's steps as a figure: lines and bands in SVG, axes and marks."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from amptui.base import units
from amptui.reports.export.markup import Markup, css_class, element, percent
from amptui.reports.export.step_axis import Columns, StepRange, columns, marks, ribbon, step_axis
from amptui.telemetry.axis import Axis, Kind, axis, extent, kind_for, rate_limits
from amptui.telemetry.view import EMPTY_SERIES, Floats, Series

WIDTH = 1000
"""The width of a drawing in its own units; the page stretches it."""

MAX_LABELS = 6
"""Of a vertical axis."""

_MARGIN = 8
"""Free pixels above and below a curve: half a label."""

_TOLERANCE = 1e-9
"""Values are not called outside for a rounding error."""


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
    ceiling: float = math.inf
    """What the values, in ``unit``, cannot exceed."""
    height: int = 150
    """In pixels."""
    points: tuple[Point, ...] = ()
    skips: Series = EMPTY_SERIES
    """Skipped steps to mark."""
    noisy: bool = False
    """Single values far from all others do not set the vertical axis."""
    sparse: bool = False
    """Not every step has a value: the line also connects values across a switch of the precision."""
    note: str = ""
    """How to read it."""


def draw(chart: Chart, steps: StepRange) -> Markup | None:
    """The chart as a figure; None without a finite value."""
    curves = tuple(Curve(curve.name, curve.series.in_units_of(chart.unit_value)) for curve in chart.curves)
    drawn = [columns(curve.series) for curve in curves]
    points = np.array([point.value for point in chart.points]) / chart.unit_value
    vertical = _axis(chart, drawn, points)
    if vertical is None:
        return None
    plot = _Plot(chart, steps, drawn, vertical)
    title = f"{chart.title}, {chart.unit}" if chart.unit else chart.title
    how = " (logarithmic)" if vertical.is_logarithmic else ""
    caption = element(
        "figcaption",
        element("h3", title, element("small", how) if how else None),
        element("output", _newest(chart, curves), class_="readout"),
    )
    places = [(curve.minimum, curve.maximum, steps.shares(curve.middles())) for curve in drawn]
    arrows, words = beyond(places, vertical)
    area = element(
        "div",
        plot.labels(),
        plot.area(arrows),
        marks(steps, columns(chart.skips), drawn),
        ribbon(steps),
        step_axis(steps),
        class_="plot",
    )
    legend = _legend(curves) if len(curves) > 1 else None
    notes = " ".join(filter(None, (chart.note, words)))
    note = element("p", notes, class_="note") if notes else None
    data = json.dumps(_values(chart, curves, drawn), separators=(",", ":"))
    return element("figure", caption, area, legend, note, class_="chart", data_values=data)


def _axis(chart: Chart, curves: Sequence[Columns], points: Floats) -> Axis | None:
    """The vertical axis; None if it can show nothing."""
    extremes = [values for curve in curves for values in (curve.minimum, curve.maximum)]
    kind = chart.kind or kind_for(np.concatenate([points, *extremes]))
    least = -math.inf if kind == "linear" else 0.0
    shown = [
        _shown_range(curve, kind, noisy=chart.noisy) for curve in curves if (curve.maximum > least).any()
    ]
    limits = [*np.ravel(shown), *points[points > least]]
    return axis(min(limits), max(limits), kind, ceiling=chart.ceiling) if limits else None


def _shown_range(curve: Columns, kind: Kind, *, noisy: bool) -> tuple[float, float]:
    """The smallest and the largest value that the axis shows: of rates only the usual ones."""
    lowest, highest = extent(curve.minimum, curve.maximum, kind, with_outliers=not noisy)
    if curve.weights is None:
        return lowest, highest
    bottom, top = rate_limits(curve.mean, curve.weights)
    return max(lowest, bottom), min(highest, top)


def beyond(curves: Iterable[tuple[Floats, Floats, Floats]], vertical: Axis) -> tuple[list[Markup], str]:
    """Arrows where values lie above or below the axis, and a sentence about them; empty if all are shown.

    Of each curve the lowest and highest values and their places from 0 to 1.
    """
    shares: dict[str, set[float]] = {"↑": set(), "↓": set()}
    for low, high, places in curves:
        with np.errstate(invalid="ignore"):
            above = vertical.heights(high) > 1 + _TOLERANCE
            below = vertical.heights(low) < -_TOLERANCE
        for arrow, outside in zip(shares, (above, below), strict=True):
            shares[arrow].update(np.round(places[outside], 3).tolist())
    arrows = [
        element("text", arrow, x=percent(share), y="12" if arrow == "↑" else "100%", class_="beyond")
        for arrow, held in shares.items()
        for share in sorted(held)
    ]
    signs = " and ".join(arrow for arrow, held in shares.items() if held)
    return arrows, f"{signs}: values beyond the axis." if arrows else ""


def _newest(chart: Chart, curves: tuple[Curve, ...]) -> str:
    """The last values, shown until the user points at others."""
    newest = []
    for curve in curves:
        measured = curve.series.recent[np.isfinite(curve.series.recent)]
        if len(measured):
            name = f"{curve.name} " if len(curves) > 1 else ""
            newest.append(f"{name}{chart.format_value(float(measured[-1]))}")
    return " · ".join(newest)


@dataclass(frozen=True, slots=True, eq=False)
class _Plot:
    """The vertical axis with its labels, and the area with the curves, which have ``columns``."""

    chart: Chart
    steps: StepRange
    columns: list[Columns]
    axis: Axis

    def labels(self) -> Markup:
        """The labels of the vertical axis."""
        return value_labels(self.axis, self.chart.height, self.chart.format_value)

    def area(self, arrows: Sequence[Markup]) -> Markup:
        """Grid, curves, points and ``arrows``."""
        dots = map(self._dot, self.chart.points)
        cursor = element("line", x1="0", x2="0", y1="0", y2="100%", class_="cursor", visibility="hidden")
        return plot_area(
            self.axis, self.chart.height, self._lines(), *dots, *arrows, cursor, label=self._words()
        )

    def _y(self, values: Floats) -> Floats:
        return pixels(self.axis, values, self.chart.height)

    def _lines(self) -> Iterator[Markup]:
        """Lines of the means, and bands from minimum to maximum if columns hold several steps."""
        for number, curve in enumerate(self.columns):
            x = WIDTH * self.steps.shares(curve.middles())
            low, middle, high = (self._y(values) for values in (curve.minimum, curve.mean, curve.maximum))
            alone = len(self.columns) == 1
            parts = self._parts(curve) if alone else [(slice(0, len(x)), f"curve{number}")]
            for part, class_ in parts:
                if curve.width_steps > 1:
                    yield element(
                        "path", d=band_path(x[part], high[part], low[part]), class_=f"band {class_}"
                    )
                yield element("path", d=line_path(x[part], middle[part]), class_=f"line {class_}")

    def _parts(self, curve: Columns) -> Iterator[tuple[slice, str]]:
        """The columns of each colour that hold a value.

        Each part begins with the last column of the previous one, so that the line has no gap at a switch.
        """
        measured = np.flatnonzero(np.isfinite(curve.mean))
        begin = 0
        for precision, group in groupby(self.steps.precisions(curve.middles())):
            end = begin + len(list(group))
            inner = measured[(measured >= begin) & (measured < end)]
            if len(inner):
                before = measured[measured < begin]
                joins = len(before) > 0 and (self.chart.sparse or inner[0] - before[-1] == 1)
                yield slice(int(before[-1] if joins else begin), end), css_class(precision)
            begin = end

    def _dot(self, point: Point) -> Markup | None:
        value = np.array([point.value]) / self.chart.unit_value
        if not -_TOLERANCE <= self.axis.heights(value)[0] <= 1 + _TOLERANCE:
            return None
        share = float(self.steps.shares(np.array([point.step + 0.5]))[0])
        y = float(self._y(value)[0])
        title = element("title", point.words)
        return element("circle", title, cx=percent(share), cy=f"{y:.1f}", r=3, class_="dot")

    def _words(self) -> str:
        """The range of each curve, for screen readers."""
        chart, ranges = self.chart, []
        for curve, drawn in zip(chart.curves, self.columns, strict=True):
            if np.isfinite(drawn.mean).any():
                low, high = float(np.nanmin(drawn.minimum)), float(np.nanmax(drawn.maximum))
                ranges.append(f"{curve.name} from {chart.format_value(low)} to {chart.format_value(high)}")
        return f"{', '.join(ranges)} {chart.unit}".rstrip()


def pixels(vertical: Axis, values: Floats, height: int) -> Floats:
    """The distance of values from the top of a plot ``height`` pixels high."""
    heights = np.clip(vertical.heights(values), 0.0, 1.0)
    return _MARGIN + (1 - heights) * (height - 2 * _MARGIN)


def value_labels(vertical: Axis, height: int, words: Callable[[float], str]) -> Markup:
    """The labels of the vertical axis."""
    ticks = vertical.ticks(MAX_LABELS)
    labels = [
        element("text", units.tick(words(tick)), x="100%", y=f"{y + 4:.0f}")
        for tick, y in zip(ticks, pixels(vertical, np.array(ticks), height).tolist(), strict=True)
    ]
    return element("svg", *labels, class_="values", height=height, aria_hidden="true")


def plot_area(
    vertical: Axis, height: int, lines: Iterable[Markup | None], *marks: Markup | None, label: str
) -> Markup:
    """Grid lines, stretched ``lines`` in a drawing ``WIDTH`` wide, and ``marks`` on them."""
    grid = [
        element("line", x1="0", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
        for y in pixels(vertical, np.array(vertical.ticks(MAX_LABELS)), height).tolist()
    ]
    drawing = element(
        "svg",
        *lines,
        viewBox=f"0 0 {WIDTH} {height}",
        preserveAspectRatio="none",
        width="100%",
        height=height,
    )
    parts = (*grid, drawing, *marks)
    return element("svg", *parts, class_="area", height=height, role="img", aria_label=label)


def line_path(x: Floats, y: Floats) -> str:
    """The path of a line through the finite points."""
    finite = np.isfinite(y)
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(x[finite].tolist(), y[finite].tolist(), strict=True)]
    # A line of one point would be invisible.
    return f"M{'L'.join(points)}" if len(points) > 1 else "".join(f"M{point}h.1" for point in points)


def band_path(x: Floats, high: Floats, low: Floats) -> str:
    """The path around the area between two lines."""
    finite = np.isfinite(high) & np.isfinite(low)
    x, high, low = x[finite], high[finite], low[finite]
    outline = zip([*x, *x[::-1]], [*high, *low[::-1]], strict=True)
    points = [f"{a:.1f} {b:.1f}" for a, b in outline]
    return f"M{'L'.join(points)}Z" if points else ""


def _legend(curves: tuple[Curve, ...]) -> Markup:
    names = [element("li", curve.name, class_=f"curve{i}") for i, curve in enumerate(curves)]
    return element("ul", *names, class_="legend")


def _values(chart: Chart, curves: tuple[Curve, ...], drawn: list[Columns]) -> dict[str, object]:
    """What the page's script shows for the step that the user points at."""
    return {
        "unit": chart.unit,
        "curves": [
            {
                "name": curve.name if len(curves) > 1 else "",
                "first": values.first_step,
                "width": values.width_steps,
                "mean": _numbers(values.mean),
                "low": _numbers(values.minimum) if values.width_steps > 1 else [],
                "high": _numbers(values.maximum) if values.width_steps > 1 else [],
                "nonfinite": np.flatnonzero(values.nonfinite).tolist(),
            }
            for curve, values in zip(curves, drawn, strict=True)
        ],
    }


def _numbers(values: Floats) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
