"""Trouble of many steps in one line: rows that the scaler skipped, storms of NaN, and what they mean."""

import math
from dataclasses import dataclass, replace
from typing import Any

from amptui.records.findings import ModulesTraced
from amptui.records.ranks import RanksOverflowed
from amptui.records.run import COLLAPSE_SKIPS, MIN_SOUND_SCALE, NonFinite, StepSkipped
from amptui.telemetry.finding import Finding, Grade
from amptui.telemetry.health import found_origin, judge_lost_loss, judge_trace
from amptui.telemetry.scaling import calibrates, skip_origin

STORM_GAP_STEPS = 100
"""NaN or Inf of one kind is one line as long as it recurs within so many steps, and so are harmless skips."""

TRACE_WITHIN_STEPS = 10
"""A trace up to so many steps after trouble belongs to it: hooks are installed once the host knows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRow:
    """Steps that the scaler skipped, in a row or near each other."""

    first: StepSkipped
    last: StepSkipped
    count: int = 1
    scale_after: float | None = None
    """The scale after the newest; None if it is not known yet."""
    skips_before: int = 0
    """The run's earlier skips."""
    scale_has_grown: bool = False
    """Whether the scale had ever grown in this run."""
    trace: ModulesTraced | None = None
    """A trace during or right after them: the first that found an origin, else the newest."""

    @property
    def finding(self) -> Finding:
        """What the newest skip means, in the states of :func:`judge_scaler`; any other is ``occasional``."""
        skip = self.last
        scale = skip.loss_scale if self.scale_after is None else self.scale_after
        is_finite = skip.loss is None or math.isfinite(skip.loss)
        origin = skip_origin(skip, self.trace, loss_is_finite=is_finite)
        collapsed = scale < MIN_SOUND_SCALE
        collapses = collapsed or skip.consecutive >= COLLAPSE_SKIPS
        state = origin.state
        if is_finite and collapses:
            state = "collapsed" if collapsed else "collapsing"
        elif is_finite:
            skips = self.skips_before + self.count
            state = "calibrating" if calibrates(skips, grown=self.scale_has_grown) else "occasional"
        grade: Grade = "error" if collapses else "neutral" if is_finite else "warning"
        return replace(origin, subject="skips", state=state, grade=grade)

    def with_step(self, skip: StepSkipped) -> "SkipRow | None":
        """With a later skip that goes on with the row: trouble that has ended is not mixed with others."""
        gap = skip.step - self.last.step
        goes_on = gap == 1 or (1 < gap <= STORM_GAP_STEPS and self.finding.grade == "neutral")
        return replace(self, last=skip, count=self.count + 1, scale_after=None) if goes_on else None

    def with_trace(self, trace: ModulesTraced) -> "SkipRow":
        """With a trace, if it is about these steps and no earlier one found an origin."""
        explains = _explains(trace, self)
        return replace(self, trace=trace) if explains else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """NaN or Inf of one kind in one place, and the steps in which it recurred."""

    first: NonFinite
    last: NonFinite
    count: int = 1
    in_float16: bool
    """Whether the first such step ran in ``fp16``."""
    trace: ModulesTraced | None = None
    """Of a loss, as in :class:`SkipRow`."""

    @property
    def finding(self) -> Finding:
        """What it means: only in float16 a scaler protects the weights.

        Of a loss the states of :func:`judge_lost_loss`, ``loss applied`` without a trace outside float16;
        else ``gradients skipped``, ``gradients applied``, ``buffers``.
        """
        what = self.first.what
        finding = judge_lost_loss(self.trace)
        state = finding.state
        if what == "buffer":
            state = "buffers"
        elif what == "gradient":
            state = "gradients skipped" if self.in_float16 else "gradients applied"
        elif state == "loss not finite" and not self.in_float16:
            state = "loss applied"
        # Buffers are not the scaler's to check.
        grade: Grade = "warning" if self.in_float16 and what != "buffer" else "error"
        return replace(finding, subject="storm", state=state, grade=grade)

    def with_step(self, record: NonFinite) -> "Storm | None":
        """With a later step of the same kind, if it is near the last."""
        is_near = 0 <= record.step - self.last.step <= STORM_GAP_STEPS
        return replace(self, last=record, count=self.count + 1) if is_near else None

    def with_trace(self, trace: ModulesTraced) -> "Storm":
        """With a trace, if it is about the loss of these steps and no earlier one found an origin.

        Not with what a later step found lost where these were applied: they may have lost it themselves.
        """
        explains = _explains(trace, self)
        was_lost = judge_trace(trace).state in ("weights lost", "buffers lost")
        follows = was_lost and trace.step > self.first.step and not self.in_float16
        return replace(self, trace=trace) if explains and self.first.what == "loss" and not follows else self


def with_ranks(row: SkipRow | Storm, record: RanksOverflowed) -> SkipRow | Storm:
    """With the ranks that a step's NaN or Inf came from, if it is the first or the last."""
    ends: dict[str, Any] = {"first": row.first, "last": row.last}
    changed = {
        name: replace(end, ranks=record.ranks) for name, end in ends.items() if end.step == record.step
    }
    return replace(row, **changed)


def _explains(trace: ModulesTraced, row: SkipRow | Storm) -> bool:
    before = row.trace
    if before is trace or (before is not None and found_origin(before)):
        return False
    return row.first.step <= trace.step <= row.last.step + TRACE_WITHIN_STEPS
