"""Runs in which AMP is worth it or not, safe or not, each folded from records as a trainer writes them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from amptui.diagnosis.amp_answer import Safety, Worth
from amptui.diagnosis.amp_finding import Subject
from amptui.findings import PhaseSeconds, StepTimed
from amptui.ranks import RanksDisagree, RankValue
from amptui.records import PauseChanged, PrecisionChanged, Record, Validated, Validation
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from tests.telemetry import record_samples as samples
from tests.telemetry.float16_windows import spread

Records = list[Record]

SLOW, FAST = 0.004, 0.002


@dataclass(frozen=True, slots=True)
class Situation:
    """Records, and what the answer must be."""

    build: Callable[[], Iterable[Record]]
    worth: Worth
    safety: Safety
    cause: tuple[Subject, str] | None = None
    """Subject and state of the finding that the trouble is about."""
    precision: str | None = "fp16"


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


def survives(step: int, **changes: Any) -> Record:
    return samples.window(step, **changes)


def never_tried() -> Records:
    return [*started(), *made(1, 50)]


def nothing_yet() -> Records:
    return started()


def foretold_by_the_histogram() -> Records:
    return [*never_tried(), survives(40)]


def old_histogram() -> Records:
    return [*started(), *made(1, 156), survives(1)]


def foretold_by_xray() -> Records:
    return [*started(amp_precision="bf16"), *made(1, 50), samples.xray(40, precision="bf16", loss_scale=None)]


def fp16_without_an_xray() -> Records:
    return both()


def fp16_agrees() -> Records:
    return [*both(), samples.xray(590)]


def old_xray() -> Records:
    return [*both(), samples.xray(100)]


def bf16_agrees() -> Records:
    return [
        *both("bf16"),
        samples.xray(590, precision="bf16", loss_scale=None),
        samples.compared(
            580,
            rows=(
                samples.measured("fp32"),
                samples.measured("bf16", speedup=1.65, speedup_low=1.61, speedup_high=1.69),
            ),
        ),
    ]


def all_skipped() -> Records:
    """The histogram of the FP32 step before says that all is well."""
    before = [*started(), *made(1, 41), survives(41), samples.xray(41), *switched(42, "fp32", "fp16")]
    return [*before, *skipped(42, 41)]


def all_skipped_then_bf16() -> Records:
    return [
        *all_skipped(),
        *switched(83, "fp16", "bf16"),
        *made(83, 150, "bf16"),
        survives(150, precision="bf16"),
    ]


def calibrating() -> Records:
    return [*started("fp16"), *skipped(1, 3), *made(4, 30, "fp16", loss_scale=8192.0)]


def frequent_skips() -> Records:
    records: Records = [*started("fp16"), *made(1, 200, "fp16"), samples.growth(200, 65536.0)]
    for at in range(210, 280, 10):
        records += [*skipped(at, 1), *made(at + 1, at + 9, "fp16")]
    return records


def recovered() -> Records:
    return [*started("fp16"), *skipped(1, 30), *made(31, 200, "fp16", loss_scale=1024.0)]


def forward_overflow() -> Records:
    return [*started("fp16"), *made(1, 60, "fp16"), *skipped(61, 2, loss=math.nan)]


def forward_overflow_for_good() -> Records:
    return [*started("fp16"), *made(1, 10, "fp16"), *skipped(11, 60, loss=math.nan), survives(10)]


def loses_small_gradients() -> Records:
    window = spread({-20: 100, -28: 900})
    return [*never_tried(), samples.window(40, **_counts(window))]


def flushes_in_float16() -> Records:
    window = spread({-20: 900, -10: 100}, zeros=4000)
    return [*both(), samples.window(590, precision="fp16", hypothetical=False, **_counts(window))]


def nan_loss() -> Records:
    return [*both("bf16", 200), *made(401, 430, "bf16", loss=math.nan)]


def nan_loss_in_fp32() -> Records:
    return [*started(), *made(1, 50), *made(51, 60, loss=math.inf), survives(55)]


def nan_validation() -> Records:
    validation = Validation(loss=math.nan, accuracy=0.1, samples=100)
    return [*both(), Validated(time=200.0, step=600, epoch=1, validation=validation), survives(590)]


def lost_weights() -> Records:
    trace = samples.traced(590, lost=("hidden.weight",), lost_count=1, nearest=())
    return [*both(), survives(580), trace]


def paused_on_lost_weights() -> Records:
    return [*both(), PauseChanged(time=300.0, step=600, paused=True, reason="the loss", cause="weights")]


def ranks_differ() -> Records:
    differ = RanksDisagree(
        time=300.0, step=590, what="weights", count=1, most=1.0, others=(RankValue(rank=1, value=2.0),)
    )
    return [*both(world_size=2, parallel="ddp"), differ]


def xray_disagrees() -> Records:
    return [*both("bf16"), samples.xray(590, precision="bf16", layers=(samples.layer("conv1", 0.31),))]


def xray_differs() -> Records:
    return [*both(), samples.xray(590, layers=(samples.layer("conv1", 0.7),))]


def would_overflow_float16() -> Records:
    nearest = (samples.module("amplifier", dtype="float32", largest=200_000.0),)
    return [*never_tried(), samples.traced(45, precision="fp32", loss_scale=None, nearest=nearest)]


def slower_on_a_cpu() -> Records:
    cpu: dict[str, Any] = {
        "device": "cpu",
        "device_name": "AMD EPYC",
        "gpu_uuid": None,
        "amp_precision": "bf16",
    }
    return [
        *started(**cpu),
        *made(1, 100),
        *switched(101, "fp32", "bf16"),
        *made(101, 200, "bf16", step_seconds=0.02),
    ]


def first_impression() -> Records:
    return [
        *started(),
        *made(1, 9, settling=True),
        *switched(10, "fp32", "fp16"),
        *made(10, 13, "fp16", settling=True),
    ]


def no_difference() -> Records:
    rows = (
        samples.measured("fp32"),
        samples.faster(speedup=1.01, speedup_low=0.99, speedup_high=1.03),
    )
    phases = (
        PhaseSeconds(name="input", host_seconds=0.003, device_seconds=None),
        PhaseSeconds(name="forward", host_seconds=0.001, device_seconds=None),
    )
    timed = [
        StepTimed(time=200.0, step=step, precision="fp16", settling=False, phases=phases)
        for step in range(400, 440)
    ]
    return [*both(), *timed, samples.compared(580, rows=rows)]


def own_loop_in_float16_weights() -> Records:
    return [*started("fp16 weights", observed=True), *made(1, 50, "fp16 weights", loss_scale=None)]


def own_loop_that_takes_no_requests() -> Records:
    refused = {"precision": "its own", "x-ray": "its own", "comparison": "its own", "trace": "its own"}
    return [*started("bf16", observed=True, amp_precision="bf16", refuses=refused), *made(1, 50, "bf16")]


def unsupported() -> Records:
    return [*started(unsupported={"fp16": "no"}), *made(1, 50)]


def _counts(window: Any) -> dict[str, Any]:
    names = ("first_exponent", "counts", "elements", "zeros", "flushed", "subnormal", "overflowing")
    return {name: getattr(window, name) for name in names}


SITUATIONS: dict[str, Situation] = {
    case.build.__name__: case
    for case in (
        Situation(nothing_yet, "unknown", "unknown"),
        Situation(never_tried, "unknown", "unknown"),
        Situation(foretold_by_the_histogram, "unknown", "would be safe"),
        Situation(old_histogram, "unknown", "unknown"),
        Situation(foretold_by_xray, "unknown", "would be safe", precision="bf16"),
        Situation(unsupported, "unknown", "unknown"),
        Situation(fp16_without_an_xray, "faster", "no trouble"),
        Situation(fp16_agrees, "faster", "safe"),
        Situation(old_xray, "faster", "no trouble"),
        Situation(bf16_agrees, "faster", "safe", precision="bf16"),
        Situation(all_skipped, "unknown", "error", ("overflow", "skipped mostly")),
        Situation(all_skipped_then_bf16, "faster", "no trouble", precision="bf16"),
        Situation(calibrating, "unknown", "no trouble"),
        Situation(recovered, "unknown", "no trouble"),
        Situation(frequent_skips, "unknown", "warning", ("overflow", "frequent")),
        Situation(forward_overflow, "unknown", "warning", ("overflow", "forward overflow once")),
        Situation(forward_overflow_for_good, "unknown", "error", ("overflow", "forward overflow")),
        Situation(loses_small_gradients, "unknown", "warning", ("float16", "loses")),
        Situation(flushes_in_float16, "faster", "warning", ("float16", "flushed")),
        Situation(nan_loss, "faster", "error", ("loss", "not finite"), precision="bf16"),
        Situation(nan_loss_in_fp32, "unknown", "error", ("loss", "not finite")),
        Situation(nan_validation, "faster", "error", ("loss", "validation not finite")),
        Situation(lost_weights, "faster", "error", ("weights", "lost")),
        Situation(paused_on_lost_weights, "faster", "error", ("weights", "lost")),
        Situation(ranks_differ, "faster", "error", ("weights", "ranks differ")),
        Situation(xray_disagrees, "faster", "error", ("agreement", "disagree"), precision="bf16"),
        Situation(xray_differs, "faster", "warning", ("agreement", "differ")),
        Situation(would_overflow_float16, "unknown", "warning", ("forward", "would overflow")),
        Situation(slower_on_a_cpu, "slower", "no trouble", precision="bf16"),
        Situation(first_impression, "unknown", "unknown"),
        Situation(no_difference, "same", "no trouble"),
        Situation(own_loop_in_float16_weights, "unknown", "unknown", precision=None),
        Situation(own_loop_that_takes_no_requests, "unknown", "no trouble", precision="bf16"),
    )
}


def view_of(name: str) -> SessionView:
    """What a session knows in one of the situations."""
    session = Session("runs/x")
    session.fold(SITUATIONS[name].build())
    return session.view()
