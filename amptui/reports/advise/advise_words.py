"""All sentences of a recommendation: what to use, why, what to look out for, what was not measured."""

from collections.abc import Iterator, Mapping, Sequence

from amptui.base import units
from amptui.diagnosis.amp_answer import NO_AMP, AmpAnswer, interval_words
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.finding_fields import less_percent, times_speed
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import SIGNS, SUBJECTS, explained_words, long_words, short_words, speed_words
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import FP8_PRECISIONS
from amptui.reports.advise.advice import Advice, Reason
from amptui.reports.advise.evidence import Candidate, Exclusion, row_of, step_seconds
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.compare.trace import MEAN_STEPS
from amptui.reports.compare.welch import MIN_SEEDS
from amptui.telemetry.memory import judge_memory
from amptui.telemetry.timing import judge_limit, judge_step_time
from amptui.telemetry.view import SessionView

LEFT_OUT = "left out"

# ------------------------------------------------------------------------------------ the headline


def headline(advice: Advice) -> str:
    """``Use AMP bf16: 1.65× the speed of FP32 (1.61 to 1.69), 29% less peak memory, ...``."""
    about, trouble = advice.about, ""
    if advice.troubles:
        trouble = long_words(advice.troubles[0])
    elif about is not None:
        higher = "its loss is higher than in FP32 by more than the noise"
        trouble = higher if about.exclusion is None else exclusion_words(about.exclusion)
    gains = [] if about is None else _gains(about)
    is_faster = about is not None and about.answer is not None and about.worth == "faster"
    return _HEADLINES[advice.reason].format(
        label="" if about is None else precision_label(about.precision),
        gains=", ".join(gains),
        memory_first=", ".join([*gains[1:2], *gains[:1], *gains[2:]]),
        speed=gains[0] if gains else "",
        though=f"it has {gains[0]}, but " if is_faster else "",
        trouble=trouble,
    )


_HEADLINES: Mapping[Reason, str] = {
    "faster": "Use {label}: {gains}",
    "memory": "Use {label} if memory is short: {memory_first}",
    "unsafe": "Stay with FP32: {label} is not safe: {though}{trouble}",
    "same": "Stay with FP32: {label} gains little: {speed}",
    "slower": "Stay with FP32: {label} is slower: {speed}",
    "open": "Stay with FP32 for now: {speed}; run longer to decide (--minutes)",
    "weights": NO_AMP,
    "nothing to compare": "Stay with FP32: no other precision could be used",
    "not compared": "No recommendation yet: {label}, {speed}; run longer to decide (--minutes)",
    "fails": "No recommendation: FP32 itself fails: {trouble}",
}


def _gains(candidate: Candidate) -> list[str]:
    """Its speed, memory, and what makes it safe."""
    exclusion, answer = candidate.exclusion, candidate.answer
    is_slow = exclusion is not None and exclusion.kind == "slow"
    gains = [exclusion_words(exclusion) if exclusion and is_slow else speed_words(candidate.speed)]
    if candidate.memory is not None:
        gains.append(long_words(judge_memory(candidate.memory)))
    if answer is not None and answer.of("agreement").state == "agree":
        gains.append(f"gradients agree ({short_words(answer.of('agreement'))})")
    if candidate.loss is not None and candidate.loss.state in ("same", "lower"):
        same = candidate.loss.state == "same"
        gains.append("the same loss within noise" if same else "the loss lower than in FP32")
    return gains


def exclusion_words(why: Exclusion) -> str:
    """Why a precision is left out, without its name."""
    if why.kind == "slow" and why.value is not None:
        return times_speed(1 / why.value, "FP32")
    return why.detail or _EXCLUDED.get(why.kind, "")


_EXCLUDED = {"trouble": "its steps were skipped", "weights lost": "weights became NaN or Inf"}


# ---------------------------------------------------------------------------------- below the headline


def reasons(advice: Advice, view: SessionView) -> Iterator[str]:
    """Why it is so, as far as something measured shows it."""
    about = "" if advice.about is None else advice.about.precision
    limits = {timing: judge_limit(timing) for timing in view.timings}
    timings = {timing.precision: timing for timing, limit in limits.items() if limit.freshness == "fresh"}
    pair = [timings[name] for name in dict.fromkeys((about, "fp32")) if name in timings]
    if advice.reason == "slower" and len(pair) == 2:
        step_time = judge_step_time(pair[1], pair[0])
        if step_time.state == "longer":
            yield long_words(step_time)
    if advice.reason in ("same", "slower", "open"):
        for timing in pair:
            if limits[timing].state in ("input", "launch"):
                yield f"{precision_label(timing.precision)} is {explained_words(limits[timing])}"
    answer = None if advice.about is None else advice.about.answer
    if advice.reason in ("faster", "memory") and answer is not None:
        limit = answer.of("limit")
        if limit.freshness != "never measured":
            yield f"steps are {long_words(limit)}"


def cautions(advice: Advice, candidates: Sequence[Candidate], view: SessionView) -> Iterator[str]:
    """What to look out for in what is recommended."""
    about = advice.about
    if advice.reason in ("faster", "memory") and about is not None:
        yield from map(long_words, advice.troubles)
        if about.precision == "fp16":
            skipped = 0 if about.row is None else about.row.skipped
            scaler = f"a GradScaler, which skips a step now and then ({units.count(skipped)} in this run)"
            yield f"fp16 needs {scaler}; save its state in checkpoints"
        if about.loss is None:
            yield "not measured: whether it reaches FP32's final loss; use `amptui compare`"
        elif about.loss.state == "same" and about.loss.numbers["seeds"] == MIN_SEEDS:
            yield "two seeds show only large differences in the loss; use more --minutes to train more seeds"
    for other in candidates:
        if other.answer is not None and other is not about and advice.precision != "fp32":
            # Errors, and also warnings of a faster FP8.
            warns = other.worth == "faster" and other.precision in FP8_PRECISIONS
            grades = ("error", "warning") if warns else ("error",)
            grave = next((one for one in other.answer.counted if one.grade in grades), None)
            if grave is not None:
                yield f"not {precision_label(other.precision)}: {long_words(grave)}"
    # What the run itself warned of before its second step: data that stand in, unsafe losses.
    for event in reversed(view.events):
        if event.severity == "warning" and event.kind == "note" and (event.step or 0) <= 1:
            yield event_text(event)


def not_measured(
    candidates: Sequence[Candidate], missing: Mapping[str, str], race: LossRace | None
) -> Iterator[str]:
    """What is absent, each with its reason."""
    for candidate in candidates:
        if (exclusion := candidate.exclusion) is not None:
            cause = None if candidate.answer is None else candidate.answer.cause
            own = exclusion.kind == "trouble" and cause is not None
            why = long_words(cause) if own and cause is not None else exclusion_words(exclusion)
            yield f"{precision_label(candidate.precision)}: {LEFT_OUT}, {why}"
    for what, why in missing.items():
        yield f"{_MISSING.get(what, what)}: {why}"
    if race is not None and race.why_not:
        yield f"loss in each precision: {race.why_not}"


_MISSING = {
    "x-ray": "comparison of the gradients",
    "trace": "the largest outputs",
    "comparison": "speed in alternation",
}


def how_measured(compared: PrecisionsCompared | None, race: LossRace | None) -> Iterator[str]:
    """What the numbers are of."""
    if compared is not None and compared.rounds:
        rounds = f"{units.counted(compared.rounds, 'round')}"
        yield f"speed: {rounds} of {compared.block_steps} steps in alternation, without warm-up"
    if race is not None and race.seeds >= MIN_SEEDS:
        steps = f"mean of the last {min(MEAN_STEPS, race.steps)} of {units.count(race.steps)} steps"
        seeds = f"{units.counted(race.seeds, 'seed')}"
        # Half the widest interval: of the precision that the seeds say least of.
        findings = [finding for name in race.finals if (finding := race.finding(name)) is not None]
        ends = [(one.numbers["low"] or 0.0, one.numbers["high"] or 0.0) for one in findings]
        reach = max((high - low for low, high in ends), default=0.0) / 2
        hidden = f"; a difference below {units.loss(reach)} would not show" if reach else ""
        yield f"loss: {steps}, {seeds}, each from the same start in every precision{hidden}"


# ------------------------------------------------------------------------------------- the table


def table_rows(view: SessionView, candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """The head and the rows of the table: FP32 and each candidate of which something was measured."""
    columns = [one for one in candidates if one.row is not None or (one.answer and one.answer.steps)]
    if not columns:
        return []
    rows = [("", "FP32", *(precision_label(candidate.precision) for candidate in columns))]
    steps = (step_seconds(view, "fp32"), *(candidate.step_seconds for candidate in columns))
    rows.append(("step", *map(units.milliseconds, steps)))
    rows.append(("speed", "baseline", *map(_speed_cell, columns)))
    baseline = row_of(view, "fp32")
    peak = None if baseline is None else baseline.peak_allocated_bytes
    if peak is not None:
        rows.append(
            ("memory", units.number_of_bytes(peak), *(_memory_cell(candidate) for candidate in columns))
        )
    baseline_loss = next((one.loss.numbers["other_loss"] for one in candidates if one.loss is not None), None)
    for subject, label in SUBJECTS.items():
        cells = [_cell(candidate.answer, subject) for candidate in columns]
        if any(cells):
            of_fp32 = units.loss(baseline_loss) if subject == "loss" and baseline_loss is not None else ""
            rows.append((label, of_fp32, *cells))
    return rows


def _speed_cell(candidate: Candidate) -> str:
    speed = candidate.speed
    if candidate.exclusion is not None and (candidate.row is None or not candidate.row.speedup):
        return LEFT_OUT
    return f"{short_words(speed)} ({interval})" if (interval := interval_words(speed)) else short_words(speed)


def _memory_cell(candidate: Candidate) -> str:
    peak = None if candidate.row is None else candidate.row.peak_allocated_bytes
    if candidate.memory is None:
        return units.number_of_bytes(peak)
    return f"{units.number_of_bytes(peak)}, {less_percent(1 - candidate.memory)}"


def _cell(answer: AmpAnswer | None, subject: str) -> str:
    """What was measured of that precision; empty if nothing was."""
    findings = () if answer is None else answer.findings
    # float16's small numbers are no subject of FP8.
    finding = next((one for one in findings if one.subject == subject), None)
    if finding is None or answer is None or finding.freshness == "never measured":
        return ""
    if finding.about not in ("", answer.precision):
        return ""
    if subject == "loss" and finding.state == "finite":
        return ""
    return f"{SIGNS[finding.grade]} {short_words(finding)}"
