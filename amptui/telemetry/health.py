"""Verdicts on float16 histogram, module trace and X-ray, in plain English."""

import math

from amptui import units
from amptui.findings import (
    Float16Window,
    LayerAgreement,
    ModuleRange,
    ModulesTraced,
    ParameterWindow,
    XRayTaken,
)
from amptui.telemetry.labels import precision_label
from amptui.telemetry.nonfinite import FORWARD_OVERFLOW, WORDS
from amptui.telemetry.view import Verdict

LARGEST_FLOAT16 = 65504.0
"""The largest finite float16, (2 - 2^-10) 2^15."""

LOST_SHARE = 0.01
"""The fraction of nonzero gradients that float16 may flush without a warning. Our choice: Micikevicius et
al. (2018) found the smallest gradients of a detector irrelevant to its training, but not those just above
them, so no fraction is safe by itself; the X-ray shows the effect on each layer."""

WORST_SHARE = 0.1
"""A parameter that loses a larger fraction of its gradient is named. That alone is no warning: the gradient
of a bias before a BatchNorm is rounding noise, and may vanish completely."""

SUBNORMAL_SHARE = 0.5
"""If a larger fraction of what float16 kept is subnormal, many gradients probably lie below its range:
subnormals are 10 of the 40 binades of float16."""

VANISHED_SHARE = 0.5
VANISHED_DOUBLINGS = 12
"""If more than half of all elements are zero and the largest is so many doublings below overflow, a higher
scale would probably keep more; gradients that are only sparse reach higher."""

XRAY_SAFE_COSINE = 0.9
"""A layer whose mixed-precision gradient has at least this cosine to its FP32 gradient agrees with it:
rounding then adds at most half as much as the gradient itself, sqrt(1 / 0.9^2 - 1) = 0.48, where another
batch adds many times as much. Measured on mnist-deep, which trains well either way: the worst of 31 layers
has 0.81 in bf16 and 0.96 in fp16 after one step, 0.97 and 0.997 after 40; two batches in FP32 agree to 0.01
and 0.10."""

XRAY_CAREFUL_COSINE = 0.5
"""Down to this cosine, rounding adds less than twice the gradient; below it, the layer learns mostly from
rounding errors."""

XRAY_WORST_LAYERS = 8
"""The event of an X-ray lists so many layers, those that agree least."""

LITTLE_MEMORY = 0.05
"""Less than this fraction of FP32's memory is little saving."""


# ------------------------------------------------------------------------------- the float16 window


def judge_window(window: Float16Window) -> Verdict:
    """Whether these gradients survive float16 at the histogram's loss scale, in fractions of nonzero ones.

    If some overflow, the scaler would halve its scale until none does: the verdict is on the fraction flushed
    then. In a step that ran in float16 itself, flushed gradients are already zero.
    """
    scale = units.count(window.loss_scale)
    if not window.hypothetical:
        return _in_float16(window, scale)
    if window.nonfinite:
        where = precision_label(window.precision)
        text = f"{units.count(window.nonfinite)} NaN or Inf gradients in {where}: not a float16 problem"
        return Verdict("warning", text)
    nonzero = window.elements - window.zeros
    if nonzero <= 0:
        return Verdict("info", "all gradients are zero")
    halvings = _halvings_to_fit(window)
    lost = _flushed_after(window, halvings)
    fits = units.count(math.ldexp(window.loss_scale, -halvings))
    flushed = f"{units.share(lost, nonzero)} of nonzero flushed at {fits}"
    if halvings:
        flushed += f" ({scale} overflows)"
    if lost <= LOST_SHARE * nonzero:
        return Verdict("info", f"gradients would survive float16: {flushed}{_worst(window)}")
    hint = "use bf16" if halvings else "use a higher scale or bf16"
    return Verdict("warning", f"float16 would lose gradients: {flushed}{_worst(window)}; {hint}")


def _in_float16(window: Float16Window, scale: str) -> Verdict:
    if window.nonfinite:
        found = f"{units.count(window.nonfinite)} gradients are NaN or Inf"
        return Verdict("info", f"overflow in fp16 at {scale}: {found}; the scaler skips this step")
    if not window.elements:
        return Verdict("info", "no gradients")
    zeros = "no zeros, so nothing was flushed"
    if window.zeros:
        share = units.share(window.zeros, window.elements)
        zeros = f"{share} zeros (true zeros or flushed)"
    text = f"in fp16 at {scale}: {zeros}, {units.share(window.subnormal, window.elements)} subnormal"
    nonzero = window.elements - window.zeros
    if window.zeros and window.subnormal > SUBNORMAL_SHARE * nonzero:
        return Verdict("warning", f"{text}; many were probably flushed: use bf16")
    room = 15 - _highest_exponent(window)
    if window.zeros > VANISHED_SHARE * window.elements and nonzero and room >= VANISHED_DOUBLINGS:
        return Verdict("warning", f"{text}; {room} doublings of headroom: a higher scale keeps more")
    return Verdict("info", text)


def _halvings_to_fit(window: Float16Window) -> int:
    """How often the scale must be halved until nothing overflows, to the precision of a bin."""
    if not window.overflowing:
        return 0
    return max(1, _highest_exponent(window) - 15)


def _highest_exponent(window: Float16Window) -> int:
    """Of the largest finite element."""
    return window.first_exponent + max((i for i, count in enumerate(window.counts) if count), default=0)


def _flushed_after(window: Float16Window, halvings: int) -> int:
    """Elements with |g s| 2^-halvings below 2^-25."""
    if not halvings:
        return window.flushed
    return sum(window.counts[: max(0, halvings - 25 - window.first_exponent)])


def _worst(window: Float16Window) -> str:
    """``; most in embed.weight (62%)``; empty if no parameter loses much."""
    worst = max(window.worst, key=_lost_share, default=None)
    if worst is None or _lost_share(worst) <= WORST_SHARE:
        return ""
    return f"; most in {worst.name} ({units.share(_lost_share(worst), 1)})"


def _lost_share(parameter: ParameterWindow) -> float:
    nonzero = parameter.elements - parameter.zeros
    return (parameter.flushed + parameter.overflowing) / nonzero if nonzero > 0 else 0.0


# ----------------------------------------------------------------------------------- traced modules


def judge_trace(trace: ModulesTraced) -> Verdict:
    """The module that overflowed first and what to do, or the one closest to an overflow."""
    if trace.first is not None:
        advice = _trace_advice(trace, trace.first)
        text = f"first: {what_overflowed_first(trace)}; {advice}"
        return Verdict("warning" if trace.precision == "fp16" else "error", text)
    nothing = f"nothing overflowed in {units.count(trace.modules)} modules"
    if not trace.nearest or not 0 < trace.nearest[0].largest < math.inf:
        return Verdict("info", nothing)
    nearest = trace.nearest[0]
    if nearest.largest > LARGEST_FLOAT16:
        return Verdict("warning", f"would overflow float16: {place_of(nearest)}, {distance(nearest)}")
    return Verdict("info", f"{nothing}; nearest: {place_of(nearest)}, {distance(nearest)}")


def _trace_advice(trace: ModulesTraced, first: ModuleRange) -> str:
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


def judge_xray(xray: XRayTaken) -> Verdict:
    """Whether AMP's gradients agree with FP32's on this batch, by the layer that agrees least.

    Layers without a gradient, or with an FP32 gradient of zero, have no cosine and are not counted.
    """
    trouble = _xray_nonfinite(xray)
    if trouble is not None:
        return trouble
    layers = [(layer.cosine, layer) for layer in xray.layers if layer.cosine is not None]
    if not layers:
        return Verdict("info", "no layer has a gradient to compare")
    cosine, worst = min(layers, key=lambda pair: pair[0])
    bound = XRAY_SAFE_COSINE if cosine >= XRAY_CAREFUL_COSINE else XRAY_CAREFUL_COSINE
    agreeing = sum(value >= bound for value, _ in layers)
    found = f"worst {_layer_words(worst)}; {_losses_apart(xray)}"
    if cosine >= XRAY_SAFE_COSINE:
        return Verdict("info", f"gradients agree in {_layers(agreeing, len(layers))}; {found}")
    where = _layers(len(layers) - agreeing, len(layers))
    masks = "; dropout masks may differ" if xray.random else ""
    if cosine >= XRAY_CAREFUL_COSINE:
        return Verdict("warning", f"gradients differ in {where}; {found}{masks}")
    return Verdict("error", f"gradients disagree in {where}; {found}{masks}")


def _layers(count: int, of: int) -> str:
    """``3 of 43 layers``, ``all 43 layers``."""
    return f"all {of} layers" if count == of > 1 else f"{count} of {of} layers"


def _xray_nonfinite(xray: XRayTaken) -> Verdict | None:
    """What NaN or Inf in either pass means; None if there is none."""
    amp = precision_label(xray.precision)
    if not math.isfinite(xray.loss_fp32):
        return Verdict("error", f"the loss is {units.loss(xray.loss_fp32)} even in FP32: not an AMP problem")
    if not math.isfinite(xray.loss_amp):
        lost = f"the loss is {units.loss(xray.loss_amp)} in {amp} but {units.loss(xray.loss_fp32)} in FP32"
        return Verdict("error", f"{lost}{_forward_hint(xray)}")
    bad = [layer.name for layer in xray.layers if layer.cosine is not None and math.isnan(layer.cosine)]
    if not bad:
        return None
    where = f"NaN or Inf in {len(bad)} of {len(xray.layers)} layers' gradients, first {bad[0] or 'the model'}"
    if xray.precision != "fp16":
        return Verdict("error", f"{amp}: {where}")
    overflow = f"overflow at scale {units.count(xray.loss_scale)}"
    return Verdict("warning", f"{overflow}, the scaler would skip this step and halve it: {where}")


def _forward_hint(xray: XRayTaken) -> str:
    return f"; {FORWARD_OVERFLOW}" if xray.precision == "fp16" else ""


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


def xray_details(xray: XRayTaken) -> str:
    """Both losses, memory, and the layers that agree least, a line each."""
    compared = [layer for layer in xray.layers if layer.cosine is not None]
    worst = sorted(compared, key=_disagreement, reverse=True)[:XRAY_WORST_LAYERS]
    amp = precision_label(xray.precision)
    losses = f"loss {units.loss(xray.loss_fp32)} in FP32, {units.loss(xray.loss_amp)} in {amp}"
    took = f"took {units.milliseconds(xray.seconds)}"
    lines = [losses, memory_breakdown(xray), *map(_layer_line, worst), took]
    return "\n".join(line for line in lines if line)


def _layer_line(layer: LayerAgreement) -> str:
    """``features.12 0.9991 (Conv2d): relative error 0.0312, 0.024% lost``."""
    lost = "" if layer.lost is None else f", {units.share(layer.lost, 1)} lost"
    return f"{_layer_words(layer)} ({layer.kind}): relative error {units.loss(layer.relative_error)}{lost}"


def _disagreement(layer: LayerAgreement) -> float:
    """Higher is worse; NaN is the worst."""
    return math.inf if layer.cosine is None or math.isnan(layer.cosine) else -layer.cosine


def memory_breakdown(xray: XRayTaken) -> str:
    """Which memory AMP can save and which it cannot; empty if what is saved for backward was not measured.

    AMP shrinks what autograd saves for backward: activations, but it also saves cast copies of weights.
    Weights, gradients, optimizer state and buffers are unchanged.
    """
    full, amp = xray.saved_bytes_fp32, xray.saved_bytes_amp
    if full is None or amp is None:
        return ""
    fixed = xray.weights_bytes + xray.gradients_bytes + xray.optimizer_bytes + xray.buffers_bytes
    whole = fixed + full
    owners = "weights, gradients, optimizer state and buffers"
    if full - amp < LITTLE_MEMORY * whole and fixed >= full:
        share = f"{units.number_of_bytes(fixed)} of {units.number_of_bytes(whole)}"
        return f"AMP cannot save much memory: {share} are {owners}"
    in_amp, in_fp32 = units.number_of_bytes(amp), units.number_of_bytes(full)
    rest = f"plus {units.number_of_bytes(fixed)} of {owners}"
    return f"saved for backward: {in_amp} in AMP, {in_fp32} in FP32, {rest}"
