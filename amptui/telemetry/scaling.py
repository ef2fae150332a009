"""Judgements on the loss scaler: what it is doing, what a skip means, and how bad that is.

What is normal follows from how ``torch.amp.GradScaler`` works: it starts high on purpose, halves its
scale at each overflow and doubles it after ``growth_interval`` steps without one, so single skips are
expected. Its scale has no floor: if every step overflows it halves down to 0, and the first finite step
after that divides by 0 and fills all weights with NaN.
"""

import math
from dataclasses import dataclass
from typing import Literal

from amptui.records.findings import ModulesTraced
from amptui.records.run import COLLAPSE_SKIPS, MIN_SOUND_SCALE, Severity, StepSkipped
from amptui.telemetry.finding import Finding, Grade
from amptui.telemetry.health import judge_trace

CALIBRATION_SKIPS = 4
"""Up to so many skips at the start of a run are the search for the first scale: 65,536 down to 4,096."""

RECENT_STEPS = 100
"""A skip is recent for so many float16 steps: a 20th of the 2,000 applied ones before a growth."""

MAJORITY = 0.5
"""A larger fraction of skipped steps among the recent ones is no search for a scale."""

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
    forward_overflow_step: int | None = None
    """The newest of the recent skips whose loss was not finite."""
    scale: float | None = None
    scale_has_grown: bool = False
    """Whether the scale ever grew in this run."""
    newest_skip: StepSkipped | None = None


def judge_scaler(facts: ScalerFacts, trace: ModulesTraced | None = None) -> Finding:
    """What the scaler did, the worst first; ``trace``: one that still explains the newest skip.

    A recent skip with a loss that was not finite, which no scale helps: the states of :func:`judge_trace`,
    ``loss not finite`` without a trace, ``loss alone not finite`` where all outputs were finite; an error
    once the ``MAJORITY`` of the recent steps was skipped, or the scale collapses.
    ``collapsed``: the scale is below ``MIN_SOUND_SCALE``; ``collapsing``: ``COLLAPSE_SKIPS`` in a row.
    ``calibrating``: no more than ``CALIBRATION_SKIPS`` in all and no growth yet. ``skipped mostly``;
    ``frequent`` from ``FREQUENT_SKIPS`` on, ``occasional``; ``none recently``, ``none``; ``never ran``.
    """
    recent, skip = min(facts.steps, RECENT_STEPS), facts.newest_skip
    mostly = facts.recent_skips > MAJORITY * recent
    origin = None if trace is None else judge_trace(trace)
    lost = facts.forward_overflow_step is not None
    collapsed = facts.scale is not None and facts.scale < MIN_SOUND_SCALE
    falls = facts.skips_in_a_row >= COLLAPSE_SKIPS
    began = "loss not finite" if origin is None else origin.state
    if began == "gradients not finite":
        began = "loss alone not finite"
    cases: tuple[tuple[bool, str, Grade], ...] = (
        (not facts.steps, "never ran", "unknown"),
        (lost, began, "error" if mostly or collapsed or falls else "warning"),
        (collapsed, "collapsed", "error"),
        (falls, "collapsing", "error"),
        (
            bool(facts.recent_skips) and _calibrates(facts.skips, grown=facts.scale_has_grown),
            "calibrating",
            "neutral",
        ),
        (mostly, "skipped mostly", "error"),
        (facts.recent_skips >= FREQUENT_SKIPS, "frequent", "warning"),
        (facts.recent_skips > 0, "occasional", "good"),
        (facts.skips > 0, "none recently", "good"),
        (True, "none", "good"),
    )
    state, grade = next((state, grade) for holds, state, grade in cases if holds)
    # The parameters of a skip with such a loss only follow from it.
    suspect = skip.names[0] if skip is not None and skip.names and not lost else ""
    names = {"place": suspect.rpartition(".")[0] or suspect}
    numbers = {
        "steps": facts.steps,
        "skips": facts.skips,
        "recent": recent,
        "recent_skips": facts.recent_skips,
        "in_a_row": facts.skips_in_a_row,
        "scale": facts.scale,
    }
    if trace is not None and origin is not None and (lost or trace.first is not None):
        names, numbers = dict(origin.names), {**origin.numbers, **numbers}
    return Finding(
        subject="overflow",
        state=state,
        grade=grade,
        freshness="never measured" if not facts.steps else "fresh",
        about="fp16",
        precision="fp16",
        numbers=numbers,
        names=names,
        measured_by="precision" if not facts.steps else "trace" if grade in ("warning", "error") else "",
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
    collapses = skip.consecutive >= COLLAPSE_SKIPS or scale < MIN_SOUND_SCALE
    if skip.loss is not None and not math.isfinite(skip.loss):
        return "forward overflow", "error" if collapses else "warning"
    if collapses:
        return "collapsed" if scale < MIN_SOUND_SCALE else "falling", "error"
    if _calibrates(skips_before + 1, grown=scale_has_grown):
        return "calibration", "info"
    return "normal", "info"


def _calibrates(skips: int, *, grown: bool) -> bool:
    """Whether the newest of ``skips`` skips in all belongs to the search for the first scale."""
    return skips <= CALIBRATION_SKIPS and not grown
