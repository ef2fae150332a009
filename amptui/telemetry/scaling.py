"""Judgements on the loss scaler: what it is doing, what a skip means, and how bad that is.

What is normal follows from how ``torch.amp.GradScaler`` works: it starts high on purpose, halves its
scale at each overflow and doubles it after ``growth_interval`` steps without one, so single skips are
expected. Its scale has no floor: if every step overflows it halves down to 0, and the first finite step
after that divides by 0 and fills all weights with NaN.
"""

from dataclasses import dataclass

from amptui.records.findings import ModulesTraced
from amptui.records.run import COLLAPSE_SKIPS, MIN_SOUND_SCALE, LossScaleChanged, StepSkipped
from amptui.telemetry.finding import Finding, Grade
from amptui.telemetry.health import judge_lost_loss, judge_trace

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
class ScalerView:
    """The GradScaler as of the last ``fp16`` step, and what it did in those that were measured."""

    scale: float | None = None
    """None while there was no such step."""
    growth_tracker: int | None = None
    growth_interval: int | None = None
    applied: int = 0
    """``fp16`` steps that changed the weights."""
    skipped: int = 0
    skips_in_a_row: int = 0
    """Up to the newest step; 0 if it was applied."""
    recent_skips: int = 0
    """Among the last ``RECENT_STEPS`` steps."""
    lost_loss_step: int | None = None
    """The newest of the recent skips whose loss was not finite."""
    has_grown: bool = False
    """Whether the scale ever grew in this run."""
    newest_skip: StepSkipped | None = None
    last_change: LossScaleChanged | None = None

    @property
    def steps(self) -> int:
        """All that were measured."""
        return self.applied + self.skipped


def judge_scaler(scaler: ScalerView, trace: ModulesTraced | None = None) -> Finding:
    """What the scaler did, the worst first; ``trace``: one that still explains the newest skip.

    A recent skip with a loss that was not finite, which no scale helps: the states of
    :func:`judge_lost_loss`; an error once the ``MAJORITY`` of the recent steps was skipped, or the scale
    collapses.
    ``collapsed``: the scale is below ``MIN_SOUND_SCALE``; ``collapsing``: ``COLLAPSE_SKIPS`` in a row.
    ``calibrating``: no more than ``CALIBRATION_SKIPS`` in all and no growth yet. ``skipped mostly``;
    ``frequent`` from ``FREQUENT_SKIPS`` on, ``occasional``; ``none recently``, ``none``; ``never ran``.
    """
    recent = min(scaler.steps, RECENT_STEPS)
    mostly = scaler.recent_skips > MAJORITY * recent
    skip, lost_step = scaler.newest_skip, scaler.lost_loss_step
    origin = skip_origin(skip, trace, loss_is_finite=lost_step is None)
    collapsed = scaler.scale is not None and scaler.scale < MIN_SOUND_SCALE
    falls = scaler.skips_in_a_row >= COLLAPSE_SKIPS
    cases: tuple[tuple[bool, str, Grade], ...] = (
        (not scaler.steps, "never ran", "unknown"),
        (lost_step is not None, origin.state, "error" if mostly or collapsed or falls else "warning"),
        (collapsed, "collapsed", "error"),
        (falls, "collapsing", "error"),
        (
            bool(scaler.recent_skips) and calibrates(scaler.skipped, grown=scaler.has_grown),
            "calibrating",
            "neutral",
        ),
        (mostly, "skipped mostly", "error"),
        (scaler.recent_skips >= FREQUENT_SKIPS, "frequent", "warning"),
        (scaler.recent_skips > 0, "occasional", "good"),
        (scaler.skipped > 0, "none recently", "good"),
        (True, "none", "good"),
    )
    state, grade = next((state, grade) for holds, state, grade in cases if holds)
    scale = scaler.scale
    if lost_step is not None:  # the one that step ran with
        scale = skip.loss_scale if skip is not None and skip.step == lost_step else None
    numbers = {
        "steps": scaler.steps,
        "skips": scaler.skipped,
        "recent": recent,
        "recent_skips": scaler.recent_skips,
        "in_a_row": scaler.skips_in_a_row,
        "scale": scale,
    }
    return Finding(
        subject="overflow",
        state=state,
        grade=grade,
        freshness="never measured" if not scaler.steps else "fresh",
        about="fp16",
        precision="fp16",
        numbers={**origin.numbers, **numbers},
        names=origin.names,
        step=lost_step,
        measured_by="precision" if not scaler.steps else "trace" if grade in ("warning", "error") else "",
    )


def skip_origin(skip: StepSkipped | None, trace: ModulesTraced | None, *, loss_is_finite: bool) -> Finding:
    """Where the trouble of a skip began: by a trace, or else the module of its worst gradient."""
    if not loss_is_finite:  # its gradients only follow from it
        return judge_lost_loss(trace)
    if trace is not None and trace.first is not None:
        return judge_trace(trace)
    suspect = skip.names[0] if skip is not None and skip.names else ""
    place = suspect.rpartition(".")[0] or suspect
    return Finding(subject="forward", state="unknown", grade="unknown", names={"place": place})


def calibrates(skips: int, *, grown: bool) -> bool:
    """Whether the newest of ``skips`` skips in all belongs to the search for the first scale."""
    return skips <= CALIBRATION_SKIPS and not grown
