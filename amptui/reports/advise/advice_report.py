"""A measurement with its recommendation, and every sentence of it: lines to read, and one JSON object."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from amptui.base import units
from amptui.base.table import GAP, Column, table_lines, table_width
from amptui.base.text import wrapped
from amptui.base.version import __version__
from amptui.diagnosis.amp_answer import NO_AMP, AmpAnswer, interval_words
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.finding_fields import less_percent, times_speed
from amptui.diagnosis.labels import data_label, precision_label
from amptui.diagnosis.speed import limit_lines
from amptui.diagnosis.words import SIGNS, SUBJECTS, long_words, short_words, speed_words
from amptui.recipe.request import AdviseRequest
from amptui.reports.advise.advice import (
    CANDIDATES,
    Advice,
    Candidate,
    Evidence,
    Exclusion,
    Reason,
    candidates,
    has_other_weights,
    recommend,
    row_of,
    step_seconds,
)
from amptui.reports.advise.paste_lines import NAMES, lines_for, train_command
from amptui.reports.compare.trace import MEAN_STEPS
from amptui.reports.compare.welch import MIN_SEEDS
from amptui.telemetry.memory import judge_memory
from amptui.telemetry.view import SessionView

WIDTH = 80

LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Everything that one command has found."""

    request: AdviseRequest
    evidence: Evidence
    candidates: tuple[Candidate, ...]
    advice: Advice
    interrupted: bool = False

    @property
    def lines(self) -> Mapping[str, tuple[str, ...]]:
        """What to paste, by framework."""
        run, request, precision = self.evidence.view.run, self.request, self.advice.precision
        if precision is None or run is None:
            return {}
        return lines_for(
            precision,
            run.device.partition(":")[0],
            command="" if request.script else train_command(request, precision),
            clip_norm=request.training.clip_norm,
            compiles=request.training.compile_mode is not None,
        )

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What stands below the headline: a label and a sentence each."""
        view, about = self.evidence.view, self.advice.about
        labelled = [
            ("why", [] if about is None else limit_lines(view, ("fp32", about.precision))),
            ("look out", cautions(self.advice, self.candidates, view)),
        ]
        return [(label, text) for label, texts in labelled for text in dict.fromkeys(texts)]


def recommendation(request: AdviseRequest, evidence: Evidence, *, interrupted: bool) -> Recommendation:
    """What follows from the evidence."""
    options = candidates(evidence, request.precisions or CANDIDATES)
    advice = recommend(options, other_weights=has_other_weights(evidence.view))
    return Recommendation(
        request=request, evidence=evidence, candidates=options, advice=advice, interrupted=interrupted
    )


def heading(result: Recommendation) -> str:
    """``simple-cnn on H200, CIFAR-10, batch 128``."""
    run, request = result.evidence.view.run, result.request
    if run is None:
        return request.training.model
    parts = [f"{run.model} on {run.device_name}"]
    parts += [] if request.script else [data_label(run.data)]
    if run.batch_size:
        parts.append(f"batch {units.count(run.batch_size)}")
    return ", ".join(parts)


def report_lines(result: Recommendation) -> list[str]:
    """The recommendation, why, the table, what was not measured, and the lines to paste, in 80 columns."""
    lines = [heading(result), "", *wrapped(headline(result.advice) + ".", WIDTH)]
    if result.interrupted:
        lines += wrapped("Interrupted: based on what was measured so far.", WIDTH)
    for label, text in result.notes:
        lines += wrapped(text, WIDTH, f"  {label}: ", " " * (len(label) + 4))
    rows = table_rows(result.evidence.view, result.candidates)
    lines += ["", *_table_lines(rows)] if rows else []
    missing = [line for text in not_measured(result) for line in wrapped(text, WIDTH, "  ", "    ")]
    lines += ["", "not measured:", *missing] if missing else []
    how = [line for text in how_measured(result.evidence) for line in wrapped(text, WIDTH)]
    lines += ["", *how] if how else []
    return lines + list(_paste_lines(result))


def _table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The columns side by side; those that do not fit into 80 columns stand below, with the labels again."""
    head, *rows = rows
    labels, *others = (
        Column(title=title, cell=itemgetter(place), align="left", is_optional=False)
        for place, title in enumerate(head)
    )
    label_width = max(len(row[0]) for row in rows)
    labels = replace(labels, min_width=label_width)
    lines: list[str] = []
    while others:
        shown = [labels]
        while others and (len(shown) == 1 or table_width([*shown, others[0]], rows) <= WIDTH):
            # One too wide for a table of its own is cut.
            shown.append(replace(others.pop(0), max_width=WIDTH - label_width - GAP))
        filled = [row for row in rows if any(column.cell(row) for column in shown[1:])]
        lines += [""] * bool(lines) + table_lines(shown, filled)
    return lines


def _paste_lines(result: Recommendation) -> Iterator[str]:
    """The lines of PyTorch's own in full, those of frameworks, which are few, beside their names."""
    lines = result.lines
    if result.advice.reason == "weights":
        yield from ("", "Nothing to paste: train it as it is, or with float32 weights and autocast.")
    elif result.advice.precision == "fp32":
        what = " but for torch.compile" if lines else ""
        yield from ("", f"Nothing to paste{what}: FP32 is what PyTorch trains in by default.")
    if "pytorch" in lines:
        yield from ("", f"{NAMES['pytorch']}:", *(f"    {line}" for line in lines["pytorch"]))
    width = max(map(len, NAMES.values())) + 1
    for place, name in enumerate(name for name in NAMES if name in lines and name != "pytorch"):
        yield from [""] * (place == 0)
        yield f"{NAMES[name] + ':':<{width}} {lines[name][0]}"
        yield from (f"{'':<{width}} {line}" for line in lines[name][1:])


# ------------------------------------------------------------------------------------------ JSON


def report_json(result: Recommendation) -> dict[str, Any]:
    """The same as one JSON object; what was not measured is null."""
    view, advice, request, race = result.evidence.view, result.advice, result.request, result.evidence.race
    run = view.run
    return {
        "type": "Advice",
        "version": __version__,
        "subject": request.training.model,
        "model": None if run is None else run.model,
        "machine": None if run is None else {"device": run.device, "name": run.device_name, **run.hardware},
        "versions": None if run is None else run.versions,
        "data": None if run is None or request.script else run.data,
        "batch_size": None if run is None else run.batch_size,
        "interrupted": result.interrupted,
        "recommended": advice.precision,
        "reason": advice.reason,
        "about": None if advice.about is None else advice.about.precision,
        "text": headline(advice),
        "notes": [{"label": label, "text": text} for label, text in result.notes],
        "baseline": None if view.compared is None else next(iter(view.compared.rows), None),
        "candidates": [
            {
                "precision": candidate.precision,
                "recommended": candidate.precision == advice.precision,
                "excluded": candidate.exclusion,
                "measured": candidate.row,
                "memory_ratio": candidate.memory,
                "answer": candidate.answer,
                "loss": candidate.loss,
            }
            for candidate in result.candidates
        ],
        "loss_steps": None if race is None else race.steps,
        "losses": None if race is None else race.finals,
        "not_measured": [*not_measured(result)],
        "how": [*how_measured(result.evidence)],
        "lines": result.lines,
    }


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
    for other in candidates:
        if other.answer is not None and other is not about and advice.precision != "fp32":
            # Errors, and also warnings of a faster FP8.
            warns = other.worth == "faster" and other.precision == "fp8"
            grades = ("error", "warning") if warns else ("error",)
            grave = next((one for one in other.answer.counted if one.grade in grades), None)
            if grave is not None:
                yield f"not {precision_label(other.precision)}: {long_words(grave)}"
    # What the run itself warned of before its second step: data that stand in, unsafe losses.
    for event in reversed(view.events):
        if event.severity == "warning" and event.kind == "note" and (event.step or 0) <= 1:
            yield event_text(event)


def not_measured(result: Recommendation) -> Iterator[str]:
    """What is absent, each with its reason."""
    for candidate in result.candidates:
        if (exclusion := candidate.exclusion) is not None:
            why = exclusion_words(exclusion)
            cause = None if candidate.answer is None else candidate.answer.cause
            if exclusion.kind == "trouble" and cause is not None:
                why = long_words(cause)
            yield f"{precision_label(candidate.precision)}: {LEFT_OUT}, {why}"
    for what, why in result.evidence.missing.items():
        yield f"{_MISSING.get(what, what)}: {why}"
    if (race := result.evidence.race) is not None and race.why_not:
        yield f"loss in each precision: {race.why_not}"


_MISSING = {
    "x-ray": "comparison of the gradients",
    "trace": "the largest outputs",
    "comparison": "speed in alternation",
}


def how_measured(evidence: Evidence) -> Iterator[str]:
    """What the numbers are of."""
    compared, race = evidence.view.compared, evidence.race
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
