"""Session views built by hand: everything that the panels can show."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import numpy as np

from amptui.records.run import (
    DataInfo,
    EpochFinished,
    PhaseChanged,
    RunFailed,
    RunStarted,
    Validation,
)
from amptui.records.samples import AllocatorSample, DeviceSample, GpuSample, HostSample
from amptui.records.steps import Steps
from amptui.telemetry.events import Event, severity_of
from amptui.telemetry.scaling import ScalerView
from amptui.telemetry.trouble import SkipRow, Storm
from amptui.telemetry.view import (
    Comparison,
    Metric,
    MetricKind,
    PrecisionStats,
    PrecisionSwitch,
    SessionView,
)
from tests.builders import make_finished, make_started, make_step, make_switch
from tests.telemetry import record_samples
from tests.tui.renderables.tracks import series_of as series

__all__ = ["series"]  # for tests that speak of it

NOW = 1_760_000_000.0
GIB = 1024**3
TRAINING_UUID = "GPU-aaaa"

STEP_SECONDS = {"fp32": 0.00391, "fp16": 0.00202, "bf16": 0.00211}
BATCH_SIZE = 256


def run_started(**changes: object) -> RunStarted:
    """A run of 2,350 steps that began 41 s ago."""
    size = {"parameters": 1_199_882, "steps_per_epoch": 235, "total_steps": 2350}
    return make_started(**{"time": NOW - 41, "gpu_uuid": TRAINING_UUID, **size, **changes})


def gpu(index: int = 0, **changes: object) -> GpuSample:
    sample = GpuSample(
        uuid=TRAINING_UUID if index == 0 else f"GPU-{index}",
        name="NVIDIA H200",
        memory_used_bytes=int(3.1 * GIB),
        memory_total_bytes=139 * GIB,
        utilization_percent=93.0,
        power_watts=412.3,
        temperature_c=54.0,
        sm_clock_mhz=1980.0,
        clocks_event_reasons=(),
    )
    return replace(sample, **changes)  # type: ignore[arg-type]  # each caller's changes are fields of GpuSample


def device(*gpus: GpuSample, note: str = "") -> DeviceSample:
    host = HostSample(
        cpu_percent=34.0,
        memory_used_bytes=12 * GIB,
        memory_total_bytes=31 * GIB,
        process_rss_bytes=int(1.2 * GIB),
    )
    return DeviceSample(time=NOW - 0.4, gpus=gpus, host=host, note=note)


def starting() -> SessionView:
    """No record yet but that torch is being imported."""
    return SessionView(
        run_dir="runs/mnist-deep-20261127-120000",
        phase=PhaseChanged(time=NOW, phase="importing", detail="importing torch"),
    )


def downloading() -> SessionView:
    """The data is on its way."""
    mebibyte = 1024**2
    phase = PhaseChanged(
        time=NOW,
        phase="data",
        detail="downloading train-images",
        done=int(3.1 * mebibyte),
        total=int(9.5 * mebibyte),
        unit="bytes",
    )
    return SessionView(phase=phase, device=device(gpu()))


def losses(steps: int) -> list[float]:
    """A loss that falls from 2.3 as one does, with noise that is the same in every run."""
    step = np.arange(1, steps + 1)
    noise = np.random.default_rng(7).lognormal(0.0, 0.35, steps)
    return [float(v) for v in (0.03 + 2.2 / (1 + step / 25) ** 1.1) * noise]


# ---------------------------------------------------- parts of a view as a session would have them


def last_step(step: int, precision: str, loss: float, scale: float | None) -> Steps:
    rest = {"time": NOW, "epoch": 1 + (step - 1) // 235, "data_seconds": 0.0001, "lr": 0.001}
    return make_step(
        step,
        precision=precision,
        loss=loss,
        step_seconds=STEP_SECONDS[precision],
        loss_scale=scale,
        growth_tracker=None,
        **rest,
    )


def scales_of(precisions: list[str], skips: set[int]) -> list[float | None]:
    """The scale each step ran with: halved after each skip."""
    scale, scales = 65536.0, list[float | None]()
    for step, precision in enumerate(precisions, 1):
        scales.append(scale if precision == "fp16" else None)
        scale = scale / 2 if step in skips else scale
    return scales


def rows_of(skips: Sequence[int]) -> list[SkipRow]:
    """The lines of steps that were skipped."""
    rows, consecutive, before = list[SkipRow](), 0, 0
    for step in skips:
        consecutive = consecutive + 1 if step == before + 1 else 1
        before = step
        names = ("features.13.conv.weight",)
        skip = record_samples.skip(step, time=NOW, names=names, consecutive=consecutive)
        if rows and (longer := rows[-1].with_step(skip)):
            rows[-1] = longer
        else:
            rows.append(SkipRow(first=skip, last=skip, scale_after=65536.0, scale_has_grown=True))
    return rows


def scaler_of(scales: list[float | None], skips: set[int]) -> ScalerView:
    used = [scale for scale in scales if scale is not None]
    if not used:
        return ScalerView()
    last_skip = max(skips, default=0)
    return ScalerView(
        scale=used[-1],
        growth_tracker=sum(scale is not None for scale in scales[last_skip:]),
        growth_interval=2000,
        applied=len(used) - len(skips),
        skipped=len(skips),
        last_change=replace(record_samples.backoff(last_skip, 2 * used[-1]), time=NOW) if skips else None,
    )


def comparison_of(blocks: Sequence[tuple[str, int]], skips: set[int]) -> Comparison:
    rows = []
    for precision in dict.fromkeys(precision for precision, _ in blocks):
        steps = sum(n for p, n in blocks if p == precision)
        settling = 10 * sum(p == precision for p, _ in blocks)
        rows.append(
            PrecisionStats(
                precision=precision,
                steps=steps - settling,
                warm_up_steps=settling,
                median_step_seconds=STEP_SECONDS[precision],
                mean_step_seconds=STEP_SECONDS[precision],
                samples_per_second=BATCH_SIZE / STEP_SECONDS[precision],
                peak_allocated_bytes=int((1.9 if precision == "fp32" else 1.18) * GIB),
                last_loss=0.0412 if precision == "fp32" else 0.0312,
                skipped=len(skips) if precision == "fp16" else 0,
            )
        )
    if len(rows) < 2:
        return Comparison(rows=tuple(rows), baseline="fp32", low="fp16", missing="low")
    speedup = STEP_SECONDS["fp32"] / STEP_SECONDS["fp16"]
    return Comparison(
        rows=tuple(rows), baseline="fp32", low="fp16", speedup=speedup, memory_saving=1 - 1.18 / 1.9
    )


def events_of(switched: list[int], blocks: Sequence[tuple[str, int]], skips: list[int]) -> tuple[Event, ...]:
    events = [
        Event(NOW - 40 + step / 30, step, "switch", "info", make_switch(step, one, other, time=NOW))
        for step, ((one, _), (other, _)) in zip(switched, pairwise(blocks), strict=False)
    ]
    for row in rows_of(skips):
        step = row.last.step
        events.append(Event(NOW - 40 + step / 30, step, "skip", severity_of(row), row))
    epoch = EpochFinished(time=NOW, step=235, epoch=1, seconds=1.0, mean_loss=0.412, validation=None)
    events.append(Event(NOW - 39, 235, "epoch", "info", epoch))
    return tuple(sorted(events, key=lambda event: -event.time))


@cache
def trained(
    blocks: tuple[tuple[str, int], ...] = (("fp32", 1204),), skipped_steps: tuple[int, ...] | range = ()
) -> SessionView:
    """A run of ``blocks`` of (precision, steps), in which fp16 dropped ``skipped_steps``."""
    precisions = [precision for precision, steps in blocks for _ in range(steps)]
    skips = set(skipped_steps)
    values = losses(len(precisions))
    scales = scales_of(precisions, skips)
    starts = np.cumsum([1, *(steps for _, steps in blocks)]).tolist()
    precision, step = precisions[-1], len(precisions)
    rates = [
        BATCH_SIZE / STEP_SECONDS[p] * noise
        for p, noise in zip(precisions, np.random.default_rng(8).normal(1, 0.02, step), strict=True)
    ]
    return SessionView(
        state="running",
        run=run_started(),
        precision=precision,
        step=step,
        epoch=1 + (step - 1) // 235,
        elapsed_seconds=41.0,
        eta_seconds=(2350 - step) * STEP_SECONDS[precision],
        last=last_step(step, precision, values[-1], scales[-1]),
        smoothed_loss=float(np.mean(values[-20:])),
        best_loss=min(values),
        best_loss_step=1 + values.index(min(values)),
        validated=EpochFinished(
            time=NOW - 3,
            step=step // 235 * 235,
            epoch=step // 235,
            seconds=0.9,
            mean_loss=0.05,
            validation=Validation(loss=0.0351, accuracy=0.991, samples=10_000),
        ),
        step_seconds=STEP_SECONDS[precision],
        samples_per_second=BATCH_SIZE / STEP_SECONDS[precision],
        loss=series(values),
        samples_rate=series(rates),
        loss_scale=series(scales),
        skips=series([float(i in skips) for i in range(1, step + 1)]),
        switches=tuple(PrecisionSwitch(a, p) for a, (p, _) in zip(starts, blocks, strict=False)),
        comparison=comparison_of(blocks, skips),
        scaler=scaler_of(scales, skips),
        device=device(gpu()),
        allocator=AllocatorSample(
            precision=precision,
            allocated_bytes=int(1.2 * GIB),
            reserved_bytes=int(2.4 * GIB),
            peak_allocated_bytes=int(1.9 * GIB),
        ),
        events=events_of(starts[1:-1], blocks, sorted(skips)),
        run_dir="runs/mnist-deep",
    )


def fp32_only() -> SessionView:
    """A run that never switched."""
    return trained()


def compared() -> SessionView:
    """FP32, then AMP, then both again: what a person sees after some presses of the key."""
    return trained((("fp32", 400), ("fp16", 300), ("fp32", 200), ("fp16", 304)))


def with_skips() -> SessionView:
    """AMP from the middle on, with three steps that overflowed."""
    return trained((("fp32", 500), ("fp16", 704)), skipped_steps=(501, 502, 812))


def back_in_fp32() -> SessionView:
    """FP32 after AMP: the loss scale is kept."""
    return trained((("fp32", 300), ("fp16", 500), ("fp32", 404)))


def paused() -> SessionView:
    return replace(compared(), state="paused")


def finished() -> SessionView:
    outcome = make_finished(1204, time=NOW, seconds=41.0)
    return replace(compared(), state="finished", eta_seconds=None, outcome=outcome)


def failed() -> SessionView:
    """A run that ran out of memory."""
    error = (
        "CUDA out of memory: 2.00 GiB were asked for and 1.31 GiB of 139 GiB are free on GPU 0; "
        "use a smaller --batch-size, or AMP"
    )
    outcome = RunFailed(time=NOW, step=1204, error=error, traceback="")
    event = Event(time=NOW, step=1204, kind="failed", severity="error", about=outcome)
    before = compared()
    return replace(
        before, state="failed", eta_seconds=None, outcome=outcome, events=(event, *before.events), errors=1
    )


def nan_losses() -> SessionView:
    """Every loss from step 900 on is NaN."""
    before = with_skips()
    values = losses(before.step)
    values[899:] = [float("nan")] * len(values[899:])
    nonfinite = record_samples.nonfinite(900, time=NOW - 2)
    storm = Storm(first=nonfinite, last=nonfinite, in_float16=False)
    event = Event(time=NOW - 2, step=900, kind="nonfinite", severity="error", about=storm)
    return replace(
        before,
        loss=series(values),
        last=last_step(before.step, "fp16", float("nan"), 16384.0),
        events=(event, *before.events),
        errors=1,
    )


NO_NVML = "no GPU here"
"""Why there is no GPU data in :func:`no_nvml`."""


def no_nvml() -> SessionView:
    """A machine without an NVIDIA GPU."""
    before = fp32_only()
    rows = tuple(replace(row, peak_allocated_bytes=None) for row in before.comparison.rows)
    return replace(
        before,
        comparison=replace(before.comparison, rows=rows),
        run=run_started(device="cpu", device_name="AMD EPYC 9655 96-Core Processor", gpu_uuid=None),
        device=device(note=NO_NVML),
        allocator=None,
    )


def two_gpus() -> SessionView:
    """The second of two GPUs trains, and its clocks are held down."""
    first = gpu(1, memory_used_bytes=0, utilization_percent=0.0, power_watts=None)
    second = gpu(0, clocks_event_reasons=("thermal (sw)", "power cap"), temperature_c=88.0)
    return replace(compared(), device=device(first, second))


def synthetic() -> SessionView:
    """Training on a stand-in."""
    return replace(compared(), run=run_started(data=DataInfo(name="digits", real=False, samples=60_000)))


def validating() -> SessionView:
    phase = PhaseChanged(time=NOW, phase="validating", detail="", done=12, total=40)
    return replace(compared(), phase=phase)


def explained() -> SessionView:
    """AMP gained nothing, and it is said why."""
    before = compared()
    rows = tuple(replace(row, utilization_percent=55.0) for row in before.comparison.rows)
    comparison = replace(before.comparison, rows=rows, speedup=1.01, memory_saving=0.01)
    return replace(before, comparison=comparison)


def metrics() -> tuple[Metric, ...]:
    """One of each kind that a run logs, of 1,204 steps, at the steps where it was measured."""
    steps = range(1, 1205)
    measured: dict[tuple[MetricKind, str], list[float | None]] = {
        ("part", "digit"): [*losses(1204)],
        ("part", "parity"): [0.5 * value for value in losses(1204)],
        ("validation", "loss"): [1 / step if step % 235 == 0 else None for step in steps],
        ("validation", "accuracy"): [1 - 1 / step if step % 235 == 0 else None for step in steps],
        ("own validation", "f1"): [0.9 if step % 235 == 0 else None for step in steps],
        ("step", "grad_norm"): [3.5 if step % 20 == 0 else None for step in steps],
        ("step", "lr"): [0.001 * (1 - step / 1204) for step in steps],
        ("step", "lr 2"): [0.0001] * 1204,
        ("step", "step_seconds"): [STEP_SECONDS["fp32"]] * 1204,
        ("step", "data_seconds"): [1e-5] * 1204,
        ("device", "memory_used_bytes"): [3.1 * GIB if step % 200 == 0 else None for step in steps],
        ("device", "utilization_percent"): [93.0 if step % 200 == 0 else None for step in steps],
        ("device", "power_watts"): [412.3 if step % 200 == 0 else None for step in steps],
        ("device", "temperature_c"): [54.0 if step % 200 == 0 else None for step in steps],
        ("update", "features.0"): [2.5e-3 / step if step % 20 == 1 else None for step in steps],
        ("update", "fc"): [1.2e-3 if step % 20 == 1 else None for step in steps],
    }
    return tuple(
        Metric(kind=kind, name=name, read=partial(series, values))
        for (kind, name), values in measured.items()
    )


def logged() -> SessionView:
    """A run that logs parts of its loss and validates."""
    return replace(compared(), metrics=metrics())


ALL = {
    build.__name__: build
    for build in (
        SessionView,
        starting,
        downloading,
        fp32_only,
        compared,
        with_skips,
        back_in_fp32,
        paused,
        finished,
        failed,
        nan_losses,
        no_nvml,
        two_gpus,
        synthetic,
        validating,
        explained,
        logged,
    )
}
