"""Verdicts on the loss scaler in plain English: normal, or what to do.

What is normal follows from how ``torch.amp.GradScaler`` works: it starts high on purpose, halves its
scale at each overflow and doubles it after ``growth_interval`` steps without one, so single skips are
expected. Its scale has no floor: if every step overflows it halves down to 0, and the first finite step
after that divides by 0 and fills all weights with NaN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from amptui import units
from amptui.findings import ModuleRange
from amptui.records import StepSkipped
from amptui.telemetry.health import module_of
from amptui.telemetry.nonfinite import FORWARD_OVERFLOW, FORWARD_OVERFLOW_EXPLAINED, Judgement
from amptui.telemetry.view import ScalerVerdict, Verdict

CALIBRATION_SKIPS = 4
"""Up to so many skips at the start of a run are the search for the first scale: 65,536 down to 4,096."""

COLLAPSE_SKIPS = 5
"""After so many skips in a row another halving is unlikely to help; from 65,536 the scale is then 2,048."""

MIN_SOUND_SCALE = 1.0
"""Below it the scaler shrinks gradients, the opposite of its purpose."""

RECENT_STEPS = 100
"""A skip is recent for so many float16 steps: a 20th of the 2,000 applied ones before a growth."""

FREQUENT_SKIPS = 5
"""So many recent skips are too many: the scale falls to 1/32 in few steps, while a healthy scaler skips
about one step in ``growth_interval``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerFacts:
    """What is known of a run's float16 steps; unmeasured ones are not counted."""

    steps: int = 0
    skips: int = 0
    skips_in_a_row: int = 0
    """Up to the newest step; 0 if it was applied."""
    recent_skips: int = 0
    """Among the last ``RECENT_STEPS`` steps."""
    steps_since_skip: int | None = None
    """Steps applied since the newest skip; None without one."""
    forward_overflow_step: int | None = None
    """The newest of the recent skips whose loss was not finite."""
    scale: float | None = None
    scale_has_grown: bool = False
    """Whether the scale ever grew in this run."""
    newest_skip_step: int | None = None
    suspect: str = ""
    """The layer with the worst gradient of the newest skip; empty if none was named."""


def judge_scaler(facts: ScalerFacts, began: ModuleRange | None = None) -> ScalerVerdict:
    """What the scaler is doing, the worst first; ``began``: the module that a trace found to overflow first.

    Forward overflow: a recent skip had a loss that was not finite, and no scale helps. Collapsing:
    ``COLLAPSE_SKIPS`` in a row, or a scale below ``MIN_SOUND_SCALE``. Healthy: no recent skip.
    Calibrating: recent skips, but no more than ``CALIBRATION_SKIPS`` in all and no growth yet. Backing off:
    any other recent skip, a warning from ``FREQUENT_SKIPS`` on.
    """
    if not facts.steps:
        return ScalerVerdict()
    if facts.forward_overflow_step is not None:
        return _forward_overflow(facts, facts.forward_overflow_step, began)
    if _collapses(facts.skips_in_a_row, facts.scale):
        return _collapsing(facts, began)
    if not facts.recent_skips:
        return _healthy(facts)
    if _calibrates(facts.skips, scale_has_grown=facts.scale_has_grown):
        return ScalerVerdict(
            state="calibrating",
            text="normal: the scale starts high on purpose and halves until the gradients fit; nothing to do",
            rule=f"at most {CALIBRATION_SKIPS} skips before the first growth: {facts.skips} so far",
        )
    return _backing_off(facts)


def _forward_overflow(facts: ScalerFacts, step: int, began: ModuleRange | None) -> ScalerVerdict:
    collapses = _collapses(facts.skips_in_a_row, facts.scale)
    return ScalerVerdict(
        state="forward overflow",
        severity="error" if collapses else "warning",
        text=FORWARD_OVERFLOW + _began_in(began),
        rule=f"a skip with a non-finite loss in the last {RECENT_STEPS} steps: step {units.count(step)}",
    )


def _collapsing(facts: ScalerFacts, began: ModuleRange | None) -> ScalerVerdict:
    if facts.skips_in_a_row >= COLLAPSE_SKIPS:
        rule = f"{COLLAPSE_SKIPS} skips in a row: {units.count(facts.skips_in_a_row)} so far"
        text = "every step is skipped, nothing is learned: switch to bf16 or FP32"
    else:
        rule = f"scale below {units.count(MIN_SOUND_SCALE)}: {units.count(facts.scale)}"
        text = "the scale has collapsed and shrinks gradients: switch to bf16 or FP32"
    text += _look_at(began, facts.suspect)
    return ScalerVerdict(state="collapsing", severity="error", text=text, rule=rule)


def _healthy(facts: ScalerFacts) -> ScalerVerdict:
    since = facts.steps if facts.steps_since_skip is None else facts.steps_since_skip
    return ScalerVerdict(
        state="healthy",
        text="no recent overflow: nothing to do",
        rule=f"no skip in the last {RECENT_STEPS} steps: {units.count(since)} without one",
    )


def _backing_off(facts: ScalerFacts) -> ScalerVerdict:
    if facts.recent_skips >= FREQUENT_SKIPS:
        return ScalerVerdict(
            state="backing off",
            severity="warning",
            text="too many overflows, each skips a step: lower the learning rate, or use bf16",
            rule=f"{FREQUENT_SKIPS} skips in the last {RECENT_STEPS} steps: {facts.recent_skips}",
        )
    return ScalerVerdict(
        state="backing off",
        text="normal: the scaler finds its limit by occasional overflows; nothing to do",
        rule=f"a skip in the last {RECENT_STEPS} steps: {facts.recent_skips}",
    )


def judge_skip(
    skip: StepSkipped,
    *,
    scale_after: float | None,
    skips_before: int,
    scale_has_grown: bool,
    began: ModuleRange | None = None,
) -> Judgement:
    """What the newest skip means.

    ``scale_after`` is the scale after it, None if unknown; ``skips_before`` counts the run's earlier skips;
    ``scale_has_grown``: whether the scale ever grew in this run; ``began`` is the module that a trace found
    to overflow first.
    """
    scale = skip.loss_scale if scale_after is None else scale_after
    collapses = _collapses(skip.consecutive, scale)
    if skip.loss is not None and not math.isfinite(skip.loss):
        text = FORWARD_OVERFLOW + _began_in(began)
        return Judgement(Verdict("error" if collapses else "warning", text), FORWARD_OVERFLOW_EXPLAINED)
    where = _look_at(began, suspect_of(skip.names))
    if scale < MIN_SOUND_SCALE:
        text = f"the scale has collapsed: switch to bf16 or FP32{where}"
        return Judgement(Verdict("error", text), _COLLAPSED)
    if collapses:
        text = f"the scale keeps falling: switch to bf16 or FP32{where}"
        return Judgement(Verdict("error", text), _FALLING)
    if _calibrates(skips_before + 1, scale_has_grown=scale_has_grown):
        return Judgement(Verdict("info", "calibration, normal"), _CALIBRATION)
    return Judgement(Verdict("info", "normal"), _NORMAL)


_CALIBRATION = (
    "The scaler starts with a high scale on purpose and halves it until the gradients fit into float16: the "
    "first few skipped steps are part of that. Nothing to do."
)

_NORMAL = (
    "At this scale a gradient exceeded float16's range: the scaler skipped the step and halved its scale, "
    "which it will double again later. An occasional skip is normal: nothing to do."
)

_FALLING = (
    f"After {COLLAPSE_SKIPS} skips in a row another halving is unlikely to help, and nothing is learned "
    "meanwhile. Switch to bf16 or FP32, then check the layer whose gradients are not finite."
)

_COLLAPSED = (
    "Below 1 the scaler shrinks gradients, the opposite of its purpose; at 0 the next step would turn every "
    "weight into NaN. Switch to bf16 or FP32, then check the layer whose gradients are not finite."
)


def suspect_of(names: Sequence[str]) -> str:
    """The layer of the worst of these parameters; empty without names."""
    return names[0].rpartition(".")[0] or names[0] if names else ""


def _began_in(began: ModuleRange | None) -> str:
    """Names the module whose output was non-finite first; empty if it was a gradient."""
    return f"; it began in {module_of(began)}" if began is not None and began.way == "forward" else ""


def _look_at(began: ModuleRange | None, suspect: str) -> str:
    where = suspect if began is None else module_of(began)
    return f"; check {where}" if where else ""


def _collapses(skips_in_a_row: int, scale: float | None) -> bool:
    return skips_in_a_row >= COLLAPSE_SKIPS or (scale is not None and scale < MIN_SOUND_SCALE)


def _calibrates(skips: int, *, scale_has_grown: bool) -> bool:
    """Whether the newest of ``skips`` skips in all belongs to the search for the first scale."""
    return skips <= CALIBRATION_SKIPS and not scale_has_grown
