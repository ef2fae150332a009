"""The loss scaler, from the steps and its records: what it is doing, what a skip means, how bad that is.

What is normal follows from how ``torch.amp.GradScaler`` works: it starts high on purpose, halves its
scale at each overflow and doubles it after ``growth_interval`` steps without one, so single skips are
expected. Its scale has no floor: if every step overflows it halves down to 0, and the first finite step
after that divides by 0 and fills all weights with NaN.
"""

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from amptui.records.findings import ModulesTraced
from amptui.records.run import COLLAPSE_SKIPS, MIN_SOUND_SCALE, LossScaleChanged, StepSkipped
from amptui.records.steps import Steps
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


@dataclass(slots=True, eq=False)
class ScalerWatch:
    """Follows the scale, and counts applied and skipped ``fp16`` steps."""

    counts: ScalerView = field(default_factory=ScalerView)
    """What adds up; the rest of a view follows from the newest row, change and skips."""
    skips_told: int = 0
    _recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Of skipped steps the place among the measured ones; its number if the loss was not finite, else 0."""
    _last: Steps | None = None
    """The row of the newest step with a scale."""

    def count(self, **changes: Any) -> None:
        """Change what adds up."""
        self.counts = replace(self.counts, **changes)

    def add(self, steps: Steps) -> None:
        """Add steps; unmeasured ones count neither as applied nor as skipped."""
        if steps.precision != "fp16":
            return
        applied, skipped, in_a_row = self.counts.applied, self.counts.skipped, self.counts.skips_in_a_row
        if any(steps.skipped):
            for step, (skip, loss) in enumerate(zip(steps.skips, steps.loss, strict=True), steps.first_step):
                if skip:
                    skipped, in_a_row = skipped + 1, in_a_row + 1
                    is_finite = loss is None or math.isfinite(loss)
                    self._recent.append((applied + skipped, 0 if is_finite else step))
                elif skip is not None:
                    applied, in_a_row = applied + 1, 0
        elif measured := steps.count - steps.unmeasured:
            applied, in_a_row = applied + measured, 0
        self.count(applied=applied, skipped=skipped, skips_in_a_row=in_a_row)
        self._last = steps.newest("loss_scale") or self._last

    def add_change(self, change: LossScaleChanged) -> None:
        """Add a change of the scale."""
        self.count(last_change=change, has_grown=self.counts.has_grown or change.reason == "growth")

    def add_skip(self, skip: StepSkipped) -> None:
        """Add the record of a skipped step."""
        self.count(newest_skip=skip)
        self.skips_told += 1

    def rewind(self, next_step: int) -> None:
        """Forget the scale of steps from ``next_step`` on, and their changes of it; the counts stay."""
        if self._last is not None and self._last.step >= next_step:
            self._last = None
        if (change := self.counts.last_change) is not None and change.step >= next_step:
            self.count(last_change=None)

    @property
    def scale(self) -> float | None:
        """The scale of the next ``fp16`` step; None while it is unknown."""
        change = self._newer_change()
        return change.current if change else self._last.loss_scale[0] if self._last else None

    def view(self) -> ScalerView:
        """The scaler after the newest known step."""
        growth_tracker = self._last.growth_tracker[0] if self._last else None
        steps = self.counts.steps
        recent = [lost_step for place, lost_step in self._recent if steps - place < RECENT_STEPS]
        return replace(
            self.counts,
            scale=self.scale,
            # Growth and backoff both reset the tracker.
            growth_tracker=0 if self._newer_change() else growth_tracker,
            recent_skips=len(recent),
            lost_loss_step=next(filter(None, reversed(recent)), None),
        )

    def _newer_change(self) -> LossScaleChanged | None:
        """The last change, unless a step ran after it: a step's record has the scale that it ran with."""
        last, change = self._last, self.counts.last_change
        return change if change is not None and (last is None or change.step >= last.step) else None


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
