"""The plain-words judgement of what the loss scaler does and of NaN and Inf: normal, or what to do.

What is normal follows from how ``torch.amp.GradScaler`` works: it starts high on purpose, halves its
scale at each overflow and doubles it after ``growth_interval`` steps without one, so that single skips
belong to it. Its scale has no floor: when every step overflows it halves down to 0, and the first
finite step after that divides by 0 and fills all weights with NaN.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from amptui import units
from amptui.records import NonFinite, Severity, StepSkipped

CALIBRATION_SKIPS = 4
"""Skips at the start of a run that still are the search for the first scale: 65,536 down to 4,096."""

COLLAPSE_SKIPS = 5
"""Skips in a row from which on no halving is likely to help; from 65,536 the scale is then at 2,048."""

LOWEST_SOUND_SCALE = 1.0
"""Below it the scaler shrinks gradients, the opposite of its purpose."""

FORWARD_OVERFLOW = "the forward pass overflowed: scaling cannot help; use bf16 or FP32"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How bad it is, and why or what to do in plain words."""

    severity: Severity
    text: str


def judge_skip(
    skip: StepSkipped, *, scale_after: float | None, skips_before: int, scale_has_grown: bool
) -> Verdict:
    """What the newest skip means.

    ``scale_after`` is the scale it left, None when not known; ``skips_before`` counts the run's earlier
    skips; ``scale_has_grown`` tells whether the scaler ever found its scale too low in this run.
    """
    scale = skip.loss_scale if scale_after is None else scale_after
    collapsed = scale < LOWEST_SOUND_SCALE
    in_a_row = skip.consecutive >= COLLAPSE_SKIPS
    if skip.loss is not None and not math.isfinite(skip.loss):
        return Verdict("error" if collapsed or in_a_row else "warning", FORWARD_OVERFLOW)
    if collapsed:
        return Verdict("error", f"the scale has collapsed: switch to bf16 or FP32{_look_at(skip.names)}")
    if in_a_row:
        return Verdict("warning", f"the scale keeps falling: switch to bf16 or FP32{_look_at(skip.names)}")
    if skips_before < CALIBRATION_SKIPS and not scale_has_grown:
        return Verdict("info", "calibration, normal")
    return Verdict("info", "normal")


def judge_nonfinite(found: NonFinite, precision: str | None) -> Verdict:
    """What NaN or Inf means in a step that ran in ``precision``, None when that is not known."""
    if found.what == "buffer":
        return Verdict("error", "poisoned for good in every precision: go back to a checkpoint")
    if precision == "fp16":
        advice = {
            "loss": FORWARD_OVERFLOW,
            "gradient": "the scaler skips such steps",
            "activation": "this layer leaves float16's range: keep it in FP32, or use bf16",
        }
        return Verdict("warning", advice[found.what])
    return Verdict("error", _OUTSIDE_FP16[found.what])


_OUTSIDE_FP16: Mapping[str, str] = {
    "loss": "no scaler skips this step: lower the learning rate, or go back to a checkpoint",
    "gradient": "no scaler skips this step: it spoils the weights; go back to a checkpoint",
    "activation": "look at this layer and at what it is fed",
}


def what_is_not_finite(found: NonFinite) -> str:
    """``NaN in the gradient of features.13.conv.weight (+2)``."""
    kind = "NaN" if found.kind == "nan" else "Inf"
    if found.what == "loss":
        return f"the loss is {kind}"
    place = {"gradient": "the gradient of", "buffer": "the buffer", "activation": "the output of"}[found.what]
    return f"{kind} in {place} {named(found.names, found.count)}"


def named(names: tuple[str, ...], count: int | None) -> str:
    """The worst of ``count`` names and how many more there are: ``features.13.conv.weight (+2)``."""
    if not names:
        return f"{units.count(count)} tensors"
    return f"{names[0]} (+{units.count(count - 1)})" if count is not None and count > 1 else names[0]


def _look_at(names: tuple[str, ...]) -> str:
    """Points at the layer that the worst parameter belongs to, if one is known."""
    return f"; look at {names[0].rpartition('.')[0] or names[0]}" if names else ""
