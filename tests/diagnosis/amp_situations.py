"""Runs in which AMP is worth it or not, safe or not, each folded from records as a trainer writes them.

    python -m tests.diagnosis.amp_situations

prints the answer of each, and the key that it advises, as a table.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from amptui.diagnosis.amp_answer import Safety, Worth, amp_answer
from amptui.diagnosis.amp_finding import Subject
from amptui.diagnosis.answer_words import answer_line, next_measurement
from amptui.records.findings import Float8LayerWindow, PhaseSeconds, ReferenceAgreement, StepTimed
from amptui.records.ranks import RanksDisagree, RankValue
from amptui.records.run import PauseChanged, Record, Validated, Validation
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.panels.answer_panel import key_of
from amptui.tui.panels.screen_state import ScreenState
from tests.diagnosis.amp_records import (
    FAST,
    SLOW,
    Records,
    both,
    in_float8,
    in_float16,
    loses,
    made,
    skipped,
    started,
    survives,
    switched,
)
from tests.telemetry import record_samples as samples
from tests.telemetry.float16_windows import spread


@dataclass(frozen=True, slots=True)
class Situation:
    """Records, and what the answer must be."""

    build: Callable[[], Iterable[Record]]
    worth: Worth
    safety: Safety
    cause: tuple[Subject, str] | None = None
    """Subject and state of the finding that the trouble is about."""
    precision: str | None = "fp16"


# The troubles of ``unstable``: none is fp16_without_an_xray, calibration is calibrating, collapse is
# all_skipped, forward is forward_overflow_for_good, buffers nan_validation, underflow underflow_in_fp16.


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


def fp8_after_bf16() -> Records:
    return in_float8("fp8")


def fp8_slower_than_bf16_and_faster_than_fp32() -> Records:
    return in_float8("fp8", step_seconds=1.5 * FAST)


def fp8_without_bf16() -> Records:
    return in_float8("fp8", before="fp32")


def fp8_beside_fp16_alone() -> Records:
    return in_float8("fp8", before="fp16")


def fp8_and_bf16_in_turns() -> Records:
    """While the test runs in bf16, whose steps before it were of another load."""
    rows = (
        samples.measured("bf16", peak_allocated_bytes=1000),
        samples.measured("fp8", peak_allocated_bytes=900, speedup=1.25, speedup_low=1.21, speedup_high=1.29),
    )
    comparison = samples.compared(900, baseline="bf16", rows=rows, over=False, reason="running", chosen="fp8")
    return [*in_float8("fp8"), comparison, *switched(901, "fp8", "bf16"), *made(901, 910, "bf16")]


def bf16_after_fp8() -> Records:
    return [*in_float8("fp8"), *switched(901, "fp8", "bf16"), *made(901, 1000, "bf16")]


def emulated_fp8_with_an_outlier() -> Records:
    """One channel of an input stands a million times above the others."""
    operand = samples.float8_operand("input", 0.99, channel=3, channel_excess=1e6)
    layer = Float8LayerWindow(name="mlp.fc", operands=(operand,))
    window = replace(samples.float8_window(890, layer), precision="fp8-emulated")
    return [*emulated_fp8_after_bf16(), window]


def emulated_fp8_after_bf16() -> Records:
    return in_float8("fp8-emulated")


def fp8_that_loses() -> Records:
    return [*in_float8("fp8"), samples.float8_window(890, channel_error=0.9)]


def fp8_that_lost_long_ago() -> Records:
    return [*fp8_that_loses(), *made(901, 2000, "fp8", step_seconds=0.8 * FAST)]


def fp8_that_agrees() -> Records:
    return [
        *in_float8("fp8"),
        samples.xray(890, precision="fp8", loss_scale=None),
        samples.float8_window(890),
    ]


def xray_in_fp8(cosine: float, in_bf16: float) -> Records:
    """One layer whose gradient agrees so far with FP32's."""
    reference = ReferenceAgreement(cosine=in_bf16, relative_error=0.1, added_cosine=cosine, added_error=0.1)
    layers = (samples.layer("conv1", cosine, reference=reference),)
    taken = samples.xray(890, precision="fp8", loss_scale=None, reference="bf16", layers=layers)
    return [*in_float8("fp8"), taken]


def fp8_that_differs() -> Records:
    return xray_in_fp8(0.7, 0.999)


def fp8_that_differs_as_bf16_does() -> Records:
    return xray_in_fp8(0.7, 0.71)


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


def underflow_foretold_in_fp32() -> Records:
    return [*never_tried(), loses(0.31, 40)]


def underflow_in_an_older_journal() -> Records:
    window = spread({-20: 100, -28: 900})
    return [*never_tried(), samples.window(40, **_counts(window))]


def many_tiny_gradients_that_do_not_matter() -> Records:
    """Nine of ten elements are flushed, and are a thousandth of the norm."""
    return [*both(), in_float16(0.001, 590, flushed=0, elements=40_000, subnormal=3000)]


def underflow_in_fp16() -> Records:
    return [*both(), in_float16(0.31, 590)]


def underflow_in_fp16_long_ago() -> Records:
    return [*both(), in_float16(0.9, 301), *made(601, 800, "fp16")]


def disagreement_long_ago() -> Records:
    layers = (samples.layer("conv1", 0.31),)
    return [*both("bf16"), samples.xray(200, precision="bf16", loss_scale=None, layers=layers)]


def underflow_at_another_scale() -> Records:
    return [*both(), in_float16(0.9, 590, loss_scale=65536.0 / 16)]


def underflow_that_only_an_xray_shows() -> Records:
    """Gradients between the layers underflow: the weights' own look as if many were true zeros."""
    layers = (samples.layer("conv1", 0.95, norm=3.0, underflowing=0.6),)
    return [*both(), in_float16(0.01, 590), samples.xray(591, layers=layers)]


def underflow_that_spoils_the_gradients() -> Records:
    """The X-ray's layers disagree because they underflow."""
    layers = (samples.layer("conv1", 0.31, norm=3.0, underflowing=0.9),)
    return [*both(), in_float16(0.9, 590), samples.xray(591, layers=layers)]


def underflow_while_bf16_runs() -> Records:
    """What float16 would lose is no matter of bfloat16."""
    return [*both("bf16"), loses(0.9, 590, precision="bf16")]


def all_zero_in_fp16() -> Records:
    nothing = samples.window(590, precision="fp16", hypothetical=False, zeros=10_000, counts=(0,) * 48)
    return [*both(), nothing]


def tf32_beside_fp16() -> Records:
    return [
        *started("tf32"),
        *made(1, 100, "tf32"),
        *switched(101, "tf32", "fp16"),
        *made(101, 200, "fp16"),
        samples.compared(
            200,
            baseline="tf32",
            rows=(
                samples.measured("tf32"),
                samples.measured("fp16", speedup=1.2, speedup_low=1.1, speedup_high=1.3),
            ),
        ),
    ]


def ieee_alone() -> Records:
    return [*started("ieee"), *made(1, 50, "ieee"), survives(45, precision="ieee")]


def disturbed() -> Records:
    """AMP's median step is faster, its mean step slower: another program used the machine."""
    return [*both(), *made(601, 720, "fp16", step_seconds=10 * SLOW)]


def launch_bound() -> Records:
    phases = (
        PhaseSeconds(name="input", host_seconds=0.0001, device_seconds=0.0001),
        PhaseSeconds(name="forward", host_seconds=0.002, device_seconds=0.0003),
        PhaseSeconds(name="backward", host_seconds=0.002, device_seconds=0.0003),
    )
    timed = [
        StepTimed(time=200.0, step=step, precision="fp16", settling=False, phases=phases)
        for step in range(400, 440)
    ]
    rows = (samples.measured("fp32"), samples.faster(speedup=1.0, speedup_low=0.99, speedup_high=1.01))
    return [*both(), *timed, samples.compared(580, rows=rows)]


def own_loop_whose_precision_is_ours() -> Records:
    refused = {"x-ray": "it needs a step function"}
    return [*both(refuses=refused), in_float16(0.4, 590)]


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
        Situation(fp8_after_bf16, "faster", "no trouble", precision="fp8"),
        Situation(fp8_that_loses, "faster", "warning", ("float8", "loses"), precision="fp8"),
        Situation(fp8_that_lost_long_ago, "faster", "unknown", precision="fp8"),
        Situation(fp8_that_agrees, "faster", "safe", precision="fp8"),
        Situation(fp8_slower_than_bf16_and_faster_than_fp32, "slower", "no trouble", precision="fp8"),
        Situation(fp8_without_bf16, "unknown", "no trouble", precision="fp8"),
        Situation(fp8_beside_fp16_alone, "unknown", "no trouble", precision="fp8"),
        Situation(fp8_and_bf16_in_turns, "faster", "no trouble", precision="fp8"),
        Situation(bf16_after_fp8, "faster", "no trouble", precision="bf16"),
        Situation(fp8_that_differs, "faster", "warning", ("agreement", "differ"), precision="fp8"),
        Situation(fp8_that_differs_as_bf16_does, "faster", "no trouble", precision="fp8"),
        Situation(emulated_fp8_after_bf16, "unknown", "no trouble", precision="fp8-emulated"),
        Situation(
            emulated_fp8_with_an_outlier,
            "unknown",
            "warning",
            ("float8", "loses"),
            precision="fp8-emulated",
        ),
        Situation(all_skipped, "unknown", "error", ("overflow", "skipped mostly")),
        Situation(all_skipped_then_bf16, "faster", "no trouble", precision="bf16"),
        Situation(calibrating, "unknown", "no trouble"),
        Situation(recovered, "unknown", "no trouble"),
        Situation(frequent_skips, "unknown", "warning", ("overflow", "frequent")),
        Situation(forward_overflow, "unknown", "warning", ("overflow", "forward overflow once")),
        Situation(forward_overflow_for_good, "unknown", "error", ("overflow", "forward overflow")),
        Situation(underflow_foretold_in_fp32, "unknown", "warning", ("float16", "underflows")),
        Situation(underflow_in_an_older_journal, "unknown", "warning", ("float16", "underflows")),
        Situation(many_tiny_gradients_that_do_not_matter, "faster", "no trouble"),
        Situation(underflow_in_fp16, "faster", "warning", ("float16", "underflows")),
        Situation(underflow_in_fp16_long_ago, "faster", "unknown"),
        Situation(disagreement_long_ago, "faster", "unknown", precision="bf16"),
        Situation(underflow_at_another_scale, "faster", "unknown"),
        Situation(underflow_that_only_an_xray_shows, "faster", "warning", ("float16", "underflows")),
        Situation(underflow_that_spoils_the_gradients, "faster", "error", ("float16", "underflows")),
        Situation(underflow_while_bf16_runs, "faster", "no trouble", precision="bf16"),
        Situation(all_zero_in_fp16, "faster", "warning", ("float16", "all zero")),
        Situation(tf32_beside_fp16, "faster", "no trouble"),
        Situation(ieee_alone, "unknown", "would be safe"),
        Situation(disturbed, "unknown", "no trouble"),
        Situation(launch_bound, "same", "no trouble"),
        Situation(own_loop_whose_precision_is_ours, "faster", "warning", ("float16", "underflows")),
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


def advised_key(view: SessionView) -> str:
    """The key that the line on AMP names, with what it does; empty if it names none."""
    answer = amp_answer(view)
    if answer.precision is None:
        return ""
    measured_by, what = next_measurement(answer)
    key = key_of(measured_by, ScreenState(accepts=view.accepts))
    return f"{key} {what}" if key and what else ""


def main() -> None:
    """Print the table."""
    widest = max(map(len, SITUATIONS))
    for name in SITUATIONS:
        view = view_of(name)
        print(f"{name:<{widest}}  {answer_line(amp_answer(view))}  [{advised_key(view)}]")


if __name__ == "__main__":
    main()
