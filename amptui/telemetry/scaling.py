"""Judgements on the loss scaler: what it is doing, what a skip means, and how bad that is.

What is normal follows from how ``torch.amp.GradScaler`` works: it starts high on purpose, halves its
scale at each overflow and doubles it after ``growth_interval`` steps without one, so single skips are
expected. Its scale has no floor: if every step overflows it halves down to 0, and the first finite step
after that divides by 0 and fills all weights with NaN.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from amptui.records.findings import ModuleRange, ModulesTraced
from amptui.records.run import COLLAPSE_SKIPS, MIN_SOUND_SCALE, Severity, StepSkipped

CALIBRATION_SKIPS = 4
"""Up to so many skips at the start of a run are the search for the first scale: 65,536 down to 4,096."""

RECENT_STEPS = 100
"""A skip is recent for so many float16 steps: a 20th of the 2,000 applied ones before a growth."""

FREQUENT_SKIPS = 5
"""So many recent skips are too many: the scale falls to 1/32 in few steps, while a healthy scaler skips
about one step in ``growth_interval``."""

ScalerState = Literal["unused", "calibrating", "healthy", "backing off", "collapsing", "forward overflow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerFacts:
    """What is known of a run's float16 steps; unmeasured ones are not counted."""

    steps: int = 0
    skips: int = 0
    skips_in_a_row: int = 0
    """Up to the newest step; 0 if it was applied."""
    recent_skips: int = 0
    """Among the last ``RECENT_STEPS`` steps."""
    forward_overflow_step: int | None = None
    """The newest of the recent skips whose loss was not finite."""
    scale: float | None = None
    scale_has_grown: bool = False
    """Whether the scale ever grew in this run."""
    newest_skip: StepSkipped | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerVerdict:
    """What the loss scaler is doing, and what that follows from."""

    state: ScalerState = "unused"
    severity: Severity = "info"
    facts: ScalerFacts = field(default_factory=ScalerFacts)
    began: ModuleRange | None = None
    """The module that a trace found to overflow first."""
    trace: ModulesTraced | None = None
    """A trace that still explains the newest skip."""
    is_past: bool = False
    """Another precision runs: what the scaler did is over."""


def judge_scaler(facts: ScalerFacts, trace: ModulesTraced | None = None) -> ScalerVerdict:
    """What the scaler is doing, the worst first; ``trace``: one that still explains the newest skip.

    Forward overflow: a recent skip had a loss that was not finite, and no scale helps. Collapsing:
    ``COLLAPSE_SKIPS`` in a row, or a scale below ``MIN_SOUND_SCALE``. Healthy: no recent skip.
    Calibrating: recent skips, but no more than ``CALIBRATION_SKIPS`` in all and no growth yet. Backing off:
    any other recent skip, a warning from ``FREQUENT_SKIPS`` on.
    """
    state: ScalerState = "backing off"
    severity: Severity = "warning" if facts.recent_skips >= FREQUENT_SKIPS else "info"
    collapses = _collapses(facts.skips_in_a_row, facts.scale)
    if not facts.steps:
        state, severity = "unused", "info"
    elif facts.forward_overflow_step is not None:
        state, severity = "forward overflow", "error" if collapses else "warning"
    elif collapses:
        state, severity = "collapsing", "error"
    elif not facts.recent_skips:
        state, severity = "healthy", "info"
    elif _calibrates(facts.skips, scale_has_grown=facts.scale_has_grown):
        state, severity = "calibrating", "info"
    return ScalerVerdict(
        state=state, severity=severity, facts=facts, began=trace.first if trace else None, trace=trace
    )


SkipMeaning = Literal["forward overflow", "collapsed", "falling", "calibration", "normal"]
"""The loss itself overflowed; the scale is below ``MIN_SOUND_SCALE``; too many skips in a row; the search for
the first scale; an occasional skip."""


def judge_skip(
    skip: StepSkipped, *, scale_after: float | None, skips_before: int, scale_has_grown: bool
) -> tuple[SkipMeaning, Severity]:
    """What the newest skip means.

    ``scale_after`` is the scale after it, None if unknown; ``skips_before`` counts the run's earlier skips;
    ``scale_has_grown``: whether the scale ever grew in this run.
    """
    scale = skip.loss_scale if scale_after is None else scale_after
    collapses = _collapses(skip.consecutive, scale)
    if skip.loss is not None and not math.isfinite(skip.loss):
        return "forward overflow", "error" if collapses else "warning"
    if collapses:
        return "collapsed" if scale < MIN_SOUND_SCALE else "falling", "error"
    if _calibrates(skips_before + 1, scale_has_grown=scale_has_grown):
        return "calibration", "info"
    return "normal", "info"


def _collapses(skips_in_a_row: int, scale: float | None) -> bool:
    return skips_in_a_row >= COLLAPSE_SKIPS or (scale is not None and scale < MIN_SOUND_SCALE)


def _calibrates(skips: int, *, scale_has_grown: bool) -> bool:
    """Whether the newest of ``skips`` skips in all belongs to the search for the first scale."""
    return skips <= CALIBRATION_SKIPS and not scale_has_grown
