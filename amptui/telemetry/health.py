"""Judgements on float16 histogram, module trace and X-ray: how bad it is, and the numbers behind that."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from amptui.records.findings import (
    Float16Window,
    LayerAgreement,
    ModulesTraced,
    ParameterWindow,
    XRayTaken,
)
from amptui.records.run import Severity
from amptui.telemetry.underflow import UNDERFLOW_SHARE, share_by_exponent, underflowing_share, worst_parameter

LARGEST_FLOAT16 = 65504.0
"""The largest finite float16, (2 - 2^-10) 2^15."""

XRAY_SAFE_COSINE = 0.9
"""A layer whose mixed-precision gradient has at least this cosine to its FP32 gradient agrees with it:
rounding then adds at most half as much as the gradient itself, sqrt(1 / 0.9^2 - 1) = 0.48, where another
batch adds many times as much. Measured on mnist-deep, which trains well either way: the worst of 31 layers
has 0.81 in bf16 and 0.96 in fp16 after one step, 0.97 and 0.997 after 40; two batches in FP32 agree to 0.01
and 0.10."""

XRAY_CAREFUL_COSINE = 0.5
"""Down to this cosine, rounding adds less than twice the gradient; below it, the layer learns mostly from
rounding errors."""

XRAY_FLOAT8_ERROR = 2.0
"""In FP8 a layer that agrees less than it should counts only if its rounding adds at least so many times what
bfloat16's does: then three quarters of the squared error, or more, are float8's. Where bfloat16 is as far
from FP32, float8 changes nothing. float8 rounds 16 to 32 times as coarsely (3 or 2 bits of mantissa for 7):
on char-gpt its error is 8 to 25 times bfloat16's in every layer, with cosines from 0.997. A healthy layer is
far from both limits."""


# ------------------------------------------------------------------------------- the float16 window


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowVerdict:
    """Whether gradients survive float16, or survived it."""

    severity: Severity
    state: Literal["not finite", "all zero", "survives", "underflows", "overflow", "empty", "kept"]
    """``not finite`` in another precision already; ``overflow`` in float16. ``empty``: no gradients at all.
    Little of the gradient norm underflows: it would ``survive``, or was ``kept`` in float16."""
    halvings: int = 0
    """How often the scale would have to be halved until nothing overflows, to the precision of a bin."""
    share: float | None = None
    """The share of the gradient norm that underflows, then; None if there is none."""
    worst: ParameterWindow | None = None
    """The parameter that loses most, if that is worth a word."""


def judge_window(window: Float16Window) -> WindowVerdict:
    """Whether these gradients survive float16 at the histogram's loss scale, by the norm that underflows.

    If some would overflow, the scaler would halve its scale until none does: the verdict is on the share
    then. In a step of float16's own, flushed gradients are already zero, and the share is a lower bound.
    """
    if window.nonfinite:
        in_float16 = not window.hypothetical
        return WindowVerdict(
            severity="info" if in_float16 else "warning", state="overflow" if in_float16 else "not finite"
        )
    if not window.elements:
        return WindowVerdict(severity="info", state="empty")
    if window.zeros >= window.elements:
        # In float16 that is a step that changes nothing, whether they are true zeros or were flushed.
        return WindowVerdict(severity="info" if window.hypothetical else "warning", state="all zero")
    # In a step of float16's own, what overflows is a gradient in float32: the scaler halves nothing.
    would_overflow = window.hypothetical and window.overflowing > 0
    largest = max((place for place, count in enumerate(window.counts) if count), default=0)
    halvings = max(1, window.first_exponent + largest - 15) if would_overflow else 0
    share = share_by_exponent(window, halvings) if halvings else underflowing_share(window)
    underflows = share is not None and share >= UNDERFLOW_SHARE
    return WindowVerdict(
        severity="warning" if underflows else "info",
        state="underflows" if underflows else "survives" if window.hypothetical else "kept",
        halvings=halvings,
        share=share,
        worst=worst_parameter(window),
    )


# ----------------------------------------------------------------------------------- traced modules


TraceState = Literal["input", "overflowed", "weights lost", "would overflow", "fits", "unknown"]
"""``weights lost``: parameters or buffers were not finite before the step. ``unknown``: nothing overflowed,
but no module has a distance to an overflow either."""


def judge_trace(trace: ModulesTraced) -> tuple[Severity, TraceState]:
    """On the module that overflowed first, or else on the one closest to an overflow."""
    if trace.inputs:
        return "error", "input"
    if trace.lost_count:
        return "error", "weights lost"
    if trace.first is not None:
        return "warning" if trace.precision == "fp16" else "error", "overflowed"
    if not trace.nearest or not 0 < trace.nearest[0].largest < math.inf:
        return "info", "unknown"
    if trace.nearest[0].largest > LARGEST_FLOAT16:
        return "warning", "would overflow"
    return "info", "fits"


# ------------------------------------------------------------------------------------------- X-ray


@dataclass(frozen=True, slots=True, kw_only=True)
class XRayVerdict:
    """Whether AMP's gradients, or FP8's, agree with FP32's on this batch."""

    severity: Severity
    state: Literal[
        "FP32 loss not finite",
        "AMP loss not finite",
        "overflow",
        "not finite",
        "nothing to compare",
        "agree",
        "differ",
        "disagree",
        "as in reference",
    ]
    """``overflow``: gradients in ``fp16``, whose scaler would skip the step; ``not finite`` in ``bf16``. In
    FP8 layers ``differ`` and ``disagree`` beyond what they do in bf16; ``as in reference``: some do, but in
    bf16 just as much."""
    count: int = 0
    """The layers that agree or, in other states, those that do not."""
    layers: int = 0
    """Out of so many."""
    worst: LayerAgreement | None = None
    """The layer that agrees least, or the first with NaN or Inf."""


def judge_xray(xray: XRayTaken) -> XRayVerdict:
    """By the layer that agrees least.

    Layers without a gradient, or with an FP32 gradient of zero, have no cosine and are not counted.
    """
    if not math.isfinite(xray.loss_fp32):
        return XRayVerdict(severity="error", state="FP32 loss not finite")
    if not math.isfinite(xray.loss_amp):
        return XRayVerdict(severity="error", state="AMP loss not finite")
    cosines = [(layer.cosine, layer) for layer in xray.layers if layer.cosine is not None]
    bad = [layer for cosine, layer in cosines if math.isnan(cosine)]
    if bad:
        return XRayVerdict(
            severity="warning" if xray.precision == "fp16" else "error",
            state="overflow" if xray.precision == "fp16" else "not finite",
            count=len(bad),
            layers=len(xray.layers),
            worst=bad[0],
        )
    states = [(layer_state(pair[1]), pair) for pair in cosines]
    for state, severity in _STATES.items():
        of_state = [pair for state_of_pair, pair in states if state_of_pair == state]
        if of_state:
            _, worst = min(of_state, key=lambda pair: pair[0])
            return XRayVerdict(
                severity=severity, state=state, count=len(of_state), layers=len(cosines), worst=worst
            )
    return XRayVerdict(severity="info", state="nothing to compare")


LayerState = Literal["nothing to compare", "agree", "differ", "disagree", "as in reference"]
"""Of one layer, as in :class:`XRayVerdict`."""

_STATES: Mapping[Literal["disagree", "differ", "as in reference", "agree"], Severity] = {
    "disagree": "error",
    "differ": "warning",
    "as in reference": "warning",
    "agree": "info",
}
"""The worst first: the first that any layer is in is the verdict."""


def layer_state(layer: LayerAgreement) -> LayerState:
    """Whether the gradients of one layer agree; NaN disagrees."""
    if layer.cosine is None:
        return "nothing to compare"
    if layer.cosine >= XRAY_SAFE_COSINE:
        return "agree"
    if layer.reference is not None:
        error = _error_of(1.0 if layer.reference.cosine is None else layer.reference.cosine)
        if error == math.inf or _error_of(layer.cosine) < XRAY_FLOAT8_ERROR * error:
            return "as in reference"  # less than half of the error beside FP32 is float8's
    return "differ" if layer.cosine >= XRAY_CAREFUL_COSINE else "disagree"


def _error_of(cosine: float) -> float:
    """What rounding adds at a right angle to the gradient, by its size: infinite if they are opposed."""
    if not cosine > 0.0:  # NaN too
        return math.inf
    return math.sqrt(max(0.0, 1.0 / (cosine * cosine) - 1.0))


def least_agreeing(layers: Iterable[LayerAgreement]) -> list[LayerAgreement]:
    """The layers that can be compared, those that agree least first; NaN is the worst."""
    return sorted(
        (layer for layer in layers if layer.cosine is not None),
        key=lambda layer: -math.inf if layer.cosine is None or math.isnan(layer.cosine) else layer.cosine,
    )
