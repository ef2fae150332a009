"""Is AMP or FP8 worth it here, and is it safe: one finding on each subject, from the view of a run."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from amptui.records.findings import PrecisionMeasured, is_old
from amptui.records.run import reference_precision
from amptui.telemetry.comparison import compare, judge_held_back, judge_speed, references
from amptui.telemetry.finding import Finding, Freshness, Measurement, never_measured
from amptui.telemetry.health import judge_trace, judge_window, judge_xray, judge_xray_underflow
from amptui.telemetry.memory import judge_memory
from amptui.telemetry.timing import judge_limit
from amptui.telemetry.trouble import TRACE_WITHIN_STEPS
from amptui.telemetry.view import Comparison, SessionView

BEFORE_AMP = ("bad input", "weights lost", "buffers lost")
"""What makes a loss NaN or Inf that is no precision's doing."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the findings are asked for: a view, and the AMP precision or FP8 in question."""

    view: SessionView
    precision: str

    @property
    def comparison(self) -> Comparison:
        """The precision in question beside its reference: the view's own may be of another one."""
        comparison = self.view.comparison
        return comparison if comparison.low == self.precision else compare(comparison.rows, self.precision)

    def freshness(self, step: int, scale: float | None = None) -> Freshness:
        """Of a measurement of one ``step``, at a loss scale if that matters to it."""
        scale_now = self.view.scaler.scale
        return "old" if is_old(step, scale, now=self.view.step, scale_now=scale_now) else "fresh"

    def aged(self, finding: Finding, scale: float | None = None) -> Finding:
        """A finding of a single step; once that is old, it speaks neither for nor against AMP."""
        step, scale_now = finding.step or 0, self.view.scaler.scale
        if finding.state == "underflows" and scale and scale_now and scale_now < scale:
            scale = None  # at a smaller one more of them underflows
        finding = replace(finding, freshness=self.freshness(step, scale))
        if finding.freshness == "fresh":
            return finding
        return replace(finding, grade="neutral", was_trouble=finding.is_trouble)


def has_failed_in_float16(overflow: Finding) -> bool:
    """Whether float16's own steps failed, so that no measurement of a single step calls it safe."""
    return overflow.about == "fp16" and overflow.grade == "error" and overflow.state not in BEFORE_AMP


# ------------------------------------------------------------------------------------- worth it


def worth_findings(question: Question) -> tuple[Finding, ...]:
    """One finding each on speed, memory and limit."""
    tally = question.comparison
    limit = _limit(question, tally)
    return _speed(question, tally, limit), _memory(question, tally), limit


def _in_turns(question: Question) -> tuple[PrecisionMeasured, PrecisionMeasured] | None:
    """The rows of an A/B test for its reference and the precision in question, once there is a ratio."""
    result = question.view.compared
    if result is None or not result.rows or result.baseline not in references(question.precision):
        return None
    rows = [row for row in result.rows[1:] if row.precision == question.precision and row.speedup]
    return (result.rows[0], rows[0]) if rows else None


def _speed(question: Question, tally: Comparison, limit: Finding) -> Finding:
    """``faster``, ``same``, ``slower``; ``open`` if a wide interval contains 1, or why it is not known.

    ``disturbed``: the ratios of mean and median steps disagree, so there is none.

    The A/B test's if there is one, else the ratio of the means: without an interval it speaks neither for
    nor against AMP.
    """
    view, precision = question.view, question.precision
    rows, result = _in_turns(question), view.compared
    than = tally.baseline or reference_precision(precision)
    low = high = None
    step, state = view.step, ""
    if rows is not None and result is not None:
        ratio, low, high, step = rows[1].speedup, rows[1].speedup_low, rows[1].speedup_high, result.step
        than = result.baseline
    else:
        ratio = tally.speedup
        if not ratio and tally.provisional_speedup:
            ratio, state = tally.provisional_speedup, "first impression"
    if ratio:
        speed = judge_speed(ratio, low, high)
        state = state or speed.state
        bound = limit.state if state == "same" and limit.state in ("input", "launch") else ""
        return replace(speed, state=state, about=precision, names={"than": than, "bound": bound}, step=step)
    names = {"than": than}
    if view.run is not None and precision in view.run.unsupported:
        why = "observed" if view.run.observed else "unsupported"
        return never_measured("speed", precision, state=why, names=names)
    state, measured_by = _NO_SPEED.get(tally.missing, ("never ran", "precision"))
    if state == "never ran" and view.precision == precision:
        state, measured_by = "no steps", "comparison"  # its first step is under way
    if state == "reference never ran" and reference_precision(precision) != "fp32":
        measured_by = "comparison"  # `p` may lead elsewhere
    return never_measured("speed", precision, state=state, measured_by=measured_by, names=names)


_NO_SPEED: Mapping[str, tuple[str, Measurement]] = {
    "low": ("never ran", "precision"),
    "baseline": ("reference never ran", "precision"),
    "more steps": ("too few steps", "comparison"),
    "steady steps": ("disturbed", "comparison"),
}
"""The state of a speed that is not known, and what would measure it."""


def _memory(question: Question, tally: Comparison) -> Finding:
    """``less``, ``same`` or ``more``: the peak by the reference's, below 1 if it saves."""
    rows, result = _in_turns(question), question.view.compared
    ratio, step = None, question.view.step
    if rows is not None and result is not None and rows[0].peak_allocated_bytes:
        peak = rows[1].peak_allocated_bytes
        ratio, step = None if peak is None else peak / rows[0].peak_allocated_bytes, result.step
    if ratio is None and tally.memory_saving is not None:
        ratio, step = 1 - tally.memory_saving, question.view.step
    if ratio is None:
        return never_measured("memory", question.precision)
    return replace(judge_memory(ratio), about=question.precision, step=step)


def _limit(question: Question, tally: Comparison) -> Finding:
    """What steps wait for: ``compute``, ``input``, ``launch``, ``unknown``, or that it is not known yet.

    In the precision in question if its steps were timed, else in its reference.
    """
    view, precision = question.view, question.precision
    timed = {timing.precision: timing for timing in view.timings}
    for name in (precision, tally.baseline or reference_precision(precision)):
        if name in timed:
            finding = judge_limit(timed[name], about=precision, ranks=view.world_size)
            if finding.freshness == "fresh":
                return replace(finding, step=view.step)
    return replace(judge_held_back(tally), about=precision)


# ----------------------------------------------------------------------------------------- safe


def safety_findings(question: Question) -> tuple[Finding, ...]:
    """One finding each on overflow, forward pass, float16's small numbers, agreement, loss and weights.

    float16's small numbers are no question in FP8.
    """
    skips = _float16_skips(question)
    failed = has_failed_in_float16(skips)
    overflow = skips if question.precision == "fp16" else _nonfinite_gradients(question)
    small = _float16(question)
    if failed and question.precision != "fp16":
        small = replace(skips, subject="float16")
    elif failed and small.grade in ("good", "neutral"):
        small = replace(small, grade="neutral", state="outweighed")
    agreement = _agreement(question)
    if failed and agreement.grade == "good" and agreement.about == "fp16":
        agreement = replace(agreement, grade="neutral")
    underflows = small.state == "underflows" and small.grade == "warning"
    if underflows and agreement.grade == "error" and agreement.about == "fp16":
        small = replace(small, grade="error")  # it explains why gradients disagree, and comes before that
    of_float16 = () if question.precision == "fp8" else (small,)
    return overflow, _forward(question), *of_float16, agreement, _loss(question), _weights(question)


def _float16_skips(question: Question) -> Finding:
    """What the scaler did in the steps so far."""
    last, skips = _last_step_in(question.view, "fp16"), question.view.numerics.scaler
    if skips.freshness == "never measured":
        return skips
    return replace(
        skips, step=skips.step or last, freshness="fresh" if last is None else question.freshness(last)
    )


def _nonfinite_gradients(question: Question) -> Finding:
    """Of the newest measured step in bf16 or FP8, which have FP32's range and no scaler: ``finite`` or not.

    During an A/B test it may be a step of the other precision: a NaN before it would be in the weights.
    """
    view, numerics = question.view, question.view.numerics
    if _last_step_in(view, question.precision) is None:
        how: Measurement = "" if view.precision == question.precision else "precision"
        return never_measured("overflow", question.precision, state="never ran", measured_by=how)
    step, bad = numerics.measured_step, numerics.nonfinite_gradients
    if step is None or bad is None:
        return never_measured("overflow", question.precision)
    precision, test = precision_at(view, step), view.compared
    alternates = test is not None and not test.over and not bad
    if precision != question.precision and not alternates:
        return never_measured("overflow", question.precision)
    since = _loss_lost_since(view)  # since then gradients are NaN or Inf in every precision
    finding = Finding(
        subject="overflow",
        state="not finite gradients" if bad else "finite",
        grade="error" if bad else "good",
        about=question.precision if since is None or not bad else precision_at(view, since),
        numbers={"gradients": bad},
        step=step,
        precision=precision,
        measured_by="trace" if bad else "",
    )
    return question.aged(finding)


def _forward(question: Question) -> Finding:
    """What the newest trace of modules says of their outputs."""
    trace = question.view.numerics.trace
    if trace is None or trace.lost_count or trace.inputs or not trace.modules:
        return never_measured("forward", question.precision, measured_by="trace")
    finding = judge_trace(trace)
    if trace.first is not None and trace.first.way == "backward" and trace.precision == "fp16":
        finding = replace(finding, grade="neutral")  # of gradients the scaler takes care
    return question.aged(finding)


def _float16(question: Question) -> Finding:
    """How much of the gradient norm underflows: by the newest histogram, or by an X-ray in float16.

    Each sees a part of what is lost only: of those that are fresh the larger share counts. A histogram sees
    the weights' gradients, and an X-ray a single batch.
    """
    window, xray = question.view.numerics.window, question.view.numerics.xray
    findings = [] if window is None else [question.aged(judge_window(window), window.loss_scale)]
    of_xray = None if xray is None else judge_xray_underflow(xray)
    if of_xray is not None:
        findings.append(question.aged(of_xray, of_xray.loss_scale))
    if not findings:
        return never_measured("float16", "fp16", measured_by="histogram")
    decisive = [finding for finding in findings if finding.grade != "neutral"]  # what is old is neutral
    if not decisive:
        return max(findings, key=lambda finding: (finding.was_trouble, finding.step or 0))
    severe = ("good", "warning")
    return max(
        decisive,
        key=lambda finding: (
            severe.index(finding.grade),
            finding.numbers.get("share") or 0.0,
            finding.step or 0,
        ),
    )


def _agreement(question: Question) -> Finding:
    """What the newest X-ray in the precision in question found."""
    xray = question.view.numerics.xray
    if xray is None or xray.precision != question.precision:
        return never_measured("agreement", question.precision, measured_by="x-ray")
    finding = judge_xray(xray)
    if finding.state == "overflow":  # whether they are many is the finding on overflow
        finding = replace(finding, grade="neutral")
    return question.aged(finding, xray.loss_scale)


def _loss(question: Question) -> Finding:
    """``not finite``, ``dropped``, ``validation not finite``; else ``finite``, with the newest."""
    view, last, dropped, validated = question.view, question.view.last, question.view.dropped, None
    if view.validated is not None and view.validated.validation is not None:
        validated = view.validated.validation.loss
    since = _loss_lost_since(view)
    trouble: tuple[str, float | None, int] | None = None
    if since is not None and last is not None and not last.skipped[0]:
        trouble = "not finite", last.loss[0], since
    elif dropped is not None and question.freshness(dropped.step) == "fresh":
        trouble = "dropped", dropped.loss, dropped.step
    elif view.validated is not None and not math.isfinite(validated or 0.0):
        trouble = "validation not finite", validated, view.validated.step
    if trouble is not None:
        state, value, step = trouble
        about = precision_at(view, step)
        return Finding(
            subject="loss",
            state=state,
            grade="warning" if state == "dropped" else "error",
            about=about,
            numbers={"loss": value},
            step=step,
            precision=about,
            measured_by="trace" if state == "not finite" else "",
        )
    loss = None if last is None else last.loss[0]
    if last is None or loss is None or not math.isfinite(loss):
        return never_measured("loss", question.precision)
    precision = last.precision
    facts: dict[str, Any] = {"numbers": {"loss": loss}, "step": last.step, "precision": precision}
    return Finding(subject="loss", state="finite", grade="neutral", **facts)


def _weights(question: Question) -> Finding:
    """``weights lost`` if some hold NaN, ``buffers lost``; ``finite`` if the loss is.

    Their trouble is of the precision in which the loss stopped being finite, if that was before. A batch that
    the loss was lost with explains more than the weights that it led to.
    """
    view, trace, buffers = question.view, question.view.numerics.trace, question.view.bad_buffers
    since, is_paused = _loss_lost_since(view), view.pause_cause == "weights"
    trouble: tuple[str, float | None, tuple[str, ...], int] | None = None
    batch = view.numerics.bad_batch
    is_batch = batch is not None and since is not None and 0 <= batch.step - since <= TRACE_WITHIN_STEPS
    trace = batch if is_batch else trace
    tells = trace is not None and (trace.lost_count > 0 or bool(trace.inputs and (is_paused or is_batch)))
    if trace is not None and tells and (is_batch or question.freshness(trace.step) == "fresh"):
        trouble = judge_trace(trace).state, trace.lost_count or None, trace.inputs or trace.lost, trace.step
    elif is_paused:
        trouble = "weights lost", None, (), view.step
    elif buffers is not None:
        trouble = "buffers lost", buffers.count, buffers.names, buffers.step
    if trouble is not None:
        state, count, names, step = trouble
        step = step if since is None else min(step, since)
        about = precision_at(view, step)
        return Finding(
            subject="weights",
            state=state,
            grade="error",
            about=about,
            numbers={"lost": count},
            names={"place": next(iter(names), "")},
            step=step,
            precision=about,
        )
    last = view.last
    if last is None or last.loss[0] is None or since is not None:
        return never_measured("weights")
    return Finding(subject="weights", state="finite", grade="good", step=last.step)


# ------------------------------------------------------------------------------------ where it ran


def _loss_lost_since(view: SessionView) -> int | None:
    """The first of the newest steps whose loss is NaN or Inf; None while it is finite or unknown."""
    is_lost = view.last is not None and not math.isfinite(view.last.loss[0] or 0.0)
    return view.loss.nonfinite_since if is_lost else None


def precision_at(view: SessionView, step: int) -> str:
    """What a step ran in; empty if that is not known any more."""
    place = bisect_right([switch.step for switch in view.switches], step) - 1
    return view.switches[place].precision if place >= 0 else ""


def _last_step_in(view: SessionView, precision: str) -> int | None:
    """The newest step in ``precision`` among the newest thousand stretches; None if there is none."""
    ends = (*(switch.step - 1 for switch in view.switches[1:]), view.step)
    pairs = zip(reversed(view.switches), reversed(ends), strict=False)
    return next((end for switch, end in pairs if switch.precision == precision), None)
