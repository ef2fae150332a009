"""Runs in which AMP is worth it or not, safe or not, each folded from records as a trainer writes them.

What is said of each is in ``tests/goldens/words/situations``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.run import PauseChanged, Record, Validated, Validation
from amptui.telemetry.view import SessionView
from tests.builders import fold, make_switch
from tests.telemetry import record_samples as samples
from tests.telemetry.record_samples import losing as loses

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
        make_switch(steps + 1, "fp32", amp),
        *made(steps + 1, 2 * steps, amp),
    ]


def in_float8(precision: str, before: str = "bf16", **changes: Any) -> Records:
    """FP32, 300 steps in ``before``, then as many in float8, a fifth shorter than AMP's."""
    facts = {"step_seconds": 0.8 * FAST, **changes}
    beginning = both(before) if before != "fp32" else [*started(), *made(1, 600)]
    return [*beginning, make_switch(601, before, precision), *made(601, 900, precision, **facts)]


def in_float16(share: float, step: int, **changes: Any) -> Record:
    return loses(share, step, precision="fp16", hypothetical=False, zeros=4000, **changes)


# -------------------------------------------------------------------------------- runs


def never_tried() -> Records:
    return [*started(), *made(1, 50)]


def fp8_and_bf16_in_turns() -> Records:
    """While the test runs in bf16, whose steps before it were of another load."""
    rows = (
        samples.measured("bf16", peak_allocated_bytes=1000),
        samples.measured("fp8", peak_allocated_bytes=900, speedup=1.25, speedup_low=1.21, speedup_high=1.29),
    )
    comparison = samples.compared(900, baseline="bf16", rows=rows, over=False, reason="running", chosen="fp8")
    return [*in_float8("fp8"), comparison, make_switch(901, "fp8", "bf16"), *made(901, 910, "bf16")]


def all_skipped() -> Records:
    """The histogram of the FP32 step before says that all is well."""
    before = [*started(), *made(1, 41), samples.window(41), samples.xray(41), make_switch(42, "fp32", "fp16")]
    return [*before, *skipped(42, 41)]


def frequent_skips() -> Records:
    records: Records = [*started("fp16"), *made(1, 200, "fp16"), samples.growth(200, 65536.0)]
    for at in range(210, 280, 10):
        records += [*skipped(at, 1), *made(at + 1, at + 9, "fp16")]
    return records


def underflow_that_only_an_xray_shows() -> Records:
    """Gradients between the layers underflow: the weights' own look as if many were true zeros."""
    layers = (samples.layer("conv1", 0.95, norm=3.0, underflowing=0.6),)
    return [*both(), in_float16(0.01, 590), samples.xray(591, layers=layers)]


def underflow_that_spoils_the_gradients() -> Records:
    """The X-ray's layers disagree because they underflow."""
    layers = (samples.layer("conv1", 0.31, norm=3.0, underflowing=0.9),)
    return [*both(), in_float16(0.9, 590), samples.xray(591, layers=layers)]


def timed(**seconds: tuple[float, float | None]) -> Records:
    """Forty steps whose parts took so long on the host and on the device."""
    phases = tuple(
        PhaseSeconds(name=name, host_seconds=host, device_seconds=device)  # type: ignore[arg-type]
        for name, (host, device) in seconds.items()
    )
    step = StepTimed(time=200.0, step=400, precision="fp16", settling=False, phases=phases)
    return [replace(step, step=number) for number in range(400, 440)]


def launch_bound() -> Records:
    rows = (samples.measured("fp32"), samples.faster(speedup=1.0, speedup_low=0.99, speedup_high=1.01))
    parts = timed(input=(0.0001, 0.0001), forward=(0.002, 0.0003), backward=(0.002, 0.0003))
    return [*both(), *parts, samples.compared(580, rows=rows)]


def nan_validation() -> Records:
    validation = Validation(loss=math.nan, accuracy=0.1, samples=100)
    return [*both(), Validated(time=200.0, step=600, epoch=1, validation=validation), samples.window(590)]


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
        make_switch(101, "fp32", "bf16"),
        *made(101, 200, "bf16", step_seconds=0.02),
    ]


def no_difference() -> Records:
    rows = (samples.measured("fp32"), samples.faster(speedup=1.01, speedup_low=0.99, speedup_high=1.03))
    parts = timed(input=(0.003, None), forward=(0.001, None))
    return [*both(), *parts, samples.compared(580, rows=rows)]


def own_loop_that_takes_no_requests() -> Records:
    refused = {"precision": "its own", "x-ray": "its own", "comparison": "its own", "trace": "its own"}
    return [*started("bf16", observed=True, amp_precision="bf16", refuses=refused), *made(1, 50, "bf16")]


# The troubles of ``unstable``: none is fp16_without_an_xray, calibration is calibrating, collapse is
# all_skipped, forward is forward_overflow_for_good, buffers nan_validation, underflow underflow_in_fp16.
SITUATIONS: Mapping[str, Callable[[], Records]] = {
    "never_tried": never_tried,
    "nothing_yet": started,
    "foretold_by_the_histogram": lambda: [*never_tried(), samples.window(40)],
    "in_its_first_step_in_amp": lambda: [
        *started(amp_precision="bf16"),
        *made(1, 300),
        make_switch(301, "fp32", "bf16"),
    ],
    "old_histogram": lambda: [*started(), *made(1, 156), samples.window(1)],
    "foretold_by_xray": lambda: [
        *started(amp_precision="bf16"),
        *made(1, 50),
        samples.xray(40, precision="bf16", loss_scale=None),
    ],
    "fp16_without_an_xray": both,
    "fp16_agrees": lambda: [*both(), samples.xray(590)],
    "old_xray": lambda: [*both(), samples.xray(100)],
    "bf16_agrees": lambda: [
        *both("bf16"),
        samples.xray(590, precision="bf16", loss_scale=None),
        samples.compared(
            580,
            rows=(
                samples.measured("fp32"),
                samples.measured("bf16", speedup=1.65, speedup_low=1.61, speedup_high=1.69),
            ),
        ),
    ],
    "fp8_after_bf16": lambda: in_float8("fp8"),
    "fp8_slower_than_bf16_and_faster_than_fp32": lambda: in_float8("fp8", step_seconds=1.5 * FAST),
    "fp8_without_bf16": lambda: in_float8("fp8", before="fp32"),
    "fp8_beside_fp16_alone": lambda: in_float8("fp8", before="fp16"),
    "fp8_and_bf16_in_turns": fp8_and_bf16_in_turns,
    "bf16_after_fp8": lambda: [*in_float8("fp8"), make_switch(901, "fp8", "bf16"), *made(901, 1000, "bf16")],
    "fp8_that_agrees": lambda: [
        *in_float8("fp8"),
        samples.xray(890, precision="fp8", loss_scale=None),
    ],
    "fp8_that_differs": lambda: [
        *in_float8("fp8"),
        samples.xray(890, precision="fp8", loss_scale=None, layers=(samples.layer("conv1", 0.7),)),
    ],
    "all_skipped": all_skipped,
    "all_skipped_then_bf16": lambda: [
        *all_skipped(),
        make_switch(83, "fp16", "bf16"),
        *made(83, 150, "bf16"),
        samples.window(150, precision="bf16"),
    ],
    "calibrating": lambda: [*started("fp16"), *skipped(1, 3), *made(4, 30, "fp16", loss_scale=8192.0)],
    "frequent_skips": frequent_skips,
    "recovered": lambda: [*started("fp16"), *skipped(1, 30), *made(31, 200, "fp16", loss_scale=1024.0)],
    "forward_overflow": lambda: [*started("fp16"), *made(1, 60, "fp16"), *skipped(61, 2, loss=math.nan)],
    "forward_overflow_for_good": lambda: [
        *started("fp16"),
        *made(1, 10, "fp16"),
        *skipped(11, 60, loss=math.nan),
        samples.window(10),
    ],
    "underflow_foretold_in_fp32": lambda: [*never_tried(), loses(0.31, 40)],
    # Nine of ten elements are flushed, and are a thousandth of the norm.
    "many_tiny_gradients_that_do_not_matter": lambda: [
        *both(),
        in_float16(0.001, 590, flushed=0, elements=40_000, subnormal=3000),
    ],
    "underflow_in_fp16": lambda: [*both(), in_float16(0.31, 590)],
    "underflow_in_fp16_long_ago": lambda: [*both(), in_float16(0.9, 301), *made(601, 800, "fp16")],
    "disagreement_long_ago": lambda: [
        *both("bf16"),
        samples.xray(200, precision="bf16", loss_scale=None, layers=(samples.layer("conv1", 0.31),)),
    ],
    "underflow_at_another_scale": lambda: [*both(), in_float16(0.9, 590, loss_scale=65536.0 / 16)],
    "underflow_that_only_an_xray_shows": underflow_that_only_an_xray_shows,
    "underflow_that_spoils_the_gradients": underflow_that_spoils_the_gradients,
    # What float16 would lose is no matter of bfloat16.
    "underflow_while_bf16_runs": lambda: [*both("bf16"), loses(0.9, 590, precision="bf16")],
    "all_zero_in_fp16": lambda: [
        *both(),
        samples.window(590, precision="fp16", hypothetical=False, zeros=10_000, counts=(0,) * 48),
    ],
    "tf32_beside_fp16": lambda: [
        *started("tf32"),
        *made(1, 100, "tf32"),
        make_switch(101, "tf32", "fp16"),
        *made(101, 200, "fp16"),
        samples.compared(
            200,
            baseline="tf32",
            rows=(
                samples.measured("tf32"),
                samples.measured("fp16", speedup=1.2, speedup_low=1.1, speedup_high=1.3),
            ),
        ),
    ],
    "ieee_alone": lambda: [*started("ieee"), *made(1, 50, "ieee"), samples.window(45, precision="ieee")],
    # AMP's median step is faster, its mean step slower: another program used the machine.
    "disturbed": lambda: [*both(), *made(601, 720, "fp16", step_seconds=10 * SLOW)],
    "launch_bound": launch_bound,
    "own_loop_whose_precision_is_ours": lambda: [
        *both(refuses={"x-ray": "it needs a step function"}),
        in_float16(0.4, 590),
    ],
    "nan_loss": lambda: [*both("bf16", 200), *made(401, 430, "bf16", loss=math.nan)],
    "nan_loss_in_fp32": lambda: [*started(), *made(1, 50), *made(51, 60, loss=math.inf), samples.window(55)],
    "nan_validation": nan_validation,
    "lost_weights": lambda: [
        *both(),
        samples.window(580),
        samples.traced(590, lost=("hidden.weight",), lost_count=1, nearest=()),
    ],
    "paused_on_lost_weights": lambda: [
        *both(),
        PauseChanged(time=300.0, step=600, paused=True, reason="the loss", cause="weights"),
    ],
    "xray_disagrees": lambda: [
        *both("bf16"),
        samples.xray(590, precision="bf16", layers=(samples.layer("conv1", 0.31),)),
    ],
    "xray_differs": lambda: [*both(), samples.xray(590, layers=(samples.layer("conv1", 0.7),))],
    "would_overflow_float16": would_overflow_float16,
    "slower_on_a_cpu": slower_on_a_cpu,
    "first_impression": lambda: [
        *started(),
        *made(1, 9, settling=True),
        make_switch(10, "fp32", "fp16"),
        *made(10, 13, "fp16", settling=True),
    ],
    "no_difference": no_difference,
    "own_loop_in_float16_weights": lambda: [
        *started("fp16 weights", observed=True),
        *made(1, 50, "fp16 weights", loss_scale=None),
    ],
    "own_loop_that_takes_no_requests": own_loop_that_takes_no_requests,
    "unsupported": lambda: [*started(unsupported={"fp16": "no"}), *made(1, 50)],
}


@cache
def view_of(name: str) -> SessionView:
    """What a session knows in one of the situations."""
    return fold(SITUATIONS[name](), "runs/x").view()
