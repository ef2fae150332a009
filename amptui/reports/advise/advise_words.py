"""All sentences of a recommendation: what to use, why, what to look out for, what was not measured."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from amptui.base import units
from amptui.diagnosis.amp_answer import AmpAnswer
from amptui.diagnosis.amp_finding import Finding, Subject
from amptui.diagnosis.answer_words import (
    NO_AMP,
    SIGNS,
    finding_words,
    interval_words,
    short_words,
    worth_words,
)
from amptui.diagnosis.bottleneck import bound_words, evidence, why_slower
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.speed import ratio_words
from amptui.records.findings import PairCompared, PrecisionsCompared
from amptui.records.run import EAGER_SUFFIX
from amptui.reports.advise.advice import Advice, Reason
from amptui.reports.advise.evidence import Candidate, Exclusion, row_of, step_seconds
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.compare.trace import MEAN_STEPS
from amptui.reports.compare.welch import MIN_SEEDS
from amptui.telemetry.view import SessionView

SUBJECTS: tuple[Subject, ...] = ("overflow", "forward", "float16", "agreement", "loss", "limit")
"""The rows of the table below speed and memory."""

ROW_LABELS: Mapping[Subject, str] = {
    "overflow": "overflow",
    "forward": "forward",
    "float16": "float16",
    "agreement": "gradients",
    "loss": "loss",
    "limit": "limit",
}

LEFT_OUT = "left out"

# ------------------------------------------------------------------------------------ the headline


def headline(advice: Advice) -> str:
    """``Use AMP bf16: 1.65× the speed of FP32 (1.61 to 1.69), 0.71× its peak memory, ...``."""
    about = advice.about
    gains = [] if about is None else _gains(about)
    return _HEADLINES[advice.reason].format(
        label="" if about is None else precision_label(about.precision),
        gains=", ".join(gains),
        memory_first=", ".join([*gains[1:2], *gains[:1], *gains[2:]]),
        speed=gains[0] if gains else "",
        though=f"it has {gains[0]}, but " if about is not None and _is_faster(about) else "",
        trouble=_trouble(advice),
    )


_HEADLINES: Mapping[Reason, str] = {
    "faster": "Use {label}: {gains}",
    "memory": "Use {label} if memory is short: {memory_first}",
    "unsafe": "Stay with FP32: {label} is not safe here: {though}{trouble}",
    "same": "Stay with FP32: {label} gains little: {speed}",
    "slower": "Stay with FP32: {label} is slower here: {speed}",
    "open": "Stay with FP32 for now: {speed}; more --minutes decide",
    "weights": NO_AMP,
    "nothing to compare": "Stay with FP32: no other precision could be used here",
    "not compared": "No recommendation yet: {label}, {speed}; more --minutes decide",
    "fails": "No recommendation: FP32 itself fails: {trouble}",
}


def _gains(candidate: Candidate) -> list[str]:
    """Its speed, memory, and what makes it safe."""
    gains = [_speed_words(candidate)]
    if candidate.memory is not None:
        gains.append(f"{units.ratio(candidate.memory)} its peak memory")
    answer = candidate.answer
    if answer is not None and answer.of("agreement").state == "agree":
        gains.append(f"gradients agree ({finding_words(answer.of('agreement'))})")
    if candidate.losses is not None and candidate.losses.outcome in ("same", "lower"):
        same = candidate.losses.outcome == "same"
        gains.append("the loss the same within the noise" if same else "the loss lower than in FP32")
    return gains


def _speed_words(candidate: Candidate) -> str:
    """``1.65× the speed of FP32 (1.61 to 1.69)``, as the answer has it."""
    exclusion, answer, row = candidate.exclusion, candidate.answer, candidate.row
    if exclusion is not None and exclusion.kind == "slow":
        return exclusion_words(exclusion)
    if answer is None:
        speedup = row.speedup if row is not None else None
        return f"{units.ratio(speedup)} the speed of FP32" + (
            f" ({row.speedup_low:.2f} to {row.speedup_high:.2f})" if row and row.speedup_low else ""
        )
    interval = interval_words(answer.of("speed"))
    return worth_words(answer) + (f" ({interval})" if interval else "")


def _is_faster(candidate: Candidate) -> bool:
    return candidate.answer is not None and candidate.answer.worth == "faster"


def _trouble(advice: Advice) -> str:
    """What speaks against it: of the answer, of its losses, or why it is left out."""
    if advice.troubles:
        return finding_words(advice.troubles[0])
    about = advice.about
    if about is None:
        return ""
    if about.exclusion is not None:
        return exclusion_words(about.exclusion)
    return "its loss is higher than in FP32 by more than the noise"


def exclusion_words(why: Exclusion) -> str:
    """Why a precision is left out, without its name."""
    match why.kind:
        case "slow":
            if why.value is not None:
                return f"its steps took {why.value:.0f} times as long as in FP32"
            return why.detail
        case "trouble":
            return why.detail or "its steps were skipped"
        case "weights lost":
            return "weights became NaN or Inf"
    return why.detail


# ---------------------------------------------------------------------------------- below the headline


def reasons(advice: Advice, view: SessionView) -> Iterator[str]:
    """Why it is so, as far as something measured shows it."""
    timings = {timing.precision: timing for timing in view.timings if timing.bound}
    about = "" if advice.about is None else advice.about.precision
    baseline, other = timings.get("fp32"), timings.get(about)
    why = why_slower(baseline, other) if baseline is not None and other is not None else ""
    if advice.reason == "slower" and why:
        yield why
    if advice.reason in ("same", "slower", "open"):
        for timing in dict.fromkeys(filter(None, (other, baseline))):
            if timing.bound in ("input", "launch"):
                yield f"{precision_label(timing.precision)} is {bound_words(timing)}: {evidence(timing)}"
    if advice.reason in ("faster", "memory") and advice.limit is not None:
        yield f"steps are limited by {finding_words(advice.limit)}"


def cautions(advice: Advice, candidates: Sequence[Candidate], view: SessionView) -> Iterator[str]:
    """What to look out for in what is recommended."""
    for finding in advice.cautions:
        yield finding_words(finding)
    about = advice.about
    if advice.reason in ("faster", "memory") and about is not None:
        if about.precision == "fp16":
            skipped = 0 if about.row is None else about.row.skipped
            count = f", {units.count(skipped)} here"
            yield f"fp16 needs the GradScaler, which skips steps now and then{count}; save its state too"
        if about.losses is None or about.losses.outcome == "not measured":
            yield "whether it ends at the loss of FP32 was not measured: `amptui compare` does that"
        elif about.losses.outcome == "same" and len(about.losses.losses) <= MIN_SEEDS:
            yield "two seeds show only large differences of the loss; more --minutes train more"
    for other in candidates:
        if other.answer is not None and other is not about and advice.precision != "fp32":
            grave = [each for each in other.answer.counted if each.grade == "error"]
            if grave:
                yield f"not {precision_label(other.precision)}: {finding_words(grave[0])}"
    yield from warnings(view)


def warnings(view: SessionView) -> Iterator[str]:
    """What the run itself warned of before its second step: data that stand in, unsafe losses."""
    for event in reversed(view.events):
        if event.severity == "warning" and event.kind == "note" and (event.step or 0) <= 1:
            yield event_text(event)


def compiling(pairs: Sequence[PairCompared]) -> Iterator[str]:
    """What ``torch.compile`` gained in each precision."""
    for pair in pairs:
        if pair.than == pair.precision + EAGER_SUFFIX:
            ratio = ratio_words(pair.speedup, pair.speedup_low, pair.speedup_high)
            yield f"{precision_label(pair.precision)} compiled has {ratio} the speed of eager"


def not_measured(
    candidates: Sequence[Candidate], missing: Mapping[str, str], race: LossRace | None
) -> Iterator[str]:
    """What is absent, each with its reason."""
    for candidate in candidates:
        if candidate.exclusion is not None:
            yield f"{precision_label(candidate.precision)}: {_why_excluded(candidate)}"
    for what, why in missing.items():
        yield f"{_MISSING.get(what, what)}: {why}"
    if race is not None and race.why_not:
        yield f"loss in each precision: {race.why_not}"


_MISSING = {
    "x-ray": "agreement of the gradients",
    "trace": "the largest outputs",
    "comparison": "speed in alternation",
}


def _why_excluded(candidate: Candidate) -> str:
    """With the answer's own words on what went wrong."""
    assert candidate.exclusion is not None
    cause = None if candidate.answer is None else candidate.answer.cause
    if candidate.exclusion.kind == "trouble" and cause is not None:
        return f"{LEFT_OUT}, {finding_words(cause)}"
    return f"{LEFT_OUT}, {exclusion_words(candidate.exclusion)}"


def how_measured(compared: PrecisionsCompared | None, race: LossRace | None) -> Iterator[str]:
    """What the numbers are of."""
    if compared is not None and compared.rounds:
        rounds = f"{units.count(compared.rounds)} round{'' if compared.rounds == 1 else 's'}"
        yield f"speed: {rounds} of {compared.block_steps} steps in alternation, without warm-up"
    if race is not None and race.seeds >= MIN_SEEDS:
        steps = f"mean of the last {min(MEAN_STEPS, race.steps)} of {units.count(race.steps)} steps"
        seeds = f"{race.seeds} seed{'' if race.seeds == 1 else 's'}"
        yield f"loss: {steps}, {seeds}, each from the same start in every precision{_could_show(race)}"


def _could_show(race: LossRace) -> str:
    """Which difference the seeds would have shown, of the precision that they say least of."""
    compared = [race.compared(name) for name in race.finals if name != "fp32"]
    found = [each for each in compared if each.detectable is not None]
    if not found:
        return ""
    worst = max(found, key=lambda each: each.detectable or 0.0)
    mean = abs(fmean(worst.baseline_losses))
    share = f", {units.share(worst.detectable, mean)} of it" if mean else ""
    return f"; a difference of {units.loss(worst.detectable)}{share}, would show"


# ------------------------------------------------------------------------------------- the table


def table_rows(view: SessionView, candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """The head and the rows of the table: FP32 and each candidate of which something was measured."""
    shown = [each for each in candidates if each.row is not None or _steps(each)]
    if not shown:
        return []
    rows = [("", "FP32", *(precision_label(each.precision) for each in shown))]
    steps = (step_seconds(view, "fp32"), *(each.step_seconds for each in shown))
    rows.append(("step", *map(units.milliseconds, steps)))
    rows.append(("speed", "baseline", *(_speed_cell(each) for each in shown)))
    baseline = row_of(view, "fp32")
    peak = None if baseline is None else baseline.peak_allocated_bytes
    if peak is not None:
        rows.append(("memory", units.number_of_bytes(peak), *(_memory_cell(each) for each in shown)))
    for subject in SUBJECTS:
        cells = [_cell(each.answer, subject) for each in shown]
        if any(cells):
            rows.append((ROW_LABELS[subject], _baseline_cell(subject, candidates), *cells))
    return rows


def _steps(candidate: Candidate) -> int:
    return 0 if candidate.answer is None else candidate.answer.steps


def _speed_cell(candidate: Candidate) -> str:
    row = candidate.row
    if row is not None and row.speedup:
        return ratio_words(row.speedup, row.speedup_low, row.speedup_high)
    if candidate.exclusion is not None:
        return LEFT_OUT
    return units.NOT_AVAILABLE if candidate.answer is None else short_words(candidate.answer.of("speed"))


def _memory_cell(candidate: Candidate) -> str:
    peak = None if candidate.row is None else candidate.row.peak_allocated_bytes
    if candidate.memory is None:
        return units.number_of_bytes(peak)
    return f"{units.number_of_bytes(peak)}, {units.ratio(candidate.memory)}"


def _cell(answer: AmpAnswer | None, subject: Subject) -> str:
    finding = None if answer is None else answer.of(subject)
    if finding is None or answer is None or not _speaks(finding, answer):
        return ""
    return f"{SIGNS[finding.grade]} {short_words(finding)}"


def _speaks(finding: Finding, answer: AmpAnswer) -> bool:
    """Whether it is measured, and of that precision."""
    if finding.freshness == "never measured" or finding.about not in ("", answer.precision):
        return False
    return not (finding.subject == "loss" and finding.state in ("mid-run", "finite"))


def _baseline_cell(subject: Subject, candidates: Sequence[Candidate]) -> str:
    if subject != "loss":
        return ""
    every = (each.losses.baseline_losses for each in candidates if each.losses is not None)
    losses = next(filter(None, every), ())
    return units.loss(fmean(losses)) if losses else ""
