"""Measurements made by hand, and benchmarks of them."""

from dataclasses import replace
from typing import Any

from amptui.base.errors import AmptuiError
from amptui.recipe.request import TrainRequest
from amptui.records.findings import PhaseSeconds, PrecisionMeasured
from amptui.reports.bench.results import Bench, Measured, Plan
from amptui.telemetry.view import PrecisionTiming, SessionView
from tests.builders import make_started
from tests.telemetry import record_samples as samples

RUN = make_started(
    time=0.0,
    gpu_uuid=None,
    versions={"torch": "2.11.0"},
    hardware={"cores": 16},
    total_epochs=1,
    total_steps=None,
)

BASELINE = samples.measured(
    "fp32",
    step_seconds=0.02,
    samples_per_second=12_800.0,
    peak_allocated_bytes=2**30,
    first_loss=2.3,
    last_loss=0.1,
)


def amp(speedup: float = 1.6, **changes: Any) -> PrecisionMeasured:
    row = replace(
        BASELINE,
        precision="fp16",
        step_seconds=0.02 / speedup,
        samples_per_second=12_800 * speedup,
        speedup=speedup,
        speedup_low=speedup - 0.02,
        speedup_high=speedup + 0.02,
        peak_allocated_bytes=2**29,
        skipped=2,
    )
    return replace(row, **changes)


def measured(
    *rows: PrecisionMeasured,
    batch_size: int = 256,
    error: AmptuiError | None = None,
    **view: Any,
) -> Measured:
    compared = samples.compared(900, rows=(BASELINE, *rows))
    report = SessionView(run=replace(RUN, batch_size=batch_size), step=900, compared=compared)
    return Measured(
        batch_size=batch_size,
        view=replace(report, **view),
        error=error,
    )


def bench(*sizes: Measured, model: str = "mnist-deep", **training: Any) -> Bench:
    request = TrainRequest(model=model, **training)
    return Bench(training=request, plan=Plan((), {}), sizes=sizes, interrupted=False)


def timing(precision: str, forward: float, bound: str = "compute") -> PrecisionTiming:
    """Of a host that takes twice as long as the kernels of a step, or a tenth; unknown: the GPU idles."""
    launching = 2.0 if bound == "launch" else 0.1
    return PrecisionTiming(
        precision=precision,
        steps=40,
        phases=(
            PhaseSeconds(name="input", host_seconds=0.001, device_seconds=0.0),
            PhaseSeconds(name="forward", host_seconds=launching * forward, device_seconds=forward),
            PhaseSeconds(name="backward", host_seconds=launching * forward, device_seconds=2 * forward),
        ),
        utilization_percent=50.0 if bound == "unknown" else None,
    )
