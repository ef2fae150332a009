"""Histories of logged values: each at its steps, after a resume too, and in bounded memory."""

import math
from dataclasses import replace

import pytest

from amptui.records.findings import UpdatesMeasured
from amptui.records.run import EpochFinished, Record, Validated, Validation
from amptui.records.samples import AllocatorSample, DeviceSample, GpuSample, HostSample
from amptui.telemetry.history import MAX_NAMED
from amptui.telemetry.view import MetricKind, SessionView
from tests.builders import fold, view_of
from tests.telemetry.record_samples import run, steps
from tests.telemetry.whole_runs import restored_from


def values(view: SessionView, kind: MetricKind, name: str) -> dict[int, float]:
    """The measured values by step, of a history whose recent values are all of it."""
    series = next(metric for metric in view.metrics if (metric.kind, metric.name) == (kind, name)).read()
    first = series.last_step - len(series.recent) + 1
    return {
        at: value for at, value in enumerate(series.recent.tolist(), first) if not math.isnan(value)
    }  # a value that is not finite is counted elsewhere


def names(view: SessionView) -> set[tuple[str, str]]:
    return {(metric.kind, metric.name) for metric in view.metrics}


def validated(at: int, loss: float | None, **metrics: float) -> Validated:
    result = Validation(loss=loss, accuracy=None, samples=10, metrics=metrics)
    return Validated(time=101.0, step=at, epoch=1, validation=result)


def sampled(power_watts: float | None, *, uuid: str = "GPU-1") -> DeviceSample:
    gpus = (GpuSample(uuid="GPU-9", power_watts=9.0), GpuSample(uuid=uuid, power_watts=power_watts))
    allocator = AllocatorSample(
        precision="fp32", allocated_bytes=1000, reserved_bytes=2000, peak_allocated_bytes=None
    )
    return DeviceSample(time=101.0, gpus=gpus, host=HostSample(), allocator=allocator)


def test_a_validation_is_kept_at_its_step() -> None:
    epoch = EpochFinished(
        time=103.0,
        step=6,
        epoch=1,
        seconds=2.0,
        mean_loss=0.5,
        validation=Validation(loss=0.3, accuracy=0.9, samples=10, metrics={"f1": 0.5}),
    )
    without = replace(epoch, step=8, validation=None)
    view = view_of(run(), *steps(1, 4), validated(3, 0.5, f1=0.25), *steps(5, 8), epoch, without)
    assert values(view, "validation", "loss") == {3: 0.5, 6: 0.3}
    assert values(view, "validation", "accuracy") == {6: 0.9}
    assert values(view, "own validation", "f1") == {3: 0.25, 6: 0.5}


def updated(at: int, ratios: dict[str, float], optimizer: str = "") -> UpdatesMeasured:
    return UpdatesMeasured(time=101.0, step=at, ratios=ratios, optimizer=optimizer)


def test_update_ratios_are_kept_by_layer_and_optimizer() -> None:
    records: tuple[Record, ...] = (
        run(),
        *steps(1, 4),
        updated(1, {"a": 1e-3, "b": math.nan}),
        updated(3, {"a": 2e-3}),
        updated(2, {"c": 0.5}, "other"),
    )
    session = fold(records)
    for view in (session.view(), restored_from(session.state()).view()):
        assert values(view, "update", "a") == {1: 1e-3, 3: 2e-3}
        assert values(view, "update", "b") == {}, "not finite"
    assert values(session.view("other"), "update", "c") == {2: 0.5}


@pytest.mark.parametrize("extra", [0, 1])
def test_memory_is_bounded_and_what_is_left_out_is_said(extra: int) -> None:
    parts = {f"part {number}": float(number) for number in range(MAX_NAMED - 1 + extra)}
    session = fold([run(), *steps(1, 3, losses=parts), validated(3, 0.5, f1=0.5)])
    view = session.view()
    assert view.metrics_left_out == bool(extra)
    assert (
        len([metric for metric in view.metrics if "part" in metric.kind or "own" in metric.kind]) == MAX_NAMED
    )
    assert len(session.state()) < 7_000_000
    assert names(restored_from(session.state()).view()) == names(view)
