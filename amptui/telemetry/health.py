"""Judgements on float16 histogram, module trace and X-ray: how bad it is, and the numbers behind that.

Underflow is the share of the gradient norm below float16's normal range. Counts of elements say nothing: ReLU
makes zeros, and thousands of tiny elements together are no part of the update.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from amptui.records.findings import (
    FLOAT16_ZONES,
    Float16Window,
    LayerAgreement,
    ModulesTraced,
    NonFiniteCause,
    ParameterWindow,
    XRayTaken,
)
from amptui.telemetry.finding import Finding, Grade

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


UNDERFLOW_SHARE = 0.25
"""From this share on underflow is an alarm. Of 16 healthy models each had 1e-6 at most in histograms and 2e-4
in X-rays, and ``unstable`` with its underflow has 1.0. Of eight models at ever smaller loss scales, below it
no gradient in float16 was off by more than 0.08 of FP32's, and from it on by up to 1.3."""

WORST_SHARE = 0.1
"""A parameter of whose gradient's norm a larger share underflows is named. That alone is no warning: the
gradient of a bias before a BatchNorm is rounding noise, and may vanish completely."""

EVERYWHERE_SHARE = 0.9
"""If a larger share underflows, it does so everywhere: no place loses most."""

RECOVERED_SHARE = 0.1
"""Below this share an alarm is over, so that the next one is told again."""


# ------------------------------------------------------------------------------- the float16 window


def share_by_exponent(window: Float16Window, halvings: int = 0) -> float | None:
    """The share of the norm that underflows, from the counts, after so many halvings of the scale.

    All elements of a bin count as equal: the share is exact to a factor of 2.
    """
    last = len(window.counts) - 1  # squares are relative to its, so that none exceeds a float
    squares = [count * 4.0 ** (place - last) for place, count in enumerate(window.counts)]
    whole = sum(squares)
    if window.nonfinite or not 0 < whole < math.inf:
        return None
    normal = max(0, halvings + FLOAT16_ZONES["normal"] - window.first_exponent)
    return min(1.0, math.sqrt(max(0.0, sum(squares[:normal])) / whole))


def worst_parameter(window: Float16Window) -> ParameterWindow | None:
    """The parameter of whose norm most underflows, if that is much and not the same everywhere."""
    whole = window.underflowing_share
    shares = [(parameter.underflowing_share or 0.0, parameter) for parameter in window.worst]
    share, worst = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    return worst if share > WORST_SHARE and (whole is None or whole < EVERYWHERE_SHARE) else None


def xray_share(xray: XRayTaken) -> float | None:
    """The share of FP32's norm in elements that float16 held as zero or as subnormals.

    Nothing is hidden: FP32 says what float16's zeros would have been. None outside float16, and beside NaN or
    Inf.
    """
    layers = [
        (layer.norm, layer.underflowing)
        for layer in xray.layers
        if layer.norm is not None and layer.underflowing is not None
    ]
    whole = sum(norm * norm for norm, _ in layers)
    any_nan = any(layer.cosine is not None and math.isnan(layer.cosine) for layer in xray.layers)
    if any_nan or not 0 < whole < math.inf:
        return None
    small = sum(norm * share * norm * share for norm, share in layers)
    return min(1.0, math.sqrt(small / whole))


def judge_window(window: Float16Window) -> Finding:
    """Whether these gradients survive float16 at the histogram's loss scale, by the norm that underflows.

    ``not finite`` in another precision already, ``overflow`` in float16; ``empty``: no gradients at all;
    ``all zero``; it ``underflows``, or little does: it ``survives``, or was ``kept`` in float16. If some
    would overflow, the scaler would halve its scale until none does: the verdict is on the share then. In a
    step of float16's own, flushed gradients are already zero, and the share is a lower bound.
    """
    foretold, scale, share = window.hypothetical, window.loss_scale, None
    worst: ParameterWindow | None = None
    state: str
    grade: Grade = "neutral"
    if window.nonfinite and foretold:
        state, grade = "not finite", "warning"
    elif window.nonfinite:
        state = "overflow"  # what the scaler makes of it is a finding of its own
    elif not window.elements:
        state = "empty"
    elif window.zeros >= window.elements:
        # In float16 that is a step that changes nothing, whether they are true zeros or were flushed.
        state, grade = "all zero", "neutral" if foretold else "warning"
    else:
        # In a step of float16's own, what overflows is a gradient in float32: the scaler halves nothing.
        would_overflow = foretold and window.overflowing > 0
        largest = max((place for place, count in enumerate(window.counts) if count), default=0)
        halvings = max(1, window.first_exponent + largest - 15) if would_overflow else 0
        share = share_by_exponent(window, halvings) if halvings else window.underflowing_share
        scale = math.ldexp(scale, -halvings)
        worst = worst_parameter(window)
        state, grade = "survives" if foretold else "kept", "good"
        if share is not None and share >= UNDERFLOW_SHARE:
            state, grade = "underflows", "warning"
    return Finding(
        subject="float16",
        state=state,
        grade=grade,
        happened=not foretold,
        about="" if state == "not finite" else "fp16",
        numbers={
            "share": share,
            "scale": scale,
            "measured_scale": window.loss_scale,
            "worst_share": None if worst is None else worst.underflowing_share,
            # Of a step that did not run in float16 they are true zeros.
            "zero_share": None if foretold or not window.elements else window.zeros / window.elements,
            "gradients": float(window.nonfinite),
        },
        names={"place": "" if worst is None else worst.name},
        step=window.step,
        precision=window.precision,
        measured_by="histogram",
    )


@dataclass(slots=True, eq=False)
class UnderflowWatch:
    """Notices when underflow begins: in float16's steps, and before, in what it would be."""

    _happens: bool = False
    _would_happen: bool = False

    def begins(self, finding: Finding, *, hypothetical: bool) -> bool:
        """Whether an alarm begins with this judgement on a histogram or an X-ray.

        ``hypothetical``: what was measured did not run in float16.
        """
        share = finding.numbers.get("share")
        if share is None or finding.loss_scale != finding.numbers["measured_scale"]:
            return False
        before = self._would_happen if hypothetical else self._happens
        now = share >= (RECOVERED_SHARE if before else UNDERFLOW_SHARE)
        if hypothetical:
            self._would_happen = now
        else:
            self._happens = now
        return now and not before


# ----------------------------------------------------------------------------------- traced modules

_ORIGINS: Mapping[NonFiniteCause, str] = {
    "overflow": "overflowed",
    "gradient": "gradients not finite",
    "unknown": "cause unknown",
}


def judge_trace(trace: ModulesTraced) -> Finding:
    """On where NaN or Inf began, or else on the module that is closest to an overflow.

    ``bad input``, ``weights lost``, ``buffers lost``: before the step already. ``overflowed``: a float16
    output of finite inputs and weights; ``not finite``: any other output; ``gradients not finite``: all
    outputs were finite; ``cause unknown``. Without NaN and Inf ``would overflow`` in float16, ``fits``, or
    ``unknown`` where no module has a distance to an overflow.
    """
    began, state = trace.first, ""
    nearest = began or (trace.nearest[0] if trace.nearest else None)
    grade: Grade = "error"
    if trace.inputs:
        state = "bad input"
    elif trace.lost_count:
        state = "buffers lost" if trace.cause == "buffer" else "weights lost"
    elif began is not None or trace.cause:
        state = _ORIGINS.get(trace.cause, "not finite")
        if not trace.cause and began is not None:
            state = "overflowed" if began.dtype == "float16" else "not finite"
            state = "gradients not finite" if began.way == "backward" else state
        grade = "warning" if trace.precision == "fp16" else "error"
        if began is None:
            would_overflow = nearest is not None and LARGEST_FLOAT16 < nearest.largest < math.inf
            grade = "warning" if would_overflow else "neutral"
    elif nearest is None or not 0 < nearest.largest < math.inf:
        state, grade = "unknown", "neutral"
    else:
        would_overflow = nearest.largest > LARGEST_FLOAT16
        state, grade = ("would overflow", "warning") if would_overflow else ("fits", "good")
    place = "" if nearest is None else nearest.name or "the model"
    module = {} if nearest is None else {"kind": nearest.kind, "dtype": nearest.dtype, "way": nearest.way}
    return Finding(
        subject="forward",
        state=state,
        grade=grade,
        happened=began is not None,
        about="fp16" if began is None else trace.precision,
        numbers={
            "largest": None if nearest is None else nearest.largest,
            "modules": trace.modules,
            "lost": trace.lost_count,
            "scale": trace.loss_scale,
        },
        names={
            "place": (*trace.inputs, *trace.lost, place)[0],
            "unseen": "operations" if began is None else "inputs",
            **module,
        },
        step=trace.step,
        precision=trace.precision,
        measured_by="trace",
    )


def found_origin(trace: ModulesTraced) -> bool:
    """Whether the traced step had NaN or Inf, and the trace says where that began or why it cannot."""
    return bool(trace.inputs or trace.lost_count or trace.first is not None or trace.cause)


def judge_lost_loss(trace: ModulesTraced | None) -> Finding:
    """Where the NaN or Inf of a loss began, by a trace of such a step: the states of :func:`judge_trace`.

    ``loss alone not finite`` where all outputs were finite; ``loss not finite`` without a trace of it.
    """
    if trace is None or not found_origin(trace):
        return Finding(subject="forward", state="loss not finite", grade="warning", names={"place": ""})
    finding = judge_trace(trace)
    return (
        replace(finding, state="loss alone not finite") if finding.state == _ORIGINS["gradient"] else finding
    )


# ------------------------------------------------------------------------------------------- X-ray


def judge_xray(xray: XRayTaken) -> Finding:
    """Whether gradients agree with FP32's on this batch, by the layer that agrees least.

    ``FP32 loss not finite``, ``AMP loss not finite``; ``overflow``: gradients in fp16, whose scaler would
    skip the step; ``not finite`` in other precisions. Else ``agree``, ``differ`` or ``disagree``. Layers
    without a gradient, or with an FP32 gradient of zero, have no cosine and are not counted: ``nothing to
    compare`` if none has.
    """
    cosines = [(layer.cosine, layer) for layer in xray.layers if layer.cosine is not None]
    bad = [layer for cosine, layer in cosines if math.isnan(cosine)]
    count, layers, worst = 0, len(cosines), None
    state: str = "nothing to compare"
    grade: Grade = "neutral"
    if not math.isfinite(xray.loss_fp32):
        state, grade = "FP32 loss not finite", "error"
    elif not math.isfinite(xray.loss_amp):
        state, grade = "AMP loss not finite", "error"
    elif bad:
        count, layers, worst = len(bad), len(xray.layers), bad[0]
        state, grade = ("overflow", "warning") if xray.precision == "fp16" else ("not finite", "error")
    else:
        states = [(layer_state(pair[1]), pair) for pair in cosines]
        for worse, worse_grade in _GRADES.items():
            of_state = [pair for state_of_pair, pair in states if state_of_pair == worse]
            if of_state:
                state, grade, count = worse, worse_grade, len(of_state)
                _, worst = min(of_state, key=lambda pair: pair[0])
                break
    return Finding(
        subject="agreement",
        state=state,
        grade=grade,
        happened=False,
        about="" if state == "FP32 loss not finite" else xray.precision,
        numbers={
            "cosine": None if worst is None else worst.cosine,
            "count": float(count),
            "layers": float(layers),
            "loss": xray.loss_amp,
            "other_loss": xray.loss_fp32,
            "scale": xray.loss_scale,
            "random": float(xray.random),
        },
        names={"place": "" if worst is None else worst.name or "the model"},
        step=xray.step,
        precision=xray.precision,
        measured_by="x-ray",
    )


def judge_xray_underflow(xray: XRayTaken) -> Finding | None:
    """Whether gradients survived float16 in an X-ray, ``underflows`` or ``kept``; None outside float16.

    It sees what is lost between the layers, too, but of a single batch.
    """
    share = xray_share(xray)
    if share is None:
        return None
    worst = max(xray.layers, key=lambda layer: layer.underflowing or 0.0)
    underflows = share >= UNDERFLOW_SHARE
    return Finding(
        subject="float16",
        state="underflows" if underflows else "kept",
        grade="warning" if underflows else "good",
        happened=False,
        about="fp16",
        numbers={
            "share": share,
            "scale": xray.loss_scale,
            "measured_scale": xray.loss_scale,
            "worst_share": worst.underflowing if underflows and share < EVERYWHERE_SHARE else None,
        },
        names={"place": (worst.name or "the model") if underflows else ""},
        step=xray.step,
        precision=xray.precision,
        measured_by="x-ray",
    )


LayerState = Literal["nothing to compare", "agree", "differ", "disagree"]
"""Of one layer, by its cosine to FP32's."""

_GRADES: Mapping[str, Grade] = {
    "disagree": "error",
    "differ": "warning",
    "agree": "good",
}
"""The worst first: the first that any layer is in is the verdict."""


def layer_state(layer: LayerAgreement) -> LayerState:
    """Whether the gradients of one layer agree; NaN disagrees."""
    if layer.cosine is None:
        return "nothing to compare"
    if layer.cosine >= XRAY_SAFE_COSINE:
        return "agree"
    return "differ" if layer.cosine >= XRAY_CAREFUL_COSINE else "disagree"


def least_agreeing(layers: Iterable[LayerAgreement]) -> list[LayerAgreement]:
    """The layers that can be compared, those that agree least first; NaN is the worst."""
    return sorted(
        (layer for layer in layers if layer.cosine is not None),
        key=lambda layer: -math.inf if layer.cosine is None or math.isnan(layer.cosine) else layer.cosine,
    )
