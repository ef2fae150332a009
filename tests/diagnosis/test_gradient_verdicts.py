"""What is said of the float16 window, of traced modules and of an X-ray: thresholds held, words exact."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.float16_verdicts import (
    Verdict,
    cosine_words,
    distance,
    layer_line,
    least_headroom,
    losses_apart,
    trace_verdict,
    what_overflowed_first,
    window_cost,
    window_facts,
    window_missing,
    xray_losses,
    xray_verdict,
)
from amptui.diagnosis.memory_use import saved_for_backward
from amptui.records.answers import RequestMade
from amptui.records.findings import Float16Window, ModuleRange, ReferenceAgreement, XRayTaken
from amptui.telemetry.events import event_of, summary_of_xray
from amptui.telemetry.health import judge_window
from amptui.telemetry.underflow import UnderflowFound
from amptui.telemetry.view import NumericsView, SessionView
from tests.telemetry.float16_windows import spread, squares_of
from tests.telemetry.record_samples import layer, module, parameter, run, traced, window, xray

# ------------------------------------------------------------------------------- the float16 window


def found(seen: Float16Window) -> Verdict:
    """What is judged of a histogram, and what is said of it."""
    return Verdict(judge_window(seen).severity, window_facts(seen))


def test_gradients_within_the_range_survive() -> None:
    assert found(window()) == Verdict("info", "0% of the gradient norm underflows at loss scale 65,536")
    few = window(**squares_of(flushed=1e-8, subnormal=3e-8))
    assert found(few) == Verdict("info", "0.020% of the gradient norm underflows at loss scale 65,536")


def test_a_norm_that_underflows_is_a_warning() -> None:
    history = found(window(**squares_of(flushed=0.05, subnormal=0.0461)))
    assert history == Verdict("warning", "31.0% of the gradient norm underflows at loss scale 65,536")


def test_where_gradients_overflow_the_scale_that_fits_is_judged() -> None:
    fits = found(spread({-10: 9990, 19: 10}))
    assert fits == Verdict(
        "info", "0% of the gradient norm underflows at loss scale 4,096 (65,536 overflows)"
    )


def test_a_parameter_that_loses_much_is_named_and_alarms_nobody() -> None:
    bias = parameter("bn.bias", **squares_of(flushed=0.36))
    verdict = found(window(worst=(parameter("a", **squares_of(flushed=0.04)), bias)))
    assert verdict.severity == "info"
    assert verdict.text.endswith("; most in bn.bias (60.0%)")
    assert "most in" not in found(window(worst=(parameter("a", **squares_of(flushed=0.01)),))).text


def test_of_a_step_in_float16_only_what_can_be_seen_is_said() -> None:
    history = window(precision="fp16", hypothetical=False, zeros=310, **squares_of(subnormal=16e-6))
    text = "0.40% of the gradient norm underflows at loss scale 65,536; 3.1% zeros (true zeros or flushed)"
    assert found(history) == Verdict("info", text)
    assert found(replace(history, zeros=0)).text.endswith("65,536; no zeros, so nothing was flushed")
    overflow = found(window(precision="fp16", hypothetical=False, nonfinite=12))
    assert overflow.severity == "info"
    assert overflow.text.startswith("overflow in fp16 at 65,536: 12 gradients are NaN or Inf")


def test_an_alarm_says_how_much_underflows_where_and_what_helps() -> None:
    underflow = UnderflowFound(
        time=1.0, step=40, precision="fp16", loss_scale=65536.0, hypothetical=False, share=0.31, place="head"
    )
    text = "31.0% of the gradient norm underflows in AMP fp16 at loss scale 65,536: use bf16; most in head"
    assert event_text(event_of(underflow)) == text
    foretold = replace(underflow, precision="fp32", hypothetical=True, place="")
    text = "31.0% of the gradient norm would underflow in fp16 at loss scale 65,536: use bf16"
    assert event_text(event_of(foretold)) == text


def test_nan_outside_of_float16_is_no_matter_of_float16() -> None:
    verdict = found(window(nonfinite=12))
    assert verdict == Verdict("warning", "12 gradients are NaN or Inf in FP32: not a float16 problem")


def test_gradients_that_are_all_zero_have_no_verdict_on_float16() -> None:
    assert found(window(zeros=10_000)) == Verdict("info", "all gradients are zero")
    in_fp16 = window(zeros=10_000, precision="fp16", hypothetical=False)
    assert found(in_fp16) == Verdict("warning", "all gradients are zero: true zeros or flushed")
    nothing = window(elements=0, zeros=0, counts=(), hypothetical=False, precision="fp16")
    assert found(nothing) == Verdict("info", "no gradients")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps_since": 1, "seconds": 0.000202, "seconds_since": 0.00202}, "every step, 10.0% of the time"),
        ({"steps_since": 32, "seconds": None}, "every 32 steps"),
        ({"steps_since": None, "seconds": 0.0031}, "took 3.10 ms"),
        ({"steps_since": None, "seconds": None}, ""),
    ],
)
def test_the_cost_is_said_as_far_as_it_was_measured(changes: dict[str, Any], words: str) -> None:
    assert window_cost(window(**changes)) == words


def test_a_missing_histogram_has_its_reason() -> None:
    assert window_missing(SessionView()) == "not measured yet"
    asked_for = RequestMade(time=1.0, number=1, kind="histogram")
    assert window_missing(SessionView(pending=(asked_for,))) == "measuring …"
    refused = run(refuses={"histogram": "the weights are float16"})
    assert window_missing(SessionView(run=refused)) == "not measured, the weights are float16"


@pytest.mark.parametrize(
    ("least", "words"),
    [(2.41, "least 2.4 of the last 256"), (-math.inf, "NaN/Inf in the last 256"), (None, "")],
)
def test_the_least_headroom_says_over_how_many(least: float | None, words: str) -> None:
    assert "".join(least_headroom(NumericsView(min_headroom=least))) == words


# ----------------------------------------------------------------------------------- traced modules


@pytest.mark.parametrize(
    ("first", "place", "advice"),
    [
        (
            module(largest=math.inf),
            "Inf in the output of features.12.conv (Conv2d, float16)",
            "run it in FP32 (autocast disabled) or use bf16",
        ),
        (
            module("", kind="Net", largest=math.nan),
            "NaN in the output of the model (Net, float16)",
            "run it in FP32 (autocast disabled) or use bf16",
        ),
        (
            module(largest=math.inf, way="backward"),
            "Inf in the output gradient of features.12.conv (Conv2d, float16)",
            "at scale 65,536 the scaler skips such steps; if they persist, run it in FP32 or use bf16",
        ),
        (
            module(largest=math.nan, dtype="float32"),
            "NaN in the output of features.12.conv (Conv2d, float32)",
            "not a float16 problem: check this module and its inputs",
        ),
    ],
)
def test_who_overflowed_first_is_named_with_what_to_do(first: ModuleRange, place: str, advice: str) -> None:
    trace = traced(first=first)
    assert what_overflowed_first(trace) == place
    assert trace_verdict(trace) == Verdict("warning", f"first: {place}; {advice}")
    assert trace_verdict(traced(first=first, precision="fp32")).severity == "error"


def test_of_lost_weights_no_module_is_named() -> None:
    trace = traced(first=None, nearest=(), precision="bf16", lost=("head.weight", "head.bias"), lost_count=9)
    assert trace_verdict(trace) == Verdict(
        "error",
        "the weights were already NaN or Inf: head.weight (+8); no module caused it",
    )


def test_where_nothing_overflowed_the_nearest_is_named() -> None:
    trace = traced()
    assert what_overflowed_first(trace) == ""
    assert trace_verdict(trace) == Verdict(
        "info",
        "nothing overflowed in 43 modules; nearest: the output of features.12.conv (Conv2d, float16), "
        "41,200, 0.7 doublings below 65,504",
    )


def test_what_would_overflow_float16_is_said_in_fp32() -> None:
    large = module(dtype="float32", largest=131_008.0)
    verdict = trace_verdict(traced(precision="fp32", loss_scale=None, nearest=(large,)))
    assert verdict == Verdict(
        "warning",
        "would overflow float16: the output of features.12.conv (Conv2d, float32), "
        "1.3e+05, 1.0 doublings above 65,504",
    )


@pytest.mark.parametrize("largest", [0.0, math.inf, math.nan])
def test_a_module_without_a_distance_has_none(largest: float) -> None:
    assert (
        trace_verdict(traced(nearest=(module(largest=largest),))).text == "nothing overflowed in 43 modules"
    )
    assert "doublings" not in distance(module(largest=largest))


# ------------------------------------------------------------------------------------------- X-ray


def test_layers_that_agree_are_safe() -> None:
    assert xray_verdict(xray()) == Verdict(
        "info", "gradients agree in all 2 layers; worst 0.999 in features.12; losses 0.20% apart"
    )


@pytest.mark.parametrize(
    ("cosines", "severity", "text"),
    [
        ((0.9, 1.0), "info", "gradients agree in all 2 layers; worst 0.900 in a"),
        ((0.89999, 1.0), "warning", "gradients differ in 1 of 2 layers; worst 0.899 in a"),
        ((0.5, 0.9, 1.0), "warning", "gradients differ in 1 of 3 layers; worst 0.500 in a"),
        ((0.4999, 0.7), "error", "gradients disagree in 1 of 2 layers; worst 0.499 in a"),
        ((-0.5,), "error", "gradients disagree in 1 of 1 layers; worst -0.500 in a"),
        ((None, 0.9999), "info", "gradients agree in 1 of 1 layers; worst 0.999 in b"),
        ((0.0,), "error", "gradients disagree in 1 of 1 layers; worst 0.000 in a"),
    ],
)
def test_the_layer_that_agrees_least_decides(
    cosines: Sequence[float | None], severity: str, text: str
) -> None:
    layers = tuple(layer(name, cosine) for name, cosine in zip("abc", cosines, strict=False))
    verdict = xray_verdict(xray(layers=layers, loss_amp=0.5))
    assert (verdict.severity, verdict.text) == (severity, f"{text}; losses equal")


def test_without_a_gradient_there_is_nothing_to_compare() -> None:
    verdict = xray_verdict(xray(layers=(layer("a", None),)))
    assert verdict == Verdict("info", "no layer has a gradient to compare")


def test_dropout_is_named_as_a_reason_to_disagree() -> None:
    bad = (layer("a", 0.4),)
    assert xray_verdict(xray(layers=bad, random=True)).text.endswith("dropout masks may differ")
    assert "dropout" not in xray_verdict(xray(layers=bad)).text
    assert "dropout" not in xray_verdict(xray(random=True)).text


def test_a_gradient_overflow_with_a_finite_loss_is_the_scaler_s_to_skip() -> None:
    layers = (layer("a", 0.9999), layer("b", math.nan), layer("c", math.nan))
    verdict = xray_verdict(xray(layers=layers))
    assert verdict == Verdict(
        "warning",
        "overflow at scale 65,536: the scaler would skip this step and halve its scale: "
        "NaN or Inf in 2 of 3 layers' gradients, first b",
    )
    bf16 = xray_verdict(xray(layers=layers, precision="bf16", loss_scale=None))
    assert bf16 == Verdict("error", "AMP bf16: NaN or Inf in 2 of 3 layers' gradients, first b")


def test_a_loss_that_only_amp_loses_is_not_safe() -> None:
    verdict = xray_verdict(xray(loss_amp=math.inf))
    assert verdict.severity == "error"
    assert verdict.text.startswith("the loss is inf in AMP fp16 but 0.500 in FP32; the forward pass")
    bf16 = xray_verdict(xray(loss_amp=math.nan, precision="bf16")).text
    assert bf16 == "the loss is nan in AMP bf16 but 0.500 in FP32"


def test_a_loss_that_fp32_loses_too_is_no_matter_of_amp() -> None:
    verdict = xray_verdict(xray(loss_fp32=math.nan, loss_amp=math.nan))
    assert verdict == Verdict("error", "the loss is nan even in FP32: not an AMP problem")


def test_losses_are_compared_with_fp32_s_unless_that_is_zero() -> None:
    assert xray_verdict(xray(loss_fp32=0.0, loss_amp=0.001)).text.endswith("losses 0 and 0.00100")
    assert xray_verdict(xray(loss_fp32=-2.0, loss_amp=-1.0)).text.endswith("losses 50.0% apart")
    assert losses_apart(xray(loss_fp32=0.5, loss_amp=2.0)) == "300% apart"
    assert losses_apart(xray(loss_fp32=0.5, loss_amp=math.inf)) == ""


def test_where_activations_are_most_of_the_memory_it_is_said_what_amp_keeps_of_them() -> None:
    assert saved_for_backward(xray()) == (
        "saved for backward: 200 MiB in AMP, 400 MiB in FP32, "
        "plus 236 MiB of weights, gradients, optimizer state and buffers"
    )


def test_where_weights_dominate_amp_cannot_lower_memory_much() -> None:
    small = xray(saved_bytes_fp32=12 * 2**20, saved_bytes_amp=6 * 2**20)
    assert saved_for_backward(small) == (
        "AMP cannot save much memory: 236 MiB of 248 MiB are weights, gradients, optimizer state and buffers"
    )
    # Activations that stay FP32 are not the weights' doing.
    sentence = saved_for_backward(xray(saved_bytes_amp=400 * 2**20))
    assert sentence.startswith("saved for backward: 400 MiB in AMP, 400 MiB in FP32")


def test_memory_that_was_not_measured_is_not_explained() -> None:
    assert saved_for_backward(xray(saved_bytes_fp32=None)) == ""
    assert saved_for_backward(xray(saved_bytes_amp=None)) == ""


def test_the_details_list_the_layers_that_agree_least_and_what_cannot_be_compared_first() -> None:
    layers = [layer(f"l{i}", 1 - i / 1000) for i in range(10)]
    odd = (layer("bad", math.nan, lost=None), layer("none", None))
    lines = event_details(event_of(summary_of_xray(xray(layers=(*layers, *odd)))))
    assert lines[0] == "loss 0.500 in FP32, 0.501 in AMP fp16"
    assert lines[1].startswith("saved for backward: 200 MiB in AMP")
    assert lines[2] == "nan in bad (Conv2d): relative error 0.0312"
    assert lines[3] == "0.9910 in l9 (Conv2d): relative error 0.0312, 0% lost"
    assert [line.split()[2] for line in lines[2:10]] == ["bad", *(f"l{i}" for i in range(9, 2, -1))]
    assert lines[10:] == ["took 120 ms"]


@pytest.mark.parametrize(
    ("cosine", "digits", "words"),
    [
        (0.99896, 3, "0.998"),
        (0.57, 5, "0.57000"),  # 0.57 * 10**5 is below 57,000 in binary
        (0.9999999999999, 5, "0.99999"),
        (1.0, 5, "1.00000"),
        (-0.99996, 4, "-0.9999"),
        (math.nan, 3, "nan"),
        (1e300, 3, "1.0e+300"),  # of a forged journal
        (None, 3, "n/a"),
    ],
)
def test_a_cosine_is_cut_and_never_rounded_up_to_one(cosine: float | None, digits: int, words: str) -> None:
    assert cosine_words(cosine, digits) == words


# ---------------------------------------------------------------------------------- X-rays in FP8


def in_fp8(cosine: float, in_bf16: float | None, **changes: Any) -> XRayTaken:
    """One layer, beside one that agrees."""
    reference = ReferenceAgreement(
        cosine=in_bf16, relative_error=0.004, added_cosine=cosine, added_error=0.06
    )
    layers = (layer("a", cosine, reference=reference), layer("b", 0.999, reference=reference))
    facts = {
        "precision": "fp8-emulated",
        "loss_scale": None,
        "reference": "bf16",
        "loss_reference": 0.5005,
        "layers": layers,
        **changes,
    }
    return xray(**facts)


@pytest.mark.parametrize(
    ("cosine", "in_bf16", "severity", "text"),
    [
        (0.997, 0.9999, "info", "gradients agree in all 2 layers; worst 0.997 in a (bf16: 0.999)"),
        (
            0.7,
            0.9999,
            "warning",
            "gradients differ in 1 of 2 layers, more than in bf16; worst 0.700 in a (bf16: 0.999)",
        ),
        (
            0.3,
            0.9999,
            "error",
            "gradients disagree in 1 of 2 layers, more than in bf16; worst 0.300 in a (bf16: 0.999)",
        ),
        (
            0.7,
            0.71,
            "warning",
            "gradients differ in 1 of 2 layers, but in bf16 as much; worst 0.700 in a (bf16: 0.710)",
        ),
    ],
)
def test_fp8_stands_beside_bf16(cosine: float, in_bf16: float, severity: str, text: str) -> None:
    verdict = xray_verdict(in_fp8(cosine, in_bf16))
    assert verdict == Verdict(severity, f"{text}; losses 0.20% apart")  # type: ignore[arg-type]


def test_whether_nan_is_of_fp8_or_of_bf16_already_is_said() -> None:
    where = "FP8 emulated: NaN or Inf in 1 of 2 layers' gradients, first a"
    assert xray_verdict(in_fp8(math.nan, 0.999)) == Verdict("error", f"{where}, not in bf16")
    assert xray_verdict(in_fp8(math.nan, math.nan)) == Verdict("error", f"{where}, in bf16 too")
    losses = "the loss is nan in FP8 emulated but 0.500 in FP32 and"
    for other, words in ((0.5, "0.500"), (math.nan, "nan")):
        record = in_fp8(0.999, 0.999, loss_amp=math.nan, loss_reference=other)
        assert xray_verdict(record) == Verdict("error", f"{losses} {words} in bf16")
    record = in_fp8(0.999, 0.999, loss_fp32=math.nan)
    assert xray_verdict(record).text == "the loss is nan even in FP32: not an FP8 problem"


def test_all_losses_and_what_a_layer_runs_in_are_in_the_details() -> None:
    record = in_fp8(0.9973, 0.99991)
    assert xray_losses(record) == "loss 0.500 in FP32, 0.500 in AMP bf16, 0.501 in FP8 emulated"
    first, second = replace(record.layers[0], in_float8=True), replace(record.layers[0], in_float8=False)
    beside = "0.9999 in bf16: relative error 0.0312, 0% lost"
    assert layer_line(first) == f"0.9973 in a (Conv2d, float8), {beside}"
    assert layer_line(second) == f"0.9973 in a (Conv2d), {beside}"
