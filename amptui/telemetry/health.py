"""Judgements on float16 histogram, module trace and X-ray: how bad it is, and the numbers behind that."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from amptui.findings import Float16Window, LayerAgreement, ModulesTraced, ParameterWindow, XRayTaken
from amptui.records import Severity

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


# ------------------------------------------------------------------------------- the float16 window


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowVerdict:
    """Whether gradients survive float16, or survived it."""

    severity: Severity
    state: Literal[
        "not finite", "all zero", "survives", "loses", "overflow", "empty", "kept", "flushed", "vanished"
    ]
    """Before float16 the first four: NaN or Inf already in this precision, no nonzero gradient, little or
    much would be flushed. In float16 the others: NaN or Inf, no gradients at all, nothing suspicious, many
    probably flushed, zero for want of scale."""
    halvings: int = 0
    """How often the scale would have to be halved until nothing overflows, to the precision of a bin."""
    flushed: int = 0
    """Elements that float16 would then flush to zero."""
    doublings: int = 0
    """Between the largest element and overflow, to the precision of a bin."""
    worst: ParameterWindow | None = None
    """The parameter that would lose most, if that is more than ``WORST_SHARE``."""


def judge_window(window: Float16Window) -> WindowVerdict:
    """Whether these gradients survive float16 at the histogram's loss scale, in fractions of nonzero ones.

    If some overflow, the scaler would halve its scale until none does: the verdict is on the fraction flushed
    then. In a step that ran in float16 itself, flushed gradients are already zero.
    """
    if not window.hypothetical:
        return _in_float16(window)
    if window.nonfinite:
        return WindowVerdict(severity="warning", state="not finite")
    nonzero = window.elements - window.zeros
    if nonzero <= 0:
        return WindowVerdict(severity="info", state="all zero")
    halvings = max(1, _highest_exponent(window) - 15) if window.overflowing else 0
    flushed = _flushed_after(window, halvings)
    survives = flushed <= LOST_SHARE * nonzero
    return WindowVerdict(
        severity="info" if survives else "warning",
        state="survives" if survives else "loses",
        halvings=halvings,
        flushed=flushed,
        worst=_worst(window),
    )


def _in_float16(window: Float16Window) -> WindowVerdict:
    if window.nonfinite:
        return WindowVerdict(severity="info", state="overflow")
    if not window.elements:
        return WindowVerdict(severity="info", state="empty")
    nonzero = window.elements - window.zeros
    if window.zeros and window.subnormal > SUBNORMAL_SHARE * nonzero:
        return WindowVerdict(severity="warning", state="flushed")
    doublings = 15 - _highest_exponent(window)
    if window.zeros > VANISHED_SHARE * window.elements and nonzero and doublings >= VANISHED_DOUBLINGS:
        return WindowVerdict(severity="warning", state="vanished", doublings=doublings)
    return WindowVerdict(severity="info", state="kept")


def _highest_exponent(window: Float16Window) -> int:
    """Of the largest finite element."""
    return window.first_exponent + max((i for i, count in enumerate(window.counts) if count), default=0)


def _flushed_after(window: Float16Window, halvings: int) -> int:
    """Elements with |g s| 2^-halvings below 2^-25."""
    if not halvings:
        return window.flushed
    return sum(window.counts[: max(0, halvings - 25 - window.first_exponent)])


def _worst(window: Float16Window) -> ParameterWindow | None:
    worst = max(window.worst, key=lost_share, default=None)
    return worst if worst is not None and lost_share(worst) > WORST_SHARE else None


def lost_share(parameter: ParameterWindow) -> float:
    """The fraction of a parameter's nonzero gradients that float16 flushes or that overflow."""
    nonzero = parameter.elements - parameter.zeros
    return (parameter.flushed + parameter.overflowing) / nonzero if nonzero > 0 else 0.0


# ----------------------------------------------------------------------------------- traced modules


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceVerdict:
    """Whether a module overflowed, or would overflow in float16."""

    severity: Severity
    state: Literal["overflowed", "weights lost", "would overflow", "fits", "unknown"]
    """``weights lost``: parameters or buffers were not finite before the step. ``unknown``: nothing
    overflowed, but no module has a distance to an overflow either."""


def judge_trace(trace: ModulesTraced) -> TraceVerdict:
    """On the module that overflowed first, or else on the one closest to an overflow."""
    if trace.lost_count:
        return TraceVerdict(severity="error", state="weights lost")
    if trace.first is not None:
        severity: Severity = "warning" if trace.precision == "fp16" else "error"
        return TraceVerdict(severity=severity, state="overflowed")
    if not trace.nearest or not 0 < trace.nearest[0].largest < math.inf:
        return TraceVerdict(severity="info", state="unknown")
    if trace.nearest[0].largest > LARGEST_FLOAT16:
        return TraceVerdict(severity="warning", state="would overflow")
    return TraceVerdict(severity="info", state="fits")


# ------------------------------------------------------------------------------------------- X-ray


@dataclass(frozen=True, slots=True, kw_only=True)
class XRayVerdict:
    """Whether AMP's gradients agree with FP32's on this batch."""

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
    ]
    """``overflow``: gradients in ``fp16``, whose scaler would skip the step; ``not finite`` in ``bf16``."""
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
    return _judge_cosines(cosines)


def _judge_cosines(cosines: Sequence[tuple[float, LayerAgreement]]) -> XRayVerdict:
    if not cosines:
        return XRayVerdict(severity="info", state="nothing to compare")
    least, worst = min(cosines, key=lambda pair: pair[0])
    layers = len(cosines)
    if least < XRAY_CAREFUL_COSINE:
        count = sum(cosine < XRAY_CAREFUL_COSINE for cosine, _ in cosines)
        return XRayVerdict(severity="error", state="disagree", count=count, layers=layers, worst=worst)
    count = sum(cosine < XRAY_SAFE_COSINE for cosine, _ in cosines)
    if count:
        return XRayVerdict(severity="warning", state="differ", count=count, layers=layers, worst=worst)
    return XRayVerdict(severity="info", state="agree", count=layers, layers=layers, worst=worst)


def least_agreeing(layers: Iterable[LayerAgreement]) -> list[LayerAgreement]:
    """The layers that can be compared, those that agree least first; NaN is the worst."""
    return sorted(
        (layer for layer in layers if layer.cosine is not None),
        key=lambda layer: -math.inf if layer.cosine is None or math.isnan(layer.cosine) else layer.cosine,
    )
