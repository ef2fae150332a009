"""Pieces of runs, as a trainer writes them: starts, steps, switches, skips, histograms."""

from typing import Any

from amptui.records.run import PrecisionChanged, Record
from tests.telemetry import record_samples as samples
from tests.telemetry.float16_windows import losing as loses

Records = list[Record]

SLOW, FAST = 0.004, 0.002


def started(precision: str = "fp32", **changes: Any) -> Records:
    return [samples.run(precision=precision, total_steps=None, **changes)]


def made(first: int, last: int, precision: str = "fp32", **changes: Any) -> Records:
    facts = {
        "precision": precision,
        "grad_max": 0.01,
        "step_seconds": SLOW if precision == "fp32" else FAST,
        **changes,
    }
    return [*samples.steps(first, last, **facts)]


def switched(step: int, previous: str, current: str) -> Records:
    return [PrecisionChanged(time=100 + step / 1000, step=step, previous=previous, current=current)]


def skipped(first: int, count: int, scale: float = 65536.0, loss: float = 0.5) -> Records:
    """Steps in a row that the scaler skipped, each with its halving."""
    records: Records = []
    for number in range(count):
        at = first + number
        facts = {"loss_scale": scale, "skipped": True, "loss": loss, "nonfinite_gradients": 3}
        records += made(at, at, "fp16", **facts)
        records.append(samples.skip(at, loss_scale=scale, consecutive=number + 1, loss=loss))
        records.append(samples.backoff(at, scale))
        scale /= 2
    return records


def both(amp: str = "fp16", steps: int = 300, **changes: Any) -> Records:
    """FP32, then AMP for as many steps."""
    return [
        *started(amp_precision=amp, **changes),
        *made(1, steps),
        *switched(steps + 1, "fp32", amp),
        *made(steps + 1, 2 * steps, amp),
    ]


def in_float8(precision: str, before: str = "bf16", **changes: Any) -> Records:
    """FP32, 300 steps in ``before``, then as many in float8, a fifth shorter than AMP's."""
    facts = {"step_seconds": 0.8 * FAST, **changes}
    beginning = both(before) if before != "fp32" else [*started(), *made(1, 600)]
    return [*beginning, *switched(601, before, precision), *made(601, 900, precision, **facts)]


def survives(step: int, **changes: Any) -> Record:
    return samples.window(step, **changes)


def in_float16(share: float, step: int, **changes: Any) -> Record:
    return loses(share, step, precision="fp16", hypothetical=False, zeros=4000, **changes)
