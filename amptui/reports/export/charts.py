"""The charts of a page: what the page's script draws of each, as numbers beside a title and notes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Literal

import numpy as np

from amptui.base import units
from amptui.diagnosis.event_words import validation_words
from amptui.diagnosis.labels import precision_label, precision_letter, step_loss_words
from amptui.records.findings import FLOAT16_ZONES, Float16Window
from amptui.records.run import EpochFinished, Validated
from amptui.reports.export.template import MAX_COLOURS, Span, css_class
from amptui.telemetry.axis import Axis, Kind, axis, kind_for, noisy_curve, usual_range
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.view import EMPTY_SERIES, Counts, Floats, Series, SessionView

MAX_COLUMNS = 600
"""More than a phone has pixels across; on a wide screen a column is two or three pixels."""

_REACH = 6
"""A smoothed line is the mean over so many columns to both sides."""

_LABEL_SHARE = 0.14
"""The fraction of the axis around a label without other labels, even on a phone."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over the same steps, and how they are drawn."""

    title: str
    curves: Mapping[str, Series]
    """By name; one without a name has the colours of the precisions."""
    unit: str = ""
    words: Callable[[float | None], str] = units.loss
    """How values are written."""
    kind: Kind | None = None
    """Of the vertical axis; None: chosen by the values."""
    ceiling: float = math.inf
    """What the values cannot exceed."""
    scaled_to: Literal["all", "usual", "line"] = "all"
    """The vertical axis shows all values, all but outliers, or the smoothed line, which is drawn then."""
    joins: Literal["precision", "all"] = "precision"
    """Which values a line connects over columns without one: those of one precision, or all."""
    height: int = 150
    """In pixels."""
    points: Sequence[tuple[int, float, str]] = ()
    """Single values beside the curves: step, value, words."""
    skips: Sequence[float] = ()
    """Where skipped steps are marked."""
    note: str = ""
    """How to read it."""
    colours: Sequence[str] = ()
    """Classes of the curves, where the page has a legend of its own and nothing to say of single steps."""


def figure(chart: Chart, axis_place: int, switches: Sequence[int] = ()) -> dict[str, Any] | None:
    """A chart over one of the page's axes, as the template takes it; None without a finite value.

    A smoothed line is not across ``switches``, the steps of them.
    """
    columns = [_columns(series, switches) for series in chart.curves.values()]
    vertical = _vertical_axis(chart, columns)
    if vertical is None:
        return None
    curves, newest = [], []
    for place, ((name, series), own) in enumerate(zip(chart.curves.items(), columns, strict=True)):
        measured = series.recent[np.isfinite(series.recent)]
        newest.append(f"{name} {chart.words(float(measured[-1])) if len(measured) else ''}".strip())
        colour = chart.colours[place] if chart.colours else f"curve{place}" if name else ""
        curve = {"name": name, "colour": colour, "first": series.first_step}
        curve |= {"width": own["width"], "nonfinite": own["nonfinite"], "mean": _rounded(own["mean"])}
        curve |= {"line": _rounded(own["line"])} if "line" in own else {}
        if (own["high"] > own["low"]).any():
            curve |= {"low": _rounded(own["low"]), "high": _rounded(own["high"])}
        curves.append(curve)
    numbers = {
        "title": f"{chart.title}, {chart.unit}" if chart.unit else chart.title,
        "low": vertical.low,
        "high": vertical.high,
        "logarithmic": vertical.is_logarithmic,
        "ticks": [(tick, units.tick(chart.words(tick))) for tick in vertical.ticks(6)],
        "curves": curves,
        **{name: getattr(chart, name) for name in ("unit", "height", "joins", "points", "skips")},
    }
    readout = None if chart.colours else " · ".join(newest)
    return {"axis": axis_place, "numbers": numbers, "readout": readout, "note": chart.note}


def _columns(series: Series, switches: Sequence[int] = ()) -> dict[str, Any]:
    """``series`` in at most ``MAX_COLUMNS`` columns of ``width`` steps; no spike is lost."""
    joined = max(1, -(-len(series.mean) // MAX_COLUMNS))

    def rows(values: Floats | Counts) -> Floats:
        padding = (0, -len(values) % joined)
        return np.pad(values.astype(np.float64), padding, constant_values=np.nan).reshape(-1, joined)

    means = rows(series.mean)
    seconds = np.ones_like(means) if series.weights is None else np.nan_to_num(rows(series.weights))
    weights = np.where(np.isfinite(means), seconds, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    shares = np.nan_to_num(means) * (weights / np.where(totals > 0, totals, 1.0))  # no sum overflows
    width = series.bucket_steps * joined
    breaks = {(step - series.first_step) // width for step in switches}
    return {
        "width": width,
        "breaks": np.array(sorted(breaks & {*range(len(means))}), np.int64),
        "low": np.fmin.reduce(rows(series.minimum), axis=1),
        "mean": np.where(np.isfinite(means).any(axis=1), shares.sum(axis=1), np.nan),
        "high": np.fmax.reduce(rows(series.maximum), axis=1),
        "nonfinite": np.flatnonzero(np.nansum(rows(series.nonfinite), axis=1)).tolist(),
        "seconds": None if series.weights is None else seconds.sum(axis=1),
    }


def _vertical_axis(chart: Chart, columns: Sequence[dict[str, Any]]) -> Axis | None:
    """None if it can show nothing. Columns of which the smoothed line is shown get it."""
    values = np.array([value for _, value, _ in chart.points])
    ends = [own[end] for own in columns for end in ("low", "high")]
    kind = chart.kind or kind_for(np.concatenate([values, *ends]))
    least = -math.inf if kind == "linear" else 0.0
    limits = [*values[values > least]]
    for own in columns:
        if chart.scaled_to == "line" and (own["mean"] > least).any():
            own["line"], _, shown = noisy_curve(own["mean"], kind, _REACH, own["breaks"], own["seconds"])
            limits += shown
        elif (own["high"] > least).any():
            both = np.concatenate((own["low"], own["high"]))
            both = both[both > least]
            limits += usual_range(both, kind) if chart.scaled_to == "usual" else (both.min(), both.max())
    return axis(min(limits), max(limits), kind, ceiling=chart.ceiling) if limits else None


def _rounded(values: Floats) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


# ------------------------------------------------------------------------------- curves of a run


def step_axis(view: SessionView) -> dict[str, Any]:
    """The steps that the charts of an optimizer have in common, as the page's script takes them."""
    first, last = view.loss.first_step, view.loss.last_step
    count = max(1, last - first + 1)
    labels = [(0.0, first)]
    if last > first:
        steps = [int(tick) for tick in Axis(first, last).ticks(5) if first < tick < last and tick % 1 == 0]
        inner = [((step + 0.5 - first) / count, step) for step in steps]
        labels += [pair for pair in inner if _LABEL_SHARE <= pair[0] <= 1 - _LABEL_SHARE]
        labels.append((1.0, last))
    parts = [
        (switch.step, css_class(name), precision_letter(name), precision_label(name))
        for switch in view.switches
        for name in [switch.precision]
    ]
    words = [(share, f"{step:,}") for share, step in labels]
    return {"first": first, "count": count, "labels": words, "switches": parts}


def charts(
    view: SessionView, axis_place: int, validations: Sequence[EpochFinished | Validated]
) -> list[dict[str, Any] | None]:
    """Figures of the optimizer in front of ``view``, the loss first; None for what was not measured."""

    def logged(kind: str) -> dict[str, Series]:
        most = MAX_COLOURS if kind == "part" else None
        shown = islice((metric for metric in view.metrics if metric.kind == kind), most)
        return {metric.name: metric.read() for metric in shown}

    def single(title: str, series: Series | None, unit: str = "", **how: Any) -> Chart:
        return Chart(title, {"": EMPTY_SERIES if series is None else series}, unit, **how)

    of_steps, device = logged("step"), logged("device")
    held = {"memory_used_bytes": "used on the GPU", "allocated_bytes": "allocated by torch"}
    memory = {words: device[name].in_units_of(2.0**30) for name, words in held.items() if name in device}
    skipped = _columns(view.skips)
    skips = (view.skips.first_step + (np.flatnonzero(skipped["high"] > 0) + 0.5) * skipped["width"]).tolist()
    points = [*_points(validations)] if view.front == FIRST else []
    overflow = "65,504 / largest scaled gradient; outside fp16, what float16 would have. × overflowed."
    ratios = (
        "How far one optimizer step moves a layer's weights: |after - before| / |before|. "
        "Of large layers it is estimated from a part of the weights."
    )
    loss_note, short = step_loss_words(view.newest), units.short_count
    sampled: dict[str, Any] = {"kind": "linear", "joins": "all"}
    factors = {"words": units.headroom, "note": overflow, **sampled}
    shown = [
        single("loss", view.loss, height=220, scaled_to="line", points=points, skips=skips, note=loss_note),
        Chart("loss components", logged("part"), scaled_to="line"),
        single("throughput", view.samples_rate, "samples/s", words=short, kind="linear", scaled_to="line"),
        single("loss scale", view.loss_scale, words=short, kind="log2", skips=skips),
        single("headroom", view.numerics.headrooms, "below overflow", **factors),
        single("gradient norm", of_steps.get("grad_norm"), scaled_to="line", joins="all"),
        single("learning rate", of_steps.get("lr")),
        Chart("update/weight", logged("update"), joins="all", note=ratios),
        Chart("GPU memory", memory, "GiB", kind="linear"),
        single("GPU utilization", device.get("utilization_percent"), "%", ceiling=100.0, **sampled),
        single("GPU power", device.get("power_watts"), "W", **sampled),
    ]
    switches = [switch.step for switch in view.switches]
    return [figure(chart, axis_place, switches) if view.loss.count else None for chart in shown]


def _points(validations: Sequence[EpochFinished | Validated]) -> Iterator[tuple[int, float, str]]:
    for record in validations:
        validation = record.validation
        if validation is not None and validation.loss is not None and math.isfinite(validation.loss):
            when = f"epoch {record.epoch}" if isinstance(record, EpochFinished) else f"step {record.step:,}"
            yield record.step, validation.loss, f"validation after {when}: {validation_words(validation)}"


# ------------------------------------------------------------------------- the float16 histogram


def histogram(window: Float16Window) -> list[Span | str]:
    """A block for each exponent of all gradients, of the class of what float16 does with it.

    Heights are logarithms: a thousand lost elements among millions stay visible.
    """
    counts = {n: count for n, count in enumerate(window.counts, window.first_exponent) if count > 0}
    if not counts:
        return []
    highest = math.log1p(max(counts.values()))

    def block(exponent: int) -> str:
        return "·▁▂▃▄▅▆▇█"[math.ceil(8 * math.log1p(counts.get(exponent, 0)) / highest)]

    def zone(exponent: int) -> str:
        return ["flushed", *(name for name, start in FLOAT16_ZONES.items() if exponent >= start)][-1]

    parts = groupby(range(min(counts), max(counts) + 1), zone)
    blocks = [Span("".join(map(block, exponents)), name) for name, exponents in parts]
    return [f"2^{min(counts)} ", *blocks, f" 2^{max(counts) + 1}"]


def zones(window: Float16Window) -> list[Span]:
    """The legend of the blocks, with the share of each zone."""
    nonzero = window.elements - window.zeros
    shares = {
        "flushed": f"flushed to zero {units.share(window.flushed, nonzero)}",
        "subnormal": f"subnormal {units.share(window.subnormal, nonzero)}",
        "normal": f"normal {units.share(window.normal, nonzero)}",
        "overflow": f"overflow {units.share(window.overflowing, nonzero)}",
        "zeros": f"zeros {units.share(window.zeros, window.elements)} of all",
        "nonfinite": f"NaN or Inf: {units.count(window.nonfinite)}" if window.nonfinite else "",
    }
    return [Span(words, zone) for zone, words in shares.items() if words]
