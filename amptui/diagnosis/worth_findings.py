"""Is AMP or FP8 worth it here: what was found on speed, memory, and what limits them."""

from collections.abc import Mapping

from amptui.diagnosis.amp_finding import Finding, Grade, Measurement, Question, Subject, never
from amptui.diagnosis.bottleneck import AMP_PHASES
from amptui.diagnosis.speed import speed_state
from amptui.records.findings import PrecisionMeasured
from amptui.records.run import base_precision, reference_precision
from amptui.telemetry.comparison import references
from amptui.telemetry.timing import shares_of
from amptui.telemetry.view import Comparison


def worth_findings(question: Question) -> tuple[Finding, ...]:
    """One finding each on speed, memory and limit: ``emulated`` if FP8 is, which then has none of them."""
    tally = question.comparison
    if tally.missing == "emulated":
        subjects: tuple[Subject, ...] = ("speed", "memory", "limit")
        return tuple(never(subject, question.precision, state="emulated") for subject in subjects)
    return _speed(question, tally), _memory(question, tally), _limit(question, tally)


def _in_turns(question: Question) -> tuple[PrecisionMeasured, PrecisionMeasured] | None:
    """The rows of an A/B test for its reference and the precision in question, once there is a ratio."""
    result = question.view.compared
    if result is None or not result.rows or result.baseline not in references(question.precision):
        return None
    rows = [row for row in result.rows[1:] if row.precision == question.precision and row.speedup]
    return (result.rows[0], rows[0]) if rows else None


def _speed(question: Question, tally: Comparison) -> Finding:
    """``faster``, ``same``, ``slower``; ``open`` if a wide interval contains 1, or why it is not known.

    ``disturbed``: the ratios of mean and median steps disagree, so there is none.

    The A/B test's if there is one, else the ratio of the means: without an interval it speaks neither for
    nor against AMP.
    """
    step = question.view.step
    rows, result = _in_turns(question), question.view.compared
    if rows is not None and result is not None:
        speedup, low, high = rows[1].speedup or 1.0, rows[1].speedup_low, rows[1].speedup_high
        state: str = speed_state(speedup, low, high)
        return _compared(question, "speed", state, speedup, low=low, high=high, step=result.step)
    if tally.speedup:
        state = speed_state(tally.speedup, None, None)
        return _compared(question, "speed", state, tally.speedup, step=step)
    if tally.provisional_speedup:
        return _compared(question, "speed", "first impression", tally.provisional_speedup, step=step)
    run = question.view.run
    if run is not None and question.precision in run.unsupported:
        return never("speed", question.precision, state="observed" if run.observed else "unsupported")
    state, measured_by = _MISSING.get(tally.missing, ("no steps", "comparison"))
    if state == "never ran" and base_precision(question.view.precision or "") == question.precision:
        state, measured_by = "no steps", "comparison"  # its first step is under way
    if state == "reference never ran" and reference_precision(question.precision) != "fp32":
        measured_by = "comparison"  # `p` may lead elsewhere
    return never("speed", question.precision, state=state, measured_by=measured_by)


_MISSING: Mapping[str, tuple[str, Measurement]] = {
    "low": ("never ran", "precision"),
    "baseline": ("reference never ran", "precision"),
    "more steps": ("too few steps", "comparison"),
    "steady steps": ("disturbed", "comparison"),
}
"""The state of a speed that is not known, and what would measure it."""


def _compared(
    question: Question,
    subject: Subject,
    state: str,
    value: float,
    *,
    low: float | None = None,
    high: float | None = None,
    step: int,
) -> Finding:
    """What the steps in question came to beside the reference's."""
    return Finding(
        subject=subject,
        state=state,
        grade=_GRADES.get(state, "neutral") if high or subject != "speed" else "neutral",
        about=question.precision,
        value=value,
        low=low,
        high=high,
        step=step,
        measured_by="comparison",
    )


_GRADES: Mapping[str, Grade] = {
    "faster": "good",
    "slower": "warning",
    "less": "good",
    "more": "warning",
}


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
        return never("memory", question.precision)
    state = "same" if round(ratio, 2) == 1 else "less" if ratio < 1 else "more"
    return _compared(question, "memory", state, ratio, step=step)


def _limit(question: Question, tally: Comparison) -> Finding:
    """What steps wait for: ``compute``, ``input``, ``launch``, ``unknown``, or that it is not known yet.

    In the precision in question if its steps were timed, else in its reference. ``value`` is the share of the
    step that it can speed up, or, input-bound, the share of waiting for data.
    """
    timings = {timing.precision: timing for timing in question.view.timings if timing.bound}
    reference = tally.baseline or reference_precision(question.precision)
    timing = timings.get(question.precision) or timings.get(reference)
    if timing is None:
        return Finding(
            subject="limit",
            state=tally.held_back_by or "not measured",
            grade="neutral" if tally.held_back_by else "unknown",
            about=question.precision,
            freshness="fresh" if tally.held_back_by else "never measured",
        )
    shares, value = shares_of(timing.phases), None
    if timing.bound == "input":
        value = shares.get("input")
    elif timing.bound == "compute":
        value = sum(shares.get(name, 0.0) for name in AMP_PHASES)
    return Finding(
        subject="limit",
        state=timing.bound,
        grade="neutral",
        about=question.precision,
        value=value,
        precision=timing.precision,
        step=question.view.step,
    )
