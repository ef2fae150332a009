"""What is said of float16 windows, traces, X-rays, the loss scaler, and of NaN and Inf."""

import math
from collections.abc import Mapping
from typing import Any

from amptui.diagnosis.finding_fields import losses_apart
from amptui.diagnosis.probe_words import distance, last_change, layer_line, what_overflowed_first, xray_losses
from amptui.diagnosis.words import long_words, short_words
from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.telemetry.events import event_of
from amptui.telemetry.finding import Finding, FindingReported
from amptui.telemetry.health import judge_trace, judge_window, judge_xray
from amptui.telemetry.scaling import ScalerView, judge_scaler
from tests.diagnosis.wording import event_lines, table
from tests.golden import Goldens
from tests.telemetry.record_samples import (
    backoff,
    layer,
    module,
    parameter,
    skip,
    spread,
    squares_of,
    traced,
    window,
    xray,
)


def said_of(finding: Finding) -> list[str]:
    """Grade and state, then the long and the short words."""
    return [f"{finding.grade}, {finding.state}: {long_words(finding)}", f"  {short_words(finding)}"]


def in_fp16(**changes: Any) -> Float16Window:
    return window(**{"precision": "fp16", "hypothetical": False, **changes})


WINDOWS: Mapping[str, Float16Window] = {
    "all is well": window(),
    "a little is lost": window(**squares_of(flushed=1e-8, subnormal=3e-8)),
    "at the scale that would fit": spread({-10: 9990, 19: 10}),
    "one parameter loses much": window(
        worst=(
            parameter("a", **squares_of(flushed=0.04)),
            parameter("bn.bias", **squares_of(flushed=0.36)),
        )
    ),
    "zeros in fp16": in_fp16(zeros=310, **squares_of(subnormal=16e-6)),
    "overflow in fp16": in_fp16(nonfinite=12),
    "NaN in FP32": window(nonfinite=12),
    "no gradients": in_fp16(elements=0, zeros=0, counts=()),
}


def test_what_is_said_of_windows(goldens: Goldens) -> None:
    rows = {}
    for name, seen in WINDOWS.items():
        rows[name] = said_of(judge_window(seen))
    worst = parameter("head", **squares_of(flushed=0.36))
    found = in_fp16(worst=(worst,), **squares_of(flushed=0.1)), window(**squares_of(flushed=0.1))
    alarms = list(
        event_lines([event_of(FindingReported(time=1.0, finding=judge_window(one))) for one in found])
    )
    goldens.check("words/float16 windows", table({**rows, "alarms": alarms}))


# ------------------------------------------------------------------------------------------- traces

TRACES: Mapping[str, ModulesTraced] = {
    "Inf forward": traced(first=module(largest=math.inf)),
    "Inf backward": traced(first=module(largest=math.inf, way="backward")),
    "NaN in float32": traced(first=module(largest=math.nan, dtype="float32")),
    "Inf in FP32": traced(first=module(largest=math.inf), precision="fp32"),
    "lost weights": traced(nearest=(), precision="bf16", lost=("head.weight", "head.bias"), lost_count=9),
    "nothing": traced(),
    "would overflow float16": traced(
        precision="fp32", loss_scale=None, nearest=(module(dtype="float32", largest=131_008.0),)
    ),
    **{
        f"nearest is {largest}": traced(nearest=(module(largest=largest),))
        for largest in (0.0, math.inf, math.nan)
    },
}


def test_what_is_said_of_traces(goldens: Goldens) -> None:
    rows = {
        name: [
            *said_of(judge_trace(trace)),
            f"first: {what_overflowed_first(trace) or 'none'}",
            *(f"near: {distance(one)}" for one in trace.nearest),
        ]
        for name, trace in TRACES.items()
    }
    goldens.check("words/traces", table(rows))


# ------------------------------------------------------------------------------------------- X-rays


def with_cosines(*cosines: float | None, **changes: Any) -> XRayTaken:
    layers = tuple(layer(name, cosine) for name, cosine in zip("abc", cosines, strict=False))
    return xray(**{"layers": layers, "loss_amp": 0.5, **changes})


MIB = 2**20

XRAYS: Mapping[str, XRayTaken] = {
    "agree": xray(),
    "worst at 0.9": with_cosines(0.9, 1.0),
    "worst below 0.9": with_cosines(0.89999, 1.0),
    "worst at 0.5": with_cosines(0.5, 0.9, 1.0),
    "worst below 0.5": with_cosines(0.4999, 0.7),
    "worst below 0": with_cosines(-0.5),
    "a layer without a gradient": with_cosines(None, 0.9999),
    "dropout, disagree": with_cosines(0.4, random=True),
    "overflow in the backward pass": with_cosines(0.9999, math.nan, math.nan),
    "Inf loss in fp16": xray(loss_amp=math.inf),
    "NaN loss in bf16": xray(loss_amp=math.nan, precision="bf16"),
    "NaN loss in FP32 too": xray(loss_fp32=math.nan, loss_amp=math.nan),
    "zero loss": xray(loss_fp32=0.0, loss_amp=0.001),
    "differ in FP8": with_cosines(0.7, 0.999, precision="fp8", loss_scale=None),
    "NaN gradients in FP8": with_cosines(math.nan, precision="fp8", loss_scale=None),
}


def test_what_is_said_of_x_rays(goldens: Goldens) -> None:
    rows = {}
    for name, taken in XRAYS.items():
        rows[name] = [
            *said_of(judge_xray(taken)),
            f"{xray_losses(taken)}; {losses_apart(taken.loss_amp, taken.loss_fp32)}",
            *map(layer_line, taken.layers[:2]),
        ]
    goldens.check("words/x-rays", table(rows))


# --------------------------------------------------------------------------------------- loss scaler

FALLING = ScalerView(applied=5, skips_in_a_row=5, newest_skip=skip(5))
FORWARD = ScalerView(applied=1, lost_loss_step=1)

SCALERS: Mapping[str, tuple[ScalerView, ModulesTraced | None]] = {
    "never ran": (ScalerView(), None),
    "a skip": (ScalerView(applied=491, skipped=9, recent_skips=1), None),
    "falling, traced": (FALLING, traced(first=module("b"))),
    "forward overflow, traced": (FORWARD, traced(first=module(), cause="overflow")),
    "input, traced": (FORWARD, traced(inputs=("0",), cause="input")),
    "weights, traced": (FORWARD, traced(lost=("a.weight",), lost_count=1, cause="weights")),
    "loss alone, traced": (FORWARD, traced(first=module(way="backward"), cause="gradient")),
    "looked at without hooks": (FORWARD, traced(cause="unknown")),
}


def test_what_is_said_of_the_loss_scaler(goldens: Goldens) -> None:
    rows = {}
    for name, (facts, trace) in SCALERS.items():
        rows[name] = said_of(judge_scaler(facts, trace))
    rows["last change"] = [last_change(backoff(612, 131072.0)), last_change(None)]
    goldens.check("words/loss scaler", table(rows))
