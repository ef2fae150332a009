"""Trouble of many steps in one line: rows that the scaler skipped, storms of NaN, and what they mean."""

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from amptui.records.findings import ModulesTraced
from amptui.records.ranks import RanksOverflowed
from amptui.records.run import COLLAPSE_SKIPS, MIN_SOUND_SCALE, NonFinite, StepSkipped
from amptui.telemetry.finding import Finding, Grade
from amptui.telemetry.health import found_origin, judge_lost_loss, judge_trace
from amptui.telemetry.scaling import calibrates, skip_origin

KEPT_SKIPS = 5
"""Skips kept from each end of a row: a collapse has hundreds that look the same."""

STORM_GAP_STEPS = 100
"""NaN or Inf of one kind is one line as long as it recurs within so many steps, and so are harmless skips."""

TRACE_WITHIN_STEPS = 10
"""A trace up to so many steps after trouble belongs to it: hooks are installed once the host knows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRow:
    """Steps that the scaler skipped, in a row or near each other."""

    first: tuple[StepSkipped, ...]
    """The first ``KEPT_SKIPS`` of them."""
    last: tuple[StepSkipped, ...] = ()
    """The newest ``KEPT_SKIPS`` of the others."""
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
    def newest(self) -> StepSkipped:
        """The row's newest skip."""
        return (self.last or self.first)[-1]

    @property
    def finding(self) -> Finding:
        """What the newest skip means, in the states of :func:`judge_scaler`; any other is ``occasional``."""
        skip = self.newest
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

    def continues_with(self, skip: StepSkipped) -> bool:
        """Whether ``skip`` goes on with the row; trouble that has ended is not mixed with later skips."""
        gap = skip.step - self.newest.step
        return gap == 1 or (1 < gap <= STORM_GAP_STEPS and self.finding.grade == "neutral")

    def with_skip(self, skip: StepSkipped) -> "SkipRow":
        """With a later step that was skipped, too."""
        is_early = self.count < KEPT_SKIPS
        first = (*self.first, skip) if is_early else self.first
        last = self.last if is_early else (*self.last, skip)[-KEPT_SKIPS:]
        return replace(self, count=self.count + 1, first=first, last=last, scale_after=None)

    def with_trace(self, trace: ModulesTraced) -> "SkipRow":
        """With a trace, if it is about these steps and no earlier one found an origin."""
        explains = _explains(trace, self.trace, self.first[0].step, self.newest.step)
        return replace(self, trace=trace) if explains else self

    def with_ranks(self, record: RanksOverflowed) -> "SkipRow":
        """With the ranks that a step's overflow came from, if that step is kept."""
        first, last = (_with_ranks(skips, record) for skips in (self.first, self.last))
        return replace(self, first=first, last=last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """NaN or Inf of one kind in one place, and the steps in which it recurred."""

    first: NonFinite
    last: NonFinite
    times: int
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

    def with_trace(self, trace: ModulesTraced) -> "Storm":
        """With a trace, if it is about the loss of these steps and no earlier one found an origin.

        Not with what a later step found lost where these were applied: they may have lost it themselves.
        """
        explains = _explains(trace, self.trace, self.first.step, self.last.step)
        was_lost = judge_trace(trace).state in ("weights lost", "buffers lost")
        follows = was_lost and trace.step > self.first.step and not self.in_float16
        return replace(self, trace=trace) if explains and self.first.what == "loss" and not follows else self

    def with_ranks(self, record: RanksOverflowed) -> "Storm":
        """With the ranks that NaN or Inf came from in a step, if that step is kept."""
        first, last = _with_ranks((self.first, self.last), record)
        return replace(self, first=first, last=last)


_Bad = TypeVar("_Bad", StepSkipped, NonFinite)


def _with_ranks(steps: tuple[_Bad, ...], record: RanksOverflowed) -> tuple[_Bad, ...]:
    return tuple(replace(bad, ranks=record.ranks) if bad.step == record.step else bad for bad in steps)


def _explains(trace: ModulesTraced, before: ModulesTraced | None, first_step: int, last_step: int) -> bool:
    if before is trace or (before is not None and found_origin(before)):
        return False
    return first_step <= trace.step <= last_step + TRACE_WITHIN_STEPS
