"""Parts of a view as a session would have them: steps, scaler, comparison, events."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from amptui.records.run import EpochFinished, Note, Printed, Severity
from amptui.records.steps import Steps
from amptui.telemetry.events import Event, SkipRow
from amptui.telemetry.scaling import ScalerView
from amptui.telemetry.view import Comparison, PrecisionStats
from tests.builders import make_step, make_switch
from tests.telemetry import record_samples

NOW = 1_760_000_000.0
GIB = 1024**3
TRAINING_UUID = "GPU-aaaa"

STEP_SECONDS = {"fp32": 0.00391, "fp16": 0.00202, "bf16": 0.00211}
BATCH_SIZE = 256


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


def skipped(step: int) -> SkipRow:
    """A single skip, of which nothing is to be afraid."""
    skip = record_samples.skip(step, time=NOW, names=("features.13.conv.weight",))
    return SkipRow(first=(skip,), scale_after=65536.0, scale_has_grown=True)


def note(text: str, severity: Severity = "info") -> Note:
    return Note(time=NOW, severity=severity, text=text)


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
    events += [Event(NOW - 40 + step / 30, step, "skip", "warning", skipped(step)) for step in skips]
    epoch = EpochFinished(time=NOW, step=235, epoch=1, seconds=1.0, mean_loss=0.412, validation=None)
    events.append(Event(NOW - 39, 235, "epoch", "info", epoch))
    printed = Printed(time=NOW, stream="stdout", text="building the model")
    events.append(Event(NOW - 40.5, None, "print", "info", printed))
    return tuple(sorted(events, key=lambda event: -event.time))
