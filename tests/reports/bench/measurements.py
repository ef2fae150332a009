"""Measurements made by hand, and benchmarks of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from amptui.recipe.request import BenchRequest, TrainRequest
from amptui.records.findings import PhaseSeconds, PrecisionMeasured, PrecisionsCompared
from amptui.records.run import DataInfo, RunStarted
from amptui.reports.bench.results import Bench, Measured
from amptui.telemetry.view import PrecisionTiming, SessionView

RUN = RunStarted(
    time=0.0,
    model="mnist-deep",
    device="cuda:0",
    device_name="NVIDIA H200",
    gpu_uuid=None,
    precision="fp32",
    amp_precision="fp16",
    unsupported={},
    config={},
    versions={"torch": "2.11.0"},
    hardware={"cores": 16},
    data=DataInfo(name="MNIST", real=True, samples=60_000),
    parameters=14_740_522,
    batch_size=256,
    steps_per_epoch=234,
    total_epochs=1,
    total_steps=None,
    growth_interval=2000,
)

BASELINE = PrecisionMeasured(
    precision="fp32",
    blocks=12,
    steps=240,
    step_seconds=0.02,
    samples_per_second=12_800.0,
    speedup=None,
    speedup_low=None,
    speedup_high=None,
    peak_allocated_bytes=2**30,
    skipped=0,
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
    error: str = "",
    compile_seconds: Mapping[str, float] | None = None,
    **view: Any,
) -> Measured:
    compared = PrecisionsCompared(
        time=0.0,
        step=900,
        baseline="fp32",
        block_steps=20,
        rounds=12,
        most_rounds=24,
        rows=(BASELINE, *rows),
        over=True,
        reason="narrow",
    )
    shown = SessionView(run=replace(RUN, batch_size=batch_size), step=900, compared=compared)
    return Measured(
        batch_size=batch_size,
        view=replace(shown, **view),
        error=error,
        compile_seconds=compile_seconds or {},
    )


def bench(*sizes: Measured, model: str = "mnist-deep", **training: Any) -> Bench:
    asked = BenchRequest(training=TrainRequest(model=model, **training))
    return Bench(model=model, asked=asked, left_out={}, sizes=sizes, interrupted=False)


def timing(precision: str, forward: float, **changes: Any) -> PrecisionTiming:
    return PrecisionTiming(
        precision=precision,
        steps=40,
        phases=(
            PhaseSeconds(name="input", host_seconds=0.001, device_seconds=0.0),
            PhaseSeconds(name="forward", host_seconds=0.009, device_seconds=forward),
            PhaseSeconds(name="backward", host_seconds=0.009, device_seconds=2 * forward),
        ),
        **{"bound": "compute", **changes},
    )
