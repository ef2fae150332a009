"""The summary printed after a run: how it ended, the numbers, the verdict, and how to go on."""

from collections.abc import Sequence

from amptui.base import units
from amptui.base.prompt import complain
from amptui.base.table import Column, table_lines
from amptui.diagnosis.amp_answer import AmpAnswer, amp_answer, answer_line, evidence_rows, interval_words
from amptui.diagnosis.event_words import run_ended, validation_words, weights_saved
from amptui.diagnosis.labels import data_label, optimizers_left_out, precision_label, run_words
from amptui.diagnosis.speed import (
    little_memory,
    of_steps,
    peak_words,
    provisional_lines,
    result_cards,
)
from amptui.diagnosis.tensor_cores import flops_hints, flops_line
from amptui.diagnosis.words import long_words
from amptui.records.keeping import KeepingChanged, unsaved_status
from amptui.records.run import RunFailed, Validated
from amptui.telemetry.view import OptimizerView, PrecisionStats, SessionView


def _measured_loss(value: float | None) -> str:
    return units.NOT_MEASURED if value is None else units.loss(value)


_COLUMNS: tuple[Column[PrecisionStats], ...] = (
    Column(title="precision", cell=lambda stats: precision_label(stats.precision), align="left"),
    Column(title="steps", cell=lambda stats: units.count(stats.steps_made)),
    Column(
        title="mean step", cell=lambda stats: of_steps(stats, units.milliseconds(stats.mean_step_seconds))
    ),
    Column(title="samples/s", cell=lambda stats: of_steps(stats, units.rate(stats.samples_per_second))),
    Column(title="peak allocated", cell=peak_words),
    Column(title="last loss", cell=lambda stats: _measured_loss(stats.last_loss)),
    Column(title="skipped", cell=lambda stats: units.count(stats.skipped)),
)

_OPTIMIZER_COLUMNS: tuple[Column[OptimizerView], ...] = (
    Column(title="optimizer", cell=lambda optimizer: optimizer.label, align="left"),
    Column(title="steps", cell=lambda optimizer: units.count(optimizer.step)),
    Column(
        title="precision",
        cell=lambda optimizer: precision_label(optimizer.precision or "").strip() or units.NOT_MEASURED,
    ),
    Column(title="last loss", cell=lambda optimizer: _measured_loss(optimizer.loss)),
    Column(title="smoothed", cell=lambda optimizer: _measured_loss(optimizer.smoothed_loss)),
    Column(title="lr", cell=lambda optimizer: _measured_loss(optimizer.lr)),
    Column(title="skipped", cell=lambda optimizer: units.count(optimizer.skipped)),
)


def summary_lines(view: SessionView, resume_command: str = "") -> list[str]:
    """The summary as lines of plain text; the error of a run that failed is not in it, but follows it.

    ``resume_command`` resumes the run on this machine.
    """
    if isinstance(view.outcome, RunFailed):
        if not view.step:
            return []
        lines = []
    else:
        lines = [f"ended at step {view.step:,}" if view.outcome is None else run_ended(view.outcome)]
    if view.run is not None:
        where = f"{view.run.device_name}, {data_label(view.run.data)}{run_words(view.run)}"
        lines.append(f"{view.run.model} on {where}")
    if view.ranks is not None:
        lines += [long_words(finding) for finding in view.ranks.findings if finding.subject == "rank speed"]
    if view.validated is not None and view.validated.validation is not None:
        when = f"epoch {view.validated.epoch}"
        if isinstance(view.validated, Validated):
            when = f"step {view.validated.step:,}"
        lines.append(f"validation after {when}: {validation_words(view.validated.validation)}")
    lines += _number_lines(view)
    if view.run is not None:
        lines += ["", *_verdict_lines(amp_answer(view))]
    lines += [*map(long_words, little_memory(view)), ""]
    if view.weights is not None:
        lines.append(weights_saved(view.weights))
    lines.append(f"journal: {view.run_dir}/journal.jsonl")
    if resume_command and view.checkpoint is not None and getattr(view.outcome, "reason", "") == "stopped":
        lines.append(f"to resume from step {view.checkpoint.step:,}: {resume_command}")
    return lines


def _number_lines(view: SessionView) -> list[str]:
    """Of each optimizer and each precision."""
    lines = []
    if view.optimizers:
        lines += ["", *table_lines(_OPTIMIZER_COLUMNS, view.optimizers), *optimizers_left_out(view)]
        (front,) = (optimizer.label for optimizer in view.optimizers if optimizer.is_front)
        lines.append(f"all other numbers are of {front}")
    if view.comparison.rows:
        lines += ["", *table_lines(_COLUMNS, view.comparison.rows), *provisional_lines(view.comparison)]
        if view.compared is not None and len(view.compared.rows) > 2:  # of two the verdict says it
            lines += result_cards(view.compared, view.run)
    return lines + [line for flops in view.flops if (line := flops_line(flops))] + flops_hints(view.flops)


def _verdict_lines(answer: AmpAnswer) -> list[str]:
    """The verdict, then what it does not say: memory and bottleneck of a rough speed-up, further trouble."""
    more = [
        words
        for finding, words, _ in evidence_rows(answer)
        if (finding.subject in ("memory", "limit") and not interval_words(answer.of("speed")))
        or (finding.is_trouble and finding != answer.trouble)
    ]
    return [answer_line(answer), *(f"  {words}" for words in more)]


def tell_unsaved(changes: Sequence[KeepingChanged]) -> int:
    """Write what of a run is not saved, a line for each part; return the status of a run that is done."""
    for change in changes:
        complain(change.trouble)
    return unsaved_status(changes)
