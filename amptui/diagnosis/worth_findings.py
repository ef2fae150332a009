"""Is AMP worth it here: what was found on speed, memory, and what limits them."""

from amptui.diagnosis.amp_finding import Finding, Question
from amptui.diagnosis.bottleneck import AMP_PHASES
from amptui.diagnosis.speed import WIDE
from amptui.records.findings import PrecisionMeasured
from amptui.records.run import base_precision
from amptui.telemetry.comparison import BASELINES, LITTLE_SPEED, compare
from amptui.telemetry.timing import shares_of
from amptui.telemetry.view import Comparison, PrecisionTiming


def worth_findings(question: Question) -> tuple[Finding, ...]:
    """One finding each on speed, memory and limit."""
    tally = _tally(question)
    return _speed(question, tally), _memory(question, tally), _limit(question, tally)


def _tally(question: Question) -> Comparison:
    """The baseline beside the precision in question alone: the view's own is of the one that ran most."""
    comparison = question.view.comparison
    if comparison.amp is None or base_precision(comparison.amp) == question.precision:
        return comparison
    kept = {question.precision, *BASELINES}
    return compare([row for row in comparison.rows if row.precision in kept])


def _in_turns(question: Question) -> tuple[PrecisionMeasured, PrecisionMeasured] | None:
    """The rows of an A/B test for the baseline and the precision in question, once there is a ratio."""
    found = question.view.compared
    if found is None or not found.rows or found.baseline not in BASELINES:
        return None
    rows = [row for row in found.rows[1:] if row.precision == question.precision and row.speedup]
    return (found.rows[0], rows[0]) if rows else None


def _speed(question: Question, tally: Comparison) -> Finding:
    """``faster``, ``same``, ``slower``; ``open`` if a wide interval contains 1, or why it is not known.

    ``disturbed``: ``value`` is the ratio by the median steps, and ``low`` by the mean ones says the opposite.

    The A/B test's if there is one, else the ratio of the medians, which has no interval.
    """
    rows, compared = _in_turns(question), question.view.compared
    if rows is not None and compared is not None:
        speedup, low, high = rows[1].speedup or 1.0, rows[1].speedup_low, rows[1].speedup_high
        state = speed_state(speedup, low, high)
        return _speed_finding(question, state, speedup, low=low, high=high, step=compared.step)
    if tally.speedup:
        return _speed_finding(question, _of_ratio(tally.speedup), tally.speedup, step=question.view.step)
    if tally.provisional_speedup:
        return Finding(
            subject="speed",
            state="first impression",
            grade="unknown",
            about=question.precision,
            value=tally.provisional_speedup,
            step=question.view.step,
            age_steps=0,
            measured_by="comparison",
        )
    if tally.by_median:
        return Finding(
            subject="speed",
            state="disturbed",
            grade="unknown",
            about=question.precision,
            value=tally.by_median,
            low=tally.by_mean,
            step=question.view.step,
            age_steps=0,
            measured_by="comparison",
        )
    run = question.view.run
    unsupported = run is not None and question.precision in run.unsupported
    missing = {"AMP": "AMP never ran", "baseline": "FP32 never ran", "more steps": "too few steps"}
    return Finding(
        subject="speed",
        state="unsupported" if unsupported else missing.get(tally.missing, "no steps"),
        grade="unknown",
        freshness="never measured",
        about=question.precision,
        measured_by=""
        if unsupported
        else "precision"
        if "ran" in missing.get(tally.missing, "")
        else "comparison",
    )


def _speed_finding(
    question: Question,
    state: str,
    speedup: float,
    *,
    low: float | None = None,
    high: float | None = None,
    step: int,
) -> Finding:
    return Finding(
        subject="speed",
        state=state,
        grade={"faster": "good", "slower": "warning"}.get(state, "neutral"),  # type: ignore[arg-type]
        about=question.precision,
        value=speedup,
        low=low,
        high=high,
        step=step,
        age_steps=question.age(step),
        measured_by="comparison",
    )


def speed_state(speedup: float, low: float | None, high: float | None) -> str:
    """``faster``, ``same``, ``slower``, or ``open`` if a wide interval contains 1."""
    if not low or not high:
        return _of_ratio(speedup)
    if low <= 1 <= high:
        return "open" if high / low > WIDE else "same"
    return "faster" if low > 1 else "slower"


def _of_ratio(speedup: float) -> str:
    """Without an interval a small difference may be chance."""
    if max(speedup, 1 / speedup) < 1 + LITTLE_SPEED:
        return "same"
    return "faster" if speedup > 1 else "slower"


def _memory(question: Question, tally: Comparison) -> Finding:
    """``less``, ``same`` or ``more``: AMP's peak by the baseline's, below 1 if it saves."""
    rows, compared = _in_turns(question), question.view.compared
    ratio, step = None, question.view.step
    if rows is not None and compared is not None and rows[0].peak_allocated_bytes:
        amp = rows[1].peak_allocated_bytes
        ratio, step = None if amp is None else amp / rows[0].peak_allocated_bytes, compared.step
    if ratio is None and tally.memory_saving is not None:
        ratio, step = 1 - tally.memory_saving, question.view.step
    if ratio is None:
        return Finding(
            subject="memory",
            state="not measured",
            grade="unknown",
            freshness="never measured",
            about=question.precision,
        )
    state = "same" if round(ratio, 2) == 1 else "less" if ratio < 1 else "more"
    return Finding(
        subject="memory",
        state=state,
        grade={"less": "good", "more": "warning"}.get(state, "neutral"),  # type: ignore[arg-type]
        about=question.precision,
        value=ratio,
        step=step,
        age_steps=question.age(step),
        measured_by="comparison",
    )


def _limit(question: Question, tally: Comparison) -> Finding:
    """What steps wait for: ``compute``, ``input``, ``launch``, ``unknown``, or that it is not known yet.

    In AMP if its steps were timed, else in the baseline. ``value`` is the share of the step that AMP can
    speed up, or, input-bound, the share of waiting for data.
    """
    timings = {timing.precision: timing for timing in question.view.timings if timing.bound}
    timing = timings.get(question.precision) or timings.get(tally.baseline or "fp32")
    if timing is None:
        return Finding(
            subject="limit",
            state=tally.held_back_by or "not measured",
            grade="neutral" if tally.held_back_by else "unknown",
            freshness="fresh" if tally.held_back_by else "never measured",
        )
    return Finding(
        subject="limit",
        state=timing.bound,
        grade="neutral",
        value=_share(timing),
        precision=timing.precision,
        step=question.view.step,
        age_steps=0,
    )


def _share(timing: PrecisionTiming) -> float | None:
    shares = shares_of(timing.phases)
    if timing.bound == "input":
        return shares.get("input")
    return sum(shares.get(name, 0.0) for name in AMP_PHASES) if timing.bound == "compute" else None
