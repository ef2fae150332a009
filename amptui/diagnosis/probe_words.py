"""Loss scale, float16 histogram, module trace and X-ray in detail: what findings on them do not say."""

import math

from amptui.base import units
from amptui.diagnosis.activity import newest
from amptui.diagnosis.finding_fields import cosine_words, distance_words, output_words
from amptui.diagnosis.labels import layer_label, precision_label
from amptui.records.findings import Float16Window, LayerAgreement, ModuleRange, ModulesTraced, XRayTaken
from amptui.records.run import LossScaleChanged
from amptui.telemetry.numerics import MIN_OF
from amptui.telemetry.view import NumericsView, SessionView

# ------------------------------------------------------------------------------------ the loss scale


def idle_words(view: SessionView) -> str:
    """``kept while FP32 runs``; "" if the scale is in use or there is none."""
    if view.scaler.scale is None or view.precision in (None, "fp16"):
        return ""
    return f"kept while {precision_label(view.precision)} runs"


def last_change(change: LossScaleChanged | None) -> str:
    """``backoff at step 612: 131,072 → 65,536``; empty without a change."""
    if change is None:
        return ""
    return (
        f"{change.reason} at step {units.count(change.step)}: {scale_move(change.previous, change.current)}"
    )


def scale_move(previous: float, current: float | None) -> str:
    """``131,072 → 65,536``; only the first if the second is unknown."""
    return units.count(previous) + ("" if current is None else f" → {units.count(current)}")


# ------------------------------------------------------------------------------- the float16 window


def at_scale(loss_scale: float | None, *, hypothetical: bool) -> str:
    """``at scale 65,536``, or ``as float16 would see them, scale 65,536``; empty without a scale."""
    if loss_scale is None:
        return ""
    return f"{'as float16 would see them,' if hypothetical else 'at'} scale {units.count(loss_scale)}"


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
    """``at least 2.4× in the last 256 measured steps``; empty if there are none."""
    least = numerics.min_headroom
    if least is None:
        return ""
    if not math.isfinite(least):
        return f"NaN or Inf in the last {MIN_OF} measured steps"
    return f"at least {units.headroom(least)} in the last {MIN_OF} measured steps"


# ----------------------------------------------------------------------------------- traced modules


def what_overflowed_first(trace: ModulesTraced) -> str:
    """``Inf in the output of features.12.conv (Conv2d, float16)``; empty if nothing did."""
    if trace.first is None:
        return ""
    return f"{'NaN' if math.isnan(trace.first.largest) else 'Inf'} in {place_of(trace.first)}"


def place_of(module: ModuleRange) -> str:
    """``the output of features.12.conv (Conv2d, float16)``, or its output gradient."""
    return output_words(module.way, module.name or "the model", module.kind, module.dtype)


def distance(module: ModuleRange) -> str:
    """``41,200, 1.6× below 65,504``."""
    return distance_words(module.largest)


# ------------------------------------------------------------------------------------------- X-ray


def layers_legend(xray: XRayTaken) -> str:
    """What the columns of an X-ray's layers are."""
    low = "FP8" if xray.precision == "fp8" else "AMP"
    return (
        f"{low}'s gradients and FP32's of the same batch and weights: cosine 1 is the same direction, "
        f"error |{low}−FP32| / |FP32|, lost: zero only in {low}"
    )


def xray_losses(xray: XRayTaken) -> str:
    """``loss 0.503 in FP32, 0.504 in AMP fp16``."""
    low = f"{units.loss(xray.loss_amp)} in {precision_label(xray.precision)}"
    return f"loss {units.loss(xray.loss_fp32)} in FP32, {low}"


def layer_line(layer: LayerAgreement) -> str:
    """``0.9991 in features.12 (Conv2d): relative error 0.0312, 0.024% lost``."""
    agrees = f"{cosine_words(layer.cosine, 4)} in {layer_label(layer.name)}"
    lost = "" if layer.lost is None else f", {units.share(layer.lost, 1)} lost"
    return f"{agrees} ({layer.kind}): relative error {units.loss(layer.relative_error)}{lost}"
