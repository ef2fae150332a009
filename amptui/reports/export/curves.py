"""The charts of the page, with units and notes on how to read them."""

import math
from collections.abc import Iterator

import numpy as np

from amptui.base import units
from amptui.base.text import printable
from amptui.diagnosis.event_words import validation_words
from amptui.diagnosis.labels import step_loss_words
from amptui.records.run import EpochFinished, Validated
from amptui.reports.export.chart import Chart, Curve, Point
from amptui.reports.export.recorded_run import RecordedRun
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.view import Series, SessionView

_UPDATES_NOTE = "How far one optimizer step moves a layer's weights: |after - before| / |before|."
_SAMPLE_NOTE = " Of large layers it is estimated from a part of the weights."


def charts(recording: RecordedRun) -> Iterator[Chart]:
    """All charts, the most important first."""
    yield from step_charts(recording, recording.view)
    yield from _device(recording)


def step_charts(recording: RecordedRun, view: SessionView) -> Iterator[Chart]:
    """Those of the steps of the optimizer in front of ``view``, the loss first."""
    validations = recording.validations if view.front == FIRST else ()
    yield Chart(
        title="loss",
        curves=(Curve("loss", view.loss),),
        height=220,
        noisy=True,
        points=tuple(point for epoch in validations for point in _validation(epoch)),
        skips=view.skips,
        note=step_loss_words(view.newest),
    )
    if parts := recording.parts(view.front):
        components = tuple(Curve(printable(name), series) for name, series in parts.items())
        yield Chart(title="loss components", curves=components, noisy=True)
    yield Chart(
        title="throughput",
        unit="samples/s",
        curves=(Curve("throughput", view.samples_rate),),
        format_value=units.short_count,
        kind="linear",
        noisy=True,
    )
    yield Chart(
        title="loss scale",
        curves=(Curve("loss scale", view.loss_scale),),
        format_value=units.short_count,
        kind="log2",
        skips=view.skips,
    )
    yield Chart(
        title="headroom",
        unit="doublings to overflow",
        curves=(Curve("headroom", view.numerics.headrooms),),
        format_value=units.doublings,
        kind="linear",
        sparse=True,
        note="log2(65504 / largest scaled gradient); outside fp16, what float16 would have. × overflowed.",
    )
    norm = Curve("gradient norm", recording.step_curve("grad_norm", view.front))
    yield Chart(title="gradient norm", curves=(norm,), noisy=True, sparse=True)
    rate = Curve("learning rate", recording.step_curve("lr", view.front))
    yield Chart(title="learning rate", curves=(rate,))
    updates = [metric for metric in view.metrics if metric.kind == "update"]
    if updates:
        yield Chart(
            title="update/weight",
            curves=tuple(Curve(printable(metric.name), metric.read()) for metric in updates),
            sparse=True,
            note=_UPDATES_NOTE + (_SAMPLE_NOTE if any(metric.is_estimate for metric in updates) else ""),
        )


def _validation(record: EpochFinished | Validated) -> Iterator[Point]:
    validation = record.validation
    if validation is not None and validation.loss is not None and math.isfinite(validation.loss):
        when = f"epoch {record.epoch}" if isinstance(record, EpochFinished) else f"step {record.step:,}"
        yield Point(record.step, validation.loss, f"validation after {when}: {validation_words(validation)}")


def _device(recording: RecordedRun) -> Iterator[Chart]:
    memory = {
        "used on the GPU": recording.device_curve("gpu_memory"),
        "allocated by torch": recording.device_curve("allocated"),
    }
    curves = tuple(Curve(name, series) for name, series in memory.items() if series.count)
    if curves:
        unit, unit_value = _unit(curve.series for curve in curves)
        yield Chart(title="GPU memory", unit=unit, unit_value=unit_value, curves=curves, kind="linear")
    busy = Curve("GPU utilization", recording.device_curve("busy"))
    yield Chart(title="GPU utilization", unit="%", curves=(busy,), kind="linear", sparse=True, ceiling=100.0)
    power = Curve("GPU power", recording.device_curve("power"))
    yield Chart(title="GPU power", unit="W", curves=(power,), kind="linear", sparse=True)


def _unit(curves: Iterator[Series]) -> tuple[str, float]:
    """The unit of bytes that fits the largest value."""
    largest = max((float(np.fmax.reduce(series.maximum, initial=0.0)) for series in curves), default=0.0)
    power = min(len(units.BYTE_UNITS) - 1, int(math.log(largest, 1024))) if largest >= 1 else 0
    return units.BYTE_UNITS[power], 1024.0**power
