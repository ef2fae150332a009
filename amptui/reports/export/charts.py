"""The charts of a page: what the page's script draws of each, as numbers beside a title and notes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from amptui.base import units
from amptui.diagnosis.event_words import validation_words
from amptui.diagnosis.labels import precision_label, precision_letter, step_loss_words
from amptui.records.findings import FLOAT16_ZONES, Float16Window
from amptui.records.run import EpochFinished, Validated
from amptui.reports.export.markup import Markup, css_class, data, element
from amptui.telemetry.axis import Axis, Kind, axis, extent, kind_for, rate_limits, round_up
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.view import EMPTY_SERIES, Counts, Floats, PrecisionSwitch, Series, SessionView

MAX_COLUMNS = 600
"""More than a phone has pixels across; on a wide screen a column is two or three pixels."""

_MAX_LABELS = 6
"""Of a vertical axis."""

_MAX_PARTS = 8
"""Loss components with a curve; a chart of more would be unreadable."""

_LABEL_SHARE = 0.14
"""The fraction of the axis around a label without other labels, even on a phone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """A curve in columns of ``width`` steps each, from ``first`` on; NaN where it has no value."""

    name: str = ""
    colour: str = ""
    """A class of the style sheet; empty for the colours of the precisions."""
    first: float = 0.0
    width: float = 1.0
    low: Floats
    mean: Floats
    high: Floats
    nonfinite: Sequence[int] = ()
    """Columns with NaN or Inf."""
    is_dashed: bool = False
    weights: Floats | None = None
    """Of rates: the seconds of each column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """How to draw one or more lines over the same steps."""

    title: str
    unit: str = ""
    words: Callable[[float | None], str] = units.loss
    """How values are written."""
    kind: Kind | None = None
    """Of the vertical axis; None: chosen by the values."""
    ceiling: float = math.inf
    """What the values cannot exceed."""
    is_noisy: bool = False
    """Single values far from all others do not set the vertical axis."""
    is_sparse: bool = False
    """Not every step has a value: the line also connects values across a switch of the precision."""
    has_gaps: bool = False
    """The line connects no values with columns between them."""
    height: int = 150
    """In pixels."""
    points: Sequence[tuple[int, float, str]] = ()
    """Single values beside the lines: step, value, words."""
    skips: Sequence[float] = ()
    """Where skipped steps are marked."""
    newest: str | None = None
    """What stands beside the title until somebody points at steps; None: that shows nothing."""
    note: str = ""
    """How to read it."""


def figure(chart: Chart, lines: Sequence[Line]) -> Markup | None:
    """A figure that the page's script draws; None without a finite value."""
    vertical = _vertical_axis(chart, lines)
    if vertical is None:
        return None
    ranges = [
        f"{line.name} from {chart.words(np.nanmin(line.low))} to {chart.words(np.nanmax(line.high))}"
        for line in lines
        if np.isfinite(line.low).any()
    ]
    content = {
        "unit": chart.unit,
        "height": chart.height,
        "low": vertical.low,
        "high": vertical.high,
        "logarithmic": vertical.is_logarithmic,
        "ticks": [(tick, units.tick(chart.words(tick))) for tick in vertical.ticks(_MAX_LABELS)],
        "label": f"{chart.title}, {chart.unit}: {', '.join(ranges)}",
        "sparse": chart.is_sparse,
        "gaps": chart.has_gaps,
        "points": chart.points,
        "skips": chart.skips,
        "curves": [_numbers_of(line) for line in lines],
    }
    how = element("small", " (logarithmic)") if vertical.is_logarithmic else None
    title = element("h3", f"{chart.title}, {chart.unit}" if chart.unit else chart.title, how)
    readout = None if chart.newest is None else element("output", chart.newest, class_="readout")
    named = [element("li", line.name, class_=line.colour) for line in lines if line.colour and readout]
    return element(
        "figure",
        element("figcaption", title, readout),
        element("div", class_="plot"),
        element("ul", *named, class_="legend") if named else None,
        element("p", chart.note, element("span", class_="outside"), class_="note"),
        class_="chart",
        data_chart=data(content),
    )


def _vertical_axis(chart: Chart, lines: Sequence[Line]) -> Axis | None:
    """None if it can show nothing."""
    values = np.array([value for _, value, _ in chart.points])
    ends = [end for line in lines for end in (line.low, line.high)]
    kind = chart.kind or kind_for(np.concatenate([values, *ends]))
    least = -math.inf if kind == "linear" else 0.0
    limits = [*values[values > least]]
    for line in lines:
        if (line.high > least).any():
            low, high = extent(line.low, line.high, kind, with_outliers=not chart.is_noisy)
            if line.weights is not None:  # of rates only the usual ones
                bottom, top = rate_limits(line.mean, line.weights)
                low, high = max(low, bottom), min(high, top)
            limits += low, high
    return axis(min(limits), max(limits), kind, ceiling=chart.ceiling) if limits else None


def _numbers_of(line: Line) -> dict[str, object]:
    """A line as the page's script reads it; without a band the ends are left out."""
    has_band = (line.high > line.low).any()
    columns = {
        name: [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]
        for name, values in (("low", line.low), ("mean", line.mean), ("high", line.high))
        if has_band or name == "mean"
    }
    names = ("name", "colour", "first", "width", "nonfinite", "is_dashed")
    return {"low": [], "high": [], **columns, **{name: getattr(line, name) for name in names}}


# ------------------------------------------------------------------------------- curves of a run


def step_axis(first: int, last: int, switches: Sequence[PrecisionSwitch]) -> str:
    """The steps that charts have in common, for an attribute ``data-axis`` around them."""
    count = max(1, last - first + 1)
    labels = [(0.0, f"{first:,}")]
    interval = max(1, round(round_up(count / 4)))
    for step in range(-(-first // interval) * interval, last, interval):
        share = (step + 0.5 - first) / count
        if _LABEL_SHARE <= share <= 1 - _LABEL_SHARE:
            labels.append((share, f"{step:,}"))
    if last > first:
        labels.append((1.0, f"{last:,}"))
    parts = [
        (switch.step, css_class(name), precision_letter(name), precision_label(name))
        for switch in switches
        for name in [switch.precision]
    ]
    return data({"first": first, "count": count, "labels": labels, "switches": parts})


def charts(view: SessionView, validations: Sequence[EpochFinished | Validated]) -> Iterator[Markup | None]:
    """Of the optimizer in front of ``view``, the loss first; None for what was not measured."""
    metrics: dict[str, dict[str, Series]] = {}
    for metric in view.metrics:
        if metric.kind != "part" or len(metrics.get("part", ())) < _MAX_PARTS:
            metrics.setdefault(metric.kind, {})[metric.name] = metric.read()
    of_steps, device = metrics.get("step", {}), metrics.get("device", {})
    skipped = _line("", view.skips, "")
    skips = (skipped.first + (np.flatnonzero(skipped.high > 0) + 0.5) * skipped.width).tolist()
    loss = Chart(
        title="loss",
        height=220,
        is_noisy=True,
        points=[] if view.front != FIRST else [*chain.from_iterable(map(_validation, validations))],
        skips=skips,
        note=step_loss_words(view.newest),
    )
    yield _of_series(loss, view.loss)
    yield _of_named(Chart(title="loss components", is_noisy=True), metrics.get("part", {}))
    throughput = Chart(
        title="throughput", unit="samples/s", words=units.short_count, kind="linear", is_noisy=True
    )
    yield _of_series(throughput, view.samples_rate)
    scale = Chart(title="loss scale", words=units.short_count, kind="log2", skips=skips)
    yield _of_series(scale, view.loss_scale)
    headroom = Chart(
        title="headroom",
        unit="doublings to overflow",
        words=units.doublings,
        kind="linear",
        is_sparse=True,
        note="log2(65504 / largest scaled gradient); outside fp16, what float16 would have. × overflowed.",
    )
    yield _of_series(headroom, view.numerics.headrooms)
    norm = Chart(title="gradient norm", is_noisy=True, is_sparse=True)
    yield _of_series(norm, of_steps.get("grad_norm", EMPTY_SERIES))
    yield _of_series(Chart(title="learning rate"), of_steps.get("lr", EMPTY_SERIES))
    estimated = " Of large layers it is estimated from a part of the weights."
    note = "How far one optimizer step moves a layer's weights: |after - before| / |before|."
    note += estimated if any(metric.is_estimate for metric in view.metrics) else ""
    yield _of_named(Chart(title="update/weight", is_sparse=True, note=note), metrics.get("update", {}))
    memory = {
        words: device[name]
        for name, words in {
            "memory_used_bytes": "used on the GPU",
            "allocated_bytes": "allocated by torch",
        }.items()
        if name in device
    }
    largest = max(
        (float(np.fmax.reduce(series.maximum, initial=0.0)) for series in memory.values()), default=0
    )
    power = min(len(units.BYTE_UNITS) - 1, int(math.log(largest, 1024))) if largest >= 1 else 0
    memory = {name: series.in_units_of(1024.0**power) for name, series in memory.items()}
    yield _of_named(Chart(title="GPU memory", unit=units.BYTE_UNITS[power], kind="linear"), memory)
    busy = Chart(title="GPU utilization", unit="%", kind="linear", is_sparse=True, ceiling=100.0)
    yield _of_series(busy, device.get("utilization_percent", EMPTY_SERIES))
    power_draw = Chart(title="GPU power", unit="W", kind="linear", is_sparse=True)
    yield _of_series(power_draw, device.get("power_watts", EMPTY_SERIES))


def _validation(record: EpochFinished | Validated) -> Iterator[tuple[int, float, str]]:
    validation = record.validation
    if validation is not None and validation.loss is not None and math.isfinite(validation.loss):
        when = f"epoch {record.epoch}" if isinstance(record, EpochFinished) else f"step {record.step:,}"
        yield record.step, validation.loss, f"validation after {when}: {validation_words(validation)}"


def _of_series(chart: Chart, series: Series) -> Markup | None:
    """A single curve, in the colours of the precisions."""
    return figure(replace(chart, newest=_newest(chart, series)), [_line("", series, "")])


def _of_named(chart: Chart, curves: Mapping[str, Series]) -> Markup | None:
    """Curves in colours of their own, with a legend."""
    newest = " · ".join(f"{name} {_newest(chart, series)}" for name, series in curves.items())
    lines = [_line(name, series, f"curve{n}") for n, (name, series) in enumerate(curves.items())]
    return figure(replace(chart, newest=newest), lines)


def _newest(chart: Chart, series: Series) -> str:
    measured = series.recent[np.isfinite(series.recent)]
    return chart.words(float(measured[-1])) if len(measured) else ""


def _line(name: str, series: Series, colour: str) -> Line:
    """``series`` in at most ``MAX_COLUMNS`` columns; no spike is lost."""
    joined = max(1, -(-len(series.mean) // MAX_COLUMNS))

    def rows(values: Floats | Counts) -> Floats:
        padding = (0, -len(values) % joined)
        return np.pad(values.astype(np.float64), padding, constant_values=np.nan).reshape(-1, joined)

    means = rows(series.mean)
    seconds = np.ones_like(means) if series.weights is None else np.nan_to_num(rows(series.weights))
    weights = np.where(np.isfinite(means), seconds, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    shares = np.nan_to_num(means) * (weights / np.where(totals > 0, totals, 1.0))  # no sum overflows
    return Line(
        name=name,
        colour=colour,
        first=series.first_step,
        width=series.bucket_steps * joined,
        low=np.fmin.reduce(rows(series.minimum), axis=1),
        mean=np.where(np.isfinite(means).any(axis=1), shares.sum(axis=1), np.nan),
        high=np.fmax.reduce(rows(series.maximum), axis=1),
        nonfinite=np.flatnonzero(np.nansum(rows(series.nonfinite), axis=1)).tolist(),
        weights=None if series.weights is None else seconds.sum(axis=1),
    )


# ------------------------------------------------------------------------- the float16 histogram


def histogram(window: Float16Window) -> Markup:
    """One bar per exponent of all gradients, coloured by what float16 does with it."""
    first, count = window.first_exponent, len(window.counts)
    bars = [
        (_zone(exponent), elements, f"2^{exponent} to 2^{exponent + 1}: {units.count(elements)}")
        for exponent, elements in enumerate(window.counts, first)
    ]
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    labels = [
        ((exponent - first) / count, f"2{str(exponent).translate(raised)}")
        for exponent in sorted((*FLOAT16_ZONES.values(), 0))
        if first < exponent < first + count
    ]
    nonzero = window.elements - window.zeros
    items = [
        element("li", f"{name} {units.share(amount, nonzero)}", class_=name.split()[0])
        for name, amount in (
            ("flushed to zero", window.flushed),
            ("subnormal", window.subnormal),
            ("normal", window.normal),
            ("overflow", window.overflowing),
        )
    ]
    items.append(element("li", f"zeros {units.share(window.zeros, window.elements)} of all", class_="zeros"))
    if window.nonfinite:
        items.append(element("li", f"NaN or Inf: {units.count(window.nonfinite)}", class_="nonfinite"))
    plot = element("div", class_="window", data_histogram=data({"bars": bars, "labels": labels}))
    return element("div", plot, element("ul", *items, class_="legend zones"))


def _zone(exponent: int) -> str:
    """What float16 does with magnitudes from 2^exponent to 2^(exponent + 1)."""
    return ["flushed", *(name for name, start in FLOAT16_ZONES.items() if exponent >= start)][-1]
