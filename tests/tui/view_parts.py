"""Parts of a view as a session would have them: steps, scaler, comparison, events."""

from collections.abc import Sequence

from amptui.records.run import (
    EpochFinished,
    LossScaleChanged,
    Note,
    PrecisionChanged,
    Printed,
    Severity,
    StepSkipped,
)
from amptui.records.steps import StepRecord
from amptui.telemetry.events import Event, SkipRow
from amptui.telemetry.view import Comparison, PrecisionStats, ScalerView

NOW = 1_760_000_000.0
GIB = 1024**3
TRAINING_UUID = "GPU-aaaa"

STEP_SECONDS = {"fp32": 0.00391, "fp16": 0.00202, "bf16": 0.00211}
BATCH_SIZE = 256


def last_step(step: int, precision: str, loss: float, scale: float | None) -> StepRecord:
    return StepRecord(
        time=NOW,
        step=step,
        epoch=1 + (step - 1) // 235,
        precision=precision,
        loss=loss,
        samples=BATCH_SIZE,
        step_seconds=STEP_SECONDS[precision],
        data_seconds=0.0001,
        lr=0.001,
        loss_scale=scale,
        growth_tracker=None,
        skipped=False,
        grad_norm=1.0,
        nonfinite_gradients=0,
        settling=False,
    )


def scales_of(precisions: list[str], skips: set[int]) -> list[float | None]:
    """The scale each step ran with: halved after each skip."""
    scale, scales = 65536.0, list[float | None]()
    for step, precision in enumerate(precisions, 1):
        scales.append(scale if precision == "fp16" else None)
        scale = scale / 2 if step in skips else scale
    return scales


def backed_off(step: int, scale: float) -> LossScaleChanged:
    return LossScaleChanged(time=NOW, step=step, previous=2 * scale, current=scale, reason="backoff")


def skipped(step: int) -> SkipRow:
    """A single skip, of which nothing is to be afraid."""
    skip = StepSkipped(
        time=NOW,
        step=step,
        loss_scale=131072.0,
        loss=0.5,
        names=("features.13.conv.weight",),
        count=3,
        consecutive=1,
    )
    return SkipRow(count=1, first=(skip,), last=(), scale_after=65536.0, trace=None, meaning="normal")


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
        last_change=backed_off(last_skip, used[-1]) if skips else None,
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
        Event(
            NOW - 40 + step / 30,
            step,
            "switch",
            "info",
            PrecisionChanged(time=NOW, step=step, previous=blocks[i][0], current=blocks[i + 1][0]),
        )
        for i, step in enumerate(switched)
    ]
    events += [Event(NOW - 40 + step / 30, step, "skip", "warning", skipped(step)) for step in skips]
    epoch = EpochFinished(time=NOW, step=235, epoch=1, seconds=1.0, mean_loss=0.412, validation=None)
    events.append(Event(NOW - 39, 235, "epoch", "info", epoch))
    printed = Printed(time=NOW, stream="stdout", text="building the model")
    events.append(Event(NOW - 40.5, None, "print", "info", printed))
    return tuple(sorted(events, key=lambda event: -event.time))
