"""Float16 histogram, module trace and X-ray in words: what each found in one line, and its details."""

import math
from dataclasses import dataclass

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.nonfinite import FORWARD_OVERFLOW, WORDS, named
from amptui.records.findings import Float16Window, LayerAgreement, ModuleRange, ModulesTraced, XRayTaken
from amptui.records.run import Severity
from amptui.telemetry.health import (
    LARGEST_FLOAT16,
    WindowVerdict,
    XRayVerdict,
    judge_trace,
    judge_window,
    judge_xray,
)
from amptui.telemetry.underflow import UnderflowFound, underflowing_share


@dataclass(frozen=True, slots=True)
class Verdict:
    """How bad it is, and why or what to do, in one line."""

    severity: Severity
    text: str


# ------------------------------------------------------------------------------- the float16 window


def window_facts(window: Float16Window) -> str:
    """``0.02% of the norm underflows at 65,536``: what it measured; what that means is for the answer."""
    judged = judge_window(window)
    if judged.state == "not finite":
        where = precision_label(window.precision)
        return f"{units.count(window.nonfinite)} NaN or Inf gradients in {where}: not a float16 problem"
    if judged.state == "overflow":
        bad = f"{units.count(window.nonfinite)} gradients are NaN or Inf"
        return f"overflow in fp16 at {units.count(window.loss_scale)}: {bad}; the scaler skips this step"
    if judged.state == "empty":
        return "no gradients"
    if judged.state == "all zero":
        return "all gradients are zero" + ("" if window.hypothetical else ": true zeros or flushed")
    return _norm_facts(window, judged)


def _norm_facts(window: Float16Window, judged: WindowVerdict) -> str:
    """The share of the norm, then where most of it is lost, and what float16 itself hides."""
    scale = units.count(math.ldexp(window.loss_scale, -judged.halvings))
    text = f"{units.share(judged.share, 1)} of the norm underflows at {scale}"
    if judged.halvings:
        text += f" ({units.count(window.loss_scale)} overflows)"
    if judged.worst is not None:
        text += f"; most in {judged.worst.name} ({units.share(underflowing_share(judged.worst), 1)})"
    if window.hypothetical:
        return text
    if not window.zeros:
        return f"{text}; no zeros, so nothing was flushed"
    return f"{text}; {units.share(window.zeros, window.elements)} zeros (true zeros or flushed)"


def underflow_found(found: UnderflowFound) -> str:
    """``31% of the gradient's norm underflows in AMP fp16 at 65,536: use bf16; most in head``."""
    share, scale = units.share(found.share, 1), units.count(found.loss_scale)
    how = (
        "would underflow in fp16"
        if found.hypothetical
        else f"underflows in {precision_label(found.precision)}"
    )
    place = f"; most in {found.place}" if found.place else ""
    return f"{share} of the gradient's norm {how} at {scale}: use bf16{place}"


def at_scale(loss_scale: float | None, *, hypothetical: bool) -> str:
    """``at scale 65,536``, or ``if in float16 at 65,536``."""
    return f"{'if in float16 at' if hypothetical else 'at scale'} {units.count(loss_scale)}"


# ----------------------------------------------------------------------------------- traced modules


def trace_verdict(trace: ModulesTraced) -> Verdict:
    """The module that overflowed first and what to do, the one closest to it, or lost weights."""
    found = judge_trace(trace)
    if found.state == "weights lost":
        lost = named(trace.lost, trace.lost_count)
        text = f"weights not finite already: {lost}; no module is to blame"
        return Verdict(found.severity, text)
    if trace.first is not None:
        text = f"first: {what_overflowed_first(trace)}; {_trace_hint(trace, trace.first)}"
        return Verdict(found.severity, text)
    text = f"nothing overflowed in {units.count(trace.modules)} modules"
    if found.state != "unknown":
        nearest = f"{place_of(trace.nearest[0])}, {distance(trace.nearest[0])}"
        exceeds = found.state == "would overflow"
        text = f"would overflow float16: {nearest}" if exceeds else f"{text}; nearest: {nearest}"
    return Verdict(found.severity, text)


def trace_event(trace: ModulesTraced) -> str:
    """The verdict on a trace, and whether a person asked for it."""
    return f"{'trace' if trace.asked else 'automatic trace'}: {trace_verdict(trace).text}"


def trace_details(trace: ModulesTraced) -> list[str]:
    """The modules closest to an overflow, a line each."""
    return [f"{place_of(found)}: {distance(found)}" for found in trace.nearest]


def _trace_hint(trace: ModulesTraced, first: ModuleRange) -> str:
    if first.dtype != "float16":
        return "not a float16 problem: check this module and its inputs"
    if first.way == "forward":
        return "run it in FP32 (autocast disabled) or use bf16"
    scale = "" if trace.loss_scale is None else f"at scale {units.count(trace.loss_scale)} "
    return f"{scale}the scaler skips such steps; if they persist, run it in FP32 or use bf16"


def what_overflowed_first(trace: ModulesTraced) -> str:
    """``Inf in the output of features.12.conv (Conv2d, float16)``; empty if nothing did."""
    if trace.first is None:
        return ""
    return f"{WORDS['nan' if math.isnan(trace.first.largest) else 'inf']} in {place_of(trace.first)}"


def place_of(found: ModuleRange) -> str:
    """``the output of features.12.conv (Conv2d, float16)``, or its output gradient."""
    side = "the output of" if found.way == "forward" else "the output gradient of"
    return f"{side} {module_of(found)}"


def module_of(found: ModuleRange) -> str:
    """``features.12.conv (Conv2d, float16)``."""
    return f"{found.name or 'the model'} ({found.kind}, {found.dtype})"


def distance(found: ModuleRange) -> str:
    """``41,200, 0.7 doublings below 65,504``; only the value where it is zero or not finite."""
    if not 0 < found.largest < math.inf:
        return units.loss(found.largest)
    room = math.log2(LARGEST_FLOAT16) - math.log2(found.largest)
    side = "above" if room < 0 else "below"
    return f"{units.loss(found.largest)}, {units.doublings(abs(room))} doublings {side} 65,504"


# ------------------------------------------------------------------------------------------- X-ray


def xray_verdict(xray: XRayTaken) -> Verdict:
    """``gradients agree in all 43 layers; worst features.12 0.9991; losses 0.024% apart``."""
    found = judge_xray(xray)
    return Verdict(found.severity, xray_text(xray, found))


def xray_text(xray: XRayTaken, found: XRayVerdict) -> str:
    """The same of an X-ray that was judged, and may have lost layers since."""
    amp = precision_label(xray.precision)
    match found.state:
        case "FP32 loss not finite":
            return f"the loss is {units.loss(xray.loss_fp32)} even in FP32: not an AMP problem"
        case "AMP loss not finite":
            lost = (
                f"the loss is {units.loss(xray.loss_amp)} in {amp} but {units.loss(xray.loss_fp32)} in FP32"
            )
            return f"{lost}; {FORWARD_OVERFLOW}" if xray.precision == "fp16" else lost
        case "nothing to compare":
            return "no layer has a gradient to compare"
    assert found.worst is not None, "in all other states there is a layer"
    if found.state in ("overflow", "not finite"):
        first = found.worst.name or "the model"
        where = f"NaN or Inf in {found.count} of {found.layers} layers' gradients, first {first}"
        overflow = f"overflow at scale {units.count(xray.loss_scale)}"
        skips = f"{overflow}, the scaler would skip this step and halve it"
        return f"{skips if found.state == 'overflow' else amp}: {where}"
    alike = f"all {found.layers}" if found.count == found.layers > 1 else f"{found.count} of {found.layers}"
    masks = "; dropout masks may differ" if xray.random and found.state != "agree" else ""
    worst = f"worst {_layer_words(found.worst)}; {_losses_apart(xray)}"
    return f"gradients {found.state} in {alike} layers; {worst}{masks}"


def _layer_words(layer: LayerAgreement) -> str:
    """``features.12 0.9991``, cut rather than rounded: 0.99896 is below 0.999."""
    cosine = layer.cosine if layer.cosine is not None else math.nan
    cut = cosine if math.isnan(cosine) else math.floor(cosine * 1e4) / 1e4
    return f"{layer.name or 'the model'} {cut:.4f}"


def _losses_apart(xray: XRayTaken) -> str:
    """``losses 0.024% apart``, relative to FP32's."""
    if xray.loss_amp == xray.loss_fp32:
        return "losses equal"
    if not xray.loss_fp32:
        return f"losses {units.loss(xray.loss_fp32)} and {units.loss(xray.loss_amp)}"
    return f"losses {units.share(abs(xray.loss_amp - xray.loss_fp32), abs(xray.loss_fp32))} apart"


def xray_losses(xray: XRayTaken) -> str:
    """``loss 0.503 in FP32, 0.504 in AMP fp16``."""
    amp = precision_label(xray.precision)
    return f"loss {units.loss(xray.loss_fp32)} in FP32, {units.loss(xray.loss_amp)} in {amp}"


def layer_line(layer: LayerAgreement) -> str:
    """``features.12 0.9991 (Conv2d): relative error 0.0312, 0.024% lost``."""
    lost = "" if layer.lost is None else f", {units.share(layer.lost, 1)} lost"
    return f"{_layer_words(layer)} ({layer.kind}): relative error {units.loss(layer.relative_error)}{lost}"
