"""Float16 histogram, module trace and X-ray in words: what each found in one line, and its details."""

import math
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal

from amptui.base import units
from amptui.diagnosis.activity import newest
from amptui.diagnosis.labels import layer_label, precision_label
from amptui.diagnosis.nonfinite import FORWARD_OVERFLOW, LOSS_NOT_FINITE, WORDS, first_and_more
from amptui.records.findings import Float16Window, LayerAgreement, ModuleRange, ModulesTraced, XRayTaken
from amptui.records.run import Severity
from amptui.telemetry.health import (
    LARGEST_FLOAT16,
    XRayVerdict,
    judge_trace,
    judge_window,
    judge_xray,
)
from amptui.telemetry.numerics import MIN_OF
from amptui.telemetry.underflow import UnderflowFound, underflowing_share
from amptui.telemetry.view import NumericsView, SessionView


@dataclass(frozen=True, slots=True)
class Verdict:
    """How bad it is, and why or what to do, in one line."""

    severity: Severity
    text: str


# ------------------------------------------------------------------------------- the float16 window


def window_facts(window: Float16Window) -> str:
    """``0.02% of the gradient norm underflows at loss scale 65,536``: what it means is for the answer."""
    verdict = judge_window(window)
    if verdict.state == "not finite":
        where = precision_label(window.precision)
        return f"{units.count(window.nonfinite)} gradients are NaN or Inf in {where}: not a float16 problem"
    if verdict.state == "overflow":
        bad = f"{units.count(window.nonfinite)} gradients are NaN or Inf"
        return f"overflow in fp16 at {units.count(window.loss_scale)}: {bad}; the scaler skips this step"
    if verdict.state == "empty":
        return "no gradients"
    if verdict.state == "all zero":
        return "all gradients are zero" + ("" if window.hypothetical else ": true zeros or flushed")
    text = underflow_words(verdict.share, math.ldexp(window.loss_scale, -verdict.halvings))
    if verdict.halvings:
        text += f" ({units.count(window.loss_scale)} overflows)"
    if verdict.worst is not None:
        text += f"; most in {verdict.worst.name} ({units.share(underflowing_share(verdict.worst), 1)})"
    if not window.hypothetical and window.zeros:
        text += f"; {units.share(window.zeros, window.elements)} zeros (true zeros or flushed)"
    elif not window.hypothetical:
        text += "; no zeros, so nothing was flushed"
    return text


def underflow_words(share: float | None, loss_scale: float | None, verb: str = "underflows") -> str:
    """``31% of the gradient norm underflows at loss scale 65,536``."""
    if share is None:
        return "underflow not measured"
    return f"{units.share(share, 1)} of the gradient norm {verb} at loss scale {units.count(loss_scale)}"


def underflow_found(underflow: UnderflowFound) -> str:
    """``31% of the gradient norm underflows in AMP fp16 at 65,536: use bf16; most in head``."""
    verb = f"underflows in {precision_label(underflow.precision)}"
    if underflow.hypothetical:
        verb = "would underflow in fp16"
    place = f"; most in {underflow.place}" if underflow.place else ""
    return f"{underflow_words(underflow.share, underflow.loss_scale, verb)}: use bf16{place}"


def at_scale(loss_scale: float | None, *, hypothetical: bool) -> str:
    """``at scale 65,536``, or ``if in float16 at 65,536``."""
    return f"{'if in float16 at' if hypothetical else 'at scale'} {units.count(loss_scale)}"


MEASURING = "measuring …"


def window_missing(view: SessionView) -> str:
    """Why there is no histogram of float16 gradients yet."""
    if newest(view, "histogram") is not None:
        return MEASURING
    why = view.run.refuses.get("histogram") if view.run is not None else None
    return f"not measured, {why}" if why else "not measured yet"


def window_cost(window: Float16Window) -> str:
    """``every 32 steps, 0.9% of the time``, as far as measured."""
    if not window.steps_since:
        return "" if window.seconds is None else f"took {units.milliseconds(window.seconds)}"
    often = "every step" if window.steps_since == 1 else f"every {units.count(window.steps_since)} steps"
    if window.seconds is None or not window.seconds_since:
        return often
    return f"{often}, {units.share(window.seconds, window.seconds_since)} of the time"


def least_headroom(numerics: NumericsView) -> str:
    """``least 2.4 of the last 256`` measured steps; empty if there are none."""
    least = numerics.min_headroom
    if least is None:
        return ""
    if not math.isfinite(least):
        return f"NaN/Inf in the last {MIN_OF}"
    return f"least {units.doublings(least)} of the last {MIN_OF}"


# ----------------------------------------------------------------------------------- traced modules


def trace_verdict(trace: ModulesTraced) -> Verdict:
    """The module that overflowed first and what to do, the one closest to it, or lost weights."""
    (severity, state), nearest = judge_trace(trace), ""
    text = f"nothing overflowed in {units.count(trace.modules)} modules"
    if trace.nearest:
        nearest = f"{place_of(trace.nearest[0])}, {distance(trace.nearest[0])}"
    if state in ("input", "weights lost") or (trace.first is None and trace.cause):
        text = origin_words(trace)
    elif trace.first is not None:
        text = f"first: {what_overflowed_first(trace)}; {_trace_hint(trace, trace.first)}"
    elif state == "would overflow":
        text = f"would overflow float16: {nearest}"
    elif state == "fits":
        text += f"; nearest: {nearest}"
    return Verdict(severity, text)


def origin_words(trace: ModulesTraced | None) -> str:
    """Why a loss is NaN or Inf, as far as a trace tells, and what to do."""
    if trace is None:
        return LOSS_NOT_FINITE
    if trace.inputs:
        return f"the model's input {trace.inputs[0]} is NaN or Inf already: look at the data"
    if trace.lost:
        lost = first_and_more(trace.lost, trace.lost_count)
        what = "buffers" if trace.cause == "buffer" else "weights"
        return f"the {what} were already NaN or Inf: {lost}; no module caused it"
    began = trace.first
    words = FORWARD_OVERFLOW if trace.cause == "overflow" else LOSS_NOT_FINITE
    if trace.cause == "unknown":
        why = "the model's inputs were not seen" if began else "its operations were not seen"
        words = f"NaN or Inf, cause unknown, because {why}"  # with a loss that may be finite
    elif began is not None and began.way == "backward":
        words += ", the outputs of all modules are finite: look at the loss and the labels"
    elif began is not None:
        words += f"; it started in {module_of(began)}"
    return words


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


def place_of(module: ModuleRange) -> str:
    """``the output of features.12.conv (Conv2d, float16)``, or its output gradient."""
    side = "the output of" if module.way == "forward" else "the output gradient of"
    return f"{side} {module_of(module)}"


def module_of(module: ModuleRange) -> str:
    """``features.12.conv (Conv2d, float16)``."""
    return f"{module.name or 'the model'} ({module.kind}, {module.dtype})"


def distance(module: ModuleRange) -> str:
    """``41,200, 0.7 doublings below 65,504``; only the value where it is zero or not finite."""
    if not 0 < module.largest < math.inf:
        return units.loss(module.largest)
    room = math.log2(LARGEST_FLOAT16) - math.log2(module.largest)
    side = "above" if room < 0 else "below"
    return f"{units.loss(module.largest)}, {units.doublings(abs(room))} doublings {side} 65,504"


# ------------------------------------------------------------------------------------------- X-ray

MASKS_DIFFER = "dropout masks may differ"
"""Of an X-ray whose two passes drew random numbers."""

_LAYERS_LEGEND = (
    "AMP's gradients and FP32's of the same batch and weights: cosine 1 is the same direction, "
    "error |AMP−FP32| / |FP32|, lost: zero only in AMP"
)
_FLOAT8_LEGEND = (
    "Cosine of FP8's gradients and FP32's of the same batch and weights (1: the same direction); in bf16: of "
    "bf16's and FP32's; to bf16: of FP8's and bf16's; error |FP8−FP32| / |FP32|; lost: zero only in FP8; "
    "=: in bf16 as far from FP32"
)
OPERATORS_LEGEND = "how often each ran, forward and backward; _to_copy casts to that dtype"


def layers_legend(xray: XRayTaken) -> str:
    """What the columns of an X-ray's layers are."""
    return _FLOAT8_LEGEND if xray.reference else _LAYERS_LEGEND


def xray_verdict(xray: XRayTaken) -> Verdict:
    """``gradients agree in all 43 layers; worst 0.999 in features.12; losses 0.024% apart``."""
    verdict = judge_xray(xray)
    return Verdict(verdict.severity, xray_text(xray, verdict))


def xray_text(xray: XRayTaken, verdict: XRayVerdict) -> str:
    """The same of an X-ray that was judged, and may have lost layers since."""
    amp = precision_label(xray.precision)
    match verdict.state:
        case "FP32 loss not finite":
            whose = "an FP8" if xray.reference else "an AMP"
            return f"the loss is {units.loss(xray.loss_fp32)} even in FP32: not {whose} problem"
        case "AMP loss not finite":
            losses = f"{units.loss(xray.loss_amp)} in {amp} but {units.loss(xray.loss_fp32)} in FP32"
            if xray.reference:
                losses += f" and {units.loss(xray.loss_reference)} in {xray.reference}"
            return f"the loss is {losses}" + (f"; {FORWARD_OVERFLOW}" if xray.precision == "fp16" else "")
        case "nothing to compare":
            return "no layer has a gradient to compare"
    assert verdict.worst is not None, "in all other states there is a layer"
    if verdict.state in ("overflow", "not finite"):
        first = layer_label(verdict.worst.name)
        where = f"NaN or Inf in {verdict.count} of {verdict.layers} layers' gradients, first {first}"
        overflow = f"overflow at scale {units.count(xray.loss_scale)}"
        skips = f"{overflow}: the scaler would skip this step and halve its scale"
        return f"{skips if verdict.state == 'overflow' else amp}: {where}{_also_in_reference(xray, verdict)}"
    every = verdict.count == verdict.layers > 1
    layers = f"all {verdict.layers}" if every else f"{verdict.count} of {verdict.layers}"
    masks = f"; {MASKS_DIFFER}" if xray.random and verdict.state != "agree" else ""
    apart = losses_apart(xray) or f"{units.loss(xray.loss_fp32)} and {units.loss(xray.loss_amp)}"
    worst = f"worst {_layer_words(verdict.worst)}{_beside_reference(xray, verdict.worst)}; losses {apart}"
    state, than = _STATES.get(verdict.state, verdict.state), ""
    if xray.reference and verdict.state != "agree":
        than = _THAN_REFERENCE[verdict.state == "as in reference"].format(xray.reference)
    return f"gradients {state} in {layers} layers{than}; {worst}{masks}"


_STATES = {"as in reference": "differ"}
_THAN_REFERENCE = ", more than in {}", ", but in {} as much"


def _beside_reference(xray: XRayTaken, layer: LayerAgreement) -> str:
    """`` (bf16: 0.999)``; empty without a third precision."""
    if layer.reference is None:
        return ""
    return f" ({xray.reference}: {cosine_words(layer.reference.cosine)})"


def _also_in_reference(xray: XRayTaken, verdict: XRayVerdict) -> str:
    """Whether the first layer with NaN or Inf has one in the third precision, too."""
    if verdict.worst is None or verdict.worst.reference is None:
        return ""
    cosine = verdict.worst.reference.cosine
    return (
        f", in {xray.reference} too" if cosine is None or math.isnan(cosine) else f", not in {xray.reference}"
    )


def _layer_words(layer: LayerAgreement, digits: int = 3) -> str:
    return f"{cosine_words(layer.cosine, digits)} in {layer_label(layer.name)}"


def cosine_words(cosine: float | None, digits: int = 3) -> str:
    """``0.999``, cut rather than rounded: 0.99896 is below 0.999."""
    if cosine is None or not abs(cosine) <= 1:
        return units.loss(cosine)
    return str(Decimal(str(cosine)).quantize(Decimal(10) ** -digits, ROUND_DOWN))


def losses_apart(xray: XRayTaken) -> str:
    """``0.024% apart``, relative to FP32's; empty where that is no number."""
    difference = abs(xray.loss_amp - xray.loss_fp32)
    if not difference:
        return "equal"
    if not xray.loss_fp32 or not math.isfinite(difference):
        return ""
    share = units.share(difference, abs(xray.loss_fp32))
    return f"{units.percent(difference / abs(xray.loss_fp32)) if share == '100%' else share} apart"


def xray_losses(xray: XRayTaken) -> str:
    """``loss 0.503 in FP32, 0.504 in AMP fp16``; in FP8 bf16's between both."""
    losses = ", ".join(f"{units.loss(loss)} in {precision_label(name)}" for name, loss in losses_of(xray))
    return f"loss {losses}"


def losses_of(xray: XRayTaken) -> list[tuple[str, float | None]]:
    """The precisions of all passes, in their order, with the loss of each."""
    between = [(xray.reference, xray.loss_reference)] if xray.reference else []
    return [("fp32", xray.loss_fp32), *between, (xray.precision, xray.loss_amp)]


def layer_line(layer: LayerAgreement) -> str:
    """``0.9991 features.12 (Conv2d): relative error 0.0312, 0.024% lost``.

    In FP8 ``0.9973 in mlp.fc (Linear, float8), 0.9999 in bf16: ...``.
    """
    lost = "" if layer.lost is None else f", {units.share(layer.lost, 1)} lost"
    kind = f"{layer.kind}, float8" if layer.in_float8 else layer.kind
    beside = "" if layer.reference is None else f", {cosine_words(layer.reference.cosine, 4)} in bf16"
    error = units.loss(layer.relative_error)
    return f"{_layer_words(layer, 4)} ({kind}){beside}: relative error {error}{lost}"
