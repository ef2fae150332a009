"""Is AMP safe here: what was found on overflow, underflow, agreement, loss and weights."""

import math
from bisect import bisect_right
from dataclasses import replace

from amptui.diagnosis.amp_finding import Finding, Grade, Measurement, Question, never
from amptui.records.findings import Float16Window, XRayTaken
from amptui.records.run import FP8_PRECISIONS, Severity, base_precision
from amptui.telemetry.comparison import losses_after
from amptui.telemetry.health import judge_trace, judge_window, judge_xray
from amptui.telemetry.scaling import RECENT_STEPS, ScalerVerdict
from amptui.telemetry.underflow import UNDERFLOW_SHARE, xray_share
from amptui.telemetry.view import SessionView

MAJORITY = 0.5
"""A larger fraction of skipped steps among the recent ones is no search for a scale."""

_GRADES: dict[Severity, Grade] = {"info": "good", "warning": "warning", "error": "error"}

FLOAT16_FAILED = ("skipped mostly", "collapsing", "collapsed", "forward overflow", "loss not finite")
"""What happened to float16's steps so that no single step's measurement calls it safe."""


_BEFORE_AMP = {"input": "bad input", "weights": "bad weights", "buffer": "bad weights"}
"""Causes of a loss that is not finite which are no precision's doing."""


def safety_findings(question: Question) -> tuple[Finding, ...]:
    """One finding each on overflow, forward pass, float16's small numbers, agreement, loss and weights.

    float16's small numbers are no question in FP8.
    """
    skips = _float16_skips(question)
    failed = skips.state in FLOAT16_FAILED
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
    of_float16 = () if question.precision in FP8_PRECISIONS else (small,)
    return overflow, _forward(question), *of_float16, agreement, _loss(question), _weights(question)


# -------------------------------------------------------------------------------------- overflow


def _float16_skips(question: Question) -> Finding:
    """What the scaler did: ``none``, ``occasional``, ``frequent``, ``calibrating``, or float16 failed.

    ``value`` of the ``whole`` newest float16 steps were skipped; of ``collapsing``, the skips in a row.
    """
    view = question.view
    verdict = view.numerics.scaler
    facts = verdict.facts
    if not facts.steps:
        return never("overflow", "fp16", state="never ran", measured_by="precision")
    recent = min(facts.steps, RECENT_STEPS)
    state, grade = _skip_state(verdict, recent)
    last = _last_step_in(view, "fp16")
    value, whole = (facts.skips, facts.steps) if state == "none" else (facts.recent_skips, recent)
    return Finding(
        subject="overflow",
        state=state,
        grade=grade,
        about="fp16",
        value=value,
        whole=whole,
        place=_skipped_place(verdict),
        step=last,
        freshness="fresh" if last is None else question.freshness(last),
        precision="fp16",
        loss_scale=facts.scale,
        measured_by="trace" if grade in ("warning", "error") else "",
    )


def _skip_state(verdict: ScalerVerdict, recent: int) -> tuple[str, Grade]:
    facts = verdict.facts
    mostly = facts.recent_skips > MAJORITY * recent
    cause = "" if verdict.trace is None else verdict.trace.cause
    loss = verdict.state == "forward overflow"
    name = "forward overflow" if cause == "overflow" else "loss not finite"
    cases: tuple[tuple[bool, str, Grade], ...] = (
        (loss and cause in _BEFORE_AMP, _BEFORE_AMP.get(cause, ""), "error" if mostly else "warning"),
        (loss and mostly, name, "error"),
        (loss, f"{name} once", "warning"),
        (verdict.state == "calibrating", "calibrating", "neutral"),
        (mostly, "skipped mostly", "error"),
        (verdict.state == "collapsing", "collapsed" if verdict.is_past else "collapsing", "error"),
        (verdict.severity == "warning", "frequent", "warning"),
        (facts.recent_skips > 0, "occasional", "good"),
        (facts.skips > 0, "none recently", "good"),
    )
    return next(((state, grade) for holds, state, grade in cases if holds), ("none", "good"))


def _skipped_place(verdict: ScalerVerdict) -> str:
    """The module that a trace found first, else the parameter of the newest skip."""
    if verdict.began is not None:
        return verdict.began.name
    if verdict.state == "forward overflow":
        return ""  # the parameters of the skip only follow from it
    skip = verdict.facts.newest_skip
    return skip.names[0].rpartition(".")[0] or skip.names[0] if skip is not None and skip.names else ""


def _nonfinite_gradients(question: Question) -> Finding:
    """Of the newest measured step in bf16 or FP8, which have FP32's range and no scaler: ``finite`` or not.

    During an A/B test it may be a step of the other precision: a NaN before it would be in the weights.
    """
    view, numerics = question.view, question.view.numerics
    last = _last_step_in(view, question.precision)
    if last is None:
        runs_now = view.precision == question.precision
        how: Measurement = "" if runs_now else "precision"
        return never("overflow", question.precision, state="never ran", measured_by=how)
    step, bad = numerics.measured_step, numerics.nonfinite_gradients
    if step is None or bad is None:
        return never("overflow", question.precision)
    precision, test = precision_at(view, step), view.compared
    alternates = test is not None and not test.over and not bad
    if precision != question.precision and not alternates:
        return never("overflow", question.precision)
    since = _loss_lost_since(view)  # since then gradients are NaN or Inf in every precision
    return question.aged(
        Finding(
            subject="overflow",
            state="not finite" if bad else "finite",
            grade="error" if bad else "good",
            about=question.precision if since is None or not bad else precision_at(view, since),
            value=bad,
            step=step,
            precision=precision,
            measured_by="trace" if bad else "",
        )
    )


def _forward(question: Question) -> Finding:
    """What the newest trace of modules found: ``overflowed``, ``would overflow``, ``fits``.

    ``value`` is the largest number, float16's largest being 65,504.
    """
    trace = question.view.numerics.trace
    if trace is None or trace.lost_count or trace.inputs or not trace.modules:
        return never("forward", question.precision, measured_by="trace")
    severity, state = judge_trace(trace)
    about = base_precision(trace.precision) if trace.first is not None else "fp16"
    nearest = trace.first or (trace.nearest[0] if trace.nearest else None)
    grade = _GRADES[severity]
    backward = trace.first is not None and trace.first.way == "backward" and trace.precision == "fp16"
    if state == "unknown" or backward:
        grade = "neutral"  # of gradients the scaler takes care: that is the finding on overflow
    finding = Finding(
        subject="forward",
        state=state,
        grade=grade,
        happened=trace.first is not None,
        about=about,
        value=None if nearest is None else nearest.largest,
        place="" if nearest is None else nearest.name or "the model",
        step=trace.step,
        precision=trace.precision,
        measured_by="trace",
    )
    return question.aged(finding)


# --------------------------------------------------------------------- float16's small numbers


def _float16(question: Question) -> Finding:
    """How much of the gradient norm underflows: by the newest histogram, or by an X-ray in float16.

    Each sees a part of what is lost only: of those that are fresh the larger share counts. A histogram sees
    the weights' gradients, and an X-ray a single batch.
    """
    window, xray = question.view.numerics.window, question.view.numerics.xray
    findings = [_of_window(question, window)] if window is not None else []
    share = None if xray is None else xray_share(xray)
    if xray is not None and share is not None:
        findings.append(_of_xray(question, xray, share))
    if not findings:
        return never("float16", "fp16", measured_by="histogram")
    decisive = [finding for finding in findings if finding.grade != "neutral"]  # what is old is neutral
    if not decisive:
        return max(findings, key=lambda finding: (finding.was_trouble, finding.step or 0))
    severe = ("good", "warning")
    return max(
        decisive, key=lambda finding: (severe.index(finding.grade), finding.value or 0.0, finding.step or 0)
    )


def _of_window(question: Question, window: Float16Window) -> Finding:
    verdict = judge_window(window)
    grade = _GRADES[verdict.severity]
    if verdict.state in ("overflow", "empty") or (verdict.state == "all zero" and window.hypothetical):
        grade = "neutral"  # the scaler's skips are a finding of their own
    finding = Finding(
        subject="float16",
        state=verdict.state,
        grade=grade,
        happened=not window.hypothetical,
        about="" if verdict.state == "not finite" else "fp16",
        value=verdict.share,
        place="" if verdict.worst is None else verdict.worst.name,
        step=window.step,
        precision=window.precision,
        loss_scale=window.loss_scale,
        measured_by="histogram",
    )
    return replace(question.aged(finding), loss_scale=math.ldexp(window.loss_scale, -verdict.halvings))


def _of_xray(question: Question, xray: XRayTaken, share: float) -> Finding:
    worst = max(xray.layers, key=lambda layer: layer.underflowing or 0.0)
    underflows = share >= UNDERFLOW_SHARE
    finding = Finding(
        subject="float16",
        state="underflows" if underflows else "kept",
        grade="warning" if underflows else "good",
        happened=False,
        about="fp16",
        value=share,
        place=worst.name or "the model" if underflows else "",
        step=xray.step,
        precision=xray.precision,
        loss_scale=xray.loss_scale,
        measured_by="x-ray",
    )
    return question.aged(finding)


# -------------------------------------------------------------------------------------- agreement


def _agreement(question: Question) -> Finding:
    """What the newest X-ray in the precision in question found: its verdict, and the worst cosine."""
    xray: XRayTaken | None = question.view.numerics.xray
    if xray is None or base_precision(xray.precision) != question.precision:
        return never("agreement", question.precision, measured_by="x-ray")
    verdict = judge_xray(xray)
    grade = _GRADES[verdict.severity]
    if verdict.state in ("nothing to compare", "overflow", "as in reference"):
        # Whether overflows are many is the finding on overflow; what is as in bf16, FP8 does not cause.
        grade = "neutral"
    finding = Finding(
        subject="agreement",
        state=verdict.state,
        grade=grade,
        happened=False,
        about="" if verdict.state == "FP32 loss not finite" else question.precision,
        value=None if verdict.worst is None else verdict.worst.cosine,
        place="" if verdict.worst is None else verdict.worst.name or "the model",
        whole=verdict.layers,
        step=xray.step,
        precision=xray.precision,
        loss_scale=xray.loss_scale,
        measured_by="x-ray",
    )
    return question.aged(finding)


# ------------------------------------------------------------------------------- loss and weights


def _loss(question: Question) -> Finding:
    """``not finite``, ``dropped``, ``validation not finite``; else both losses, ``mid-run``, or the newest.

    ``value`` is the loss in question after as many steps since the switch as ``low``, the reference's: no
    fair race, since each began where the other left off.
    """
    view, last, dropped, validated = question.view, question.view.last, question.view.dropped, None
    if view.validated is not None and view.validated.validation is not None:
        validated = view.validated.validation.loss
    since, trouble = _loss_lost_since(view), None
    if since is not None and last is not None and not last.skipped:
        trouble = "not finite", last.loss, since
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
            value=value,
            step=step,
            precision=about,
            measured_by="trace" if state == "not finite" else "",
        )
    if (losses := losses_after(view, question.comparison)) is not None:
        steps, baseline, low = losses
        return Finding(
            subject="loss",
            state="mid-run",
            grade="neutral",
            about=question.precision,
            value=low,
            low=baseline,
            whole=steps,
            step=view.step,
        )
    if last is None or last.loss is None or not math.isfinite(last.loss):
        return never("loss", question.precision)
    return Finding(
        subject="loss",
        state="finite",
        grade="neutral",
        value=last.loss,
        step=last.step,
        precision=base_precision(last.precision),
    )


def _weights(question: Question) -> Finding:
    """``lost`` if some hold NaN, ``ranks differ``, ``buffers lost``; ``finite`` as far as the loss was.

    Their trouble is of the precision in which the loss stopped being finite, if that was before.
    """
    view, trace, buffers = question.view, question.view.numerics.trace, question.view.bad_buffers
    since = _loss_lost_since(view)
    trouble: tuple[str, int | None, tuple[str, ...], int] | None = None
    ranks = () if view.ranks is None else view.ranks.disagreements
    differ = next((one for one in ranks if one.what == "weights"), None)
    if trace is not None and trace.lost_count > 0 and question.freshness(trace.step) == "fresh":
        state = {"buffer": "buffers lost", "input": "bad input"}.get(trace.cause, "lost")
        trouble = state, trace.lost_count, () if trace.inputs else trace.lost, trace.step
    elif view.pause_cause == "weights":
        trouble = "lost", None, (), view.step
    elif differ is not None:
        trouble = "ranks differ", differ.count, (), differ.step
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
            value=count,
            place=next(iter(names), ""),
            step=step,
            precision=about,
        )
    last = view.last
    if last is None or last.loss is None or since is not None:
        return never("weights", "")
    return Finding(subject="weights", state="finite", grade="good", step=last.step)


# ------------------------------------------------------------------------------------ where it ran


def _loss_lost_since(view: SessionView) -> int | None:
    """The first of the newest steps whose loss is NaN or Inf; None while it is finite or unknown."""
    lost = view.last is not None and view.last.loss is not None and not math.isfinite(view.last.loss)
    return view.loss.nonfinite_since() if lost else None


def precision_at(view: SessionView, step: int) -> str:
    """What a step ran in; empty if that is not known any more."""
    place = bisect_right([switch.step for switch in view.switches], step) - 1
    return base_precision(view.switches[place].precision) if place >= 0 else ""


def _last_step_in(view: SessionView, precision: str) -> int | None:
    """The newest step in ``precision`` among the newest thousand stretches; None if there is none."""
    ends = (*(switch.step - 1 for switch in view.switches[1:]), view.step)
    pairs = zip(reversed(view.switches), reversed(ends), strict=False)
    return next((end for switch, end in pairs if base_precision(switch.precision) == precision), None)
