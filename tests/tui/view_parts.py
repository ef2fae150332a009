"""Parts of a view as a session would have them: steps, scaler, comparison, events."""

from collections.abc import Sequence

from amptui.records import (
    StepRecord,
)
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import (
    Comparison,
    Event,
    PrecisionStats,
    ScalerView,
)

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
        last_change="backoff at step 812: 16,384 → 8,192" if skips else "",
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
        return Comparison(
            rows=tuple(rows), baseline="fp32", amp="fp16", reason="AMP has not run yet: press p"
        )
    speedup = STEP_SECONDS["fp32"] / STEP_SECONDS["fp16"]
    return Comparison(
        rows=tuple(rows), baseline="fp32", amp="fp16", speedup=speedup, memory_saving=1 - 1.18 / 1.9
    )


def events_of(switched: list[int], blocks: Sequence[tuple[str, int]], skips: list[int]) -> tuple[Event, ...]:
    events = [
        Event(
            NOW - 40 + step / 30,
            step,
            "switch",
            "info",
            f"{precision_label(blocks[i][0])} → {precision_label(blocks[i + 1][0])} (settling 10 steps)",
        )
        for i, step in enumerate(switched)
    ]
    events += [
        Event(
            NOW - 40 + step / 30,
            step,
            "skip",
            "warning",
            "overflow: step skipped, scale 131,072 → 65,536   Inf in features.13.conv.weight (+2)",
        )
        for step in skips
    ]
    events.append(Event(NOW - 39, 235, "epoch", "info", "epoch 1: loss 0.412, val 0.0981 97.2%"))
    events.append(Event(NOW - 40.5, None, "print", "info", "stdout: building the model"))
    return tuple(sorted(events, key=lambda event: -event.time))
