"""The summary printed after a run: how it ended, each precision's numbers, what they mean, the journal."""

from collections.abc import Sequence

from amptui.base import units
from amptui.base.prompt import complain
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import answer_lines
from amptui.diagnosis.event_words import run_ended, validation_words, weights_saved
from amptui.diagnosis.labels import data_label, optimizers_left_out, precision_label
from amptui.diagnosis.rank_words import run_words, speed_sentence
from amptui.diagnosis.speed import (
    NOT_MEASURED,
    explanations,
    of_steps,
    peak_words,
    provisional_lines,
    result_cards,
    uncounted,
)
from amptui.diagnosis.tensor_cores import flops_hints, flops_line
from amptui.records.keeping import KeepingChanged, unsaved_status
from amptui.records.run import Validated
from amptui.telemetry.view import PrecisionStats, SessionView

_COLUMNS = ("precision", "steps", "mean step", "samples/s", "peak allocated", "last loss", "skipped")


def summary_lines(view: SessionView) -> list[str]:
    """The summary as lines of plain text."""
    lines = [f"ended at step {view.step:,}" if view.outcome is None else run_ended(view.outcome)]
    if view.run is not None:
        where = f"{view.run.device_name}, {data_label(view.run.data)}{run_words(view.run)}"
        lines.append(f"{view.run.model} on {where}")
    if view.ranks is not None and (sentence := speed_sentence(view.ranks, view.run)):
        lines.append(sentence)
    if view.validated is not None and view.validated.validation is not None:
        when = f"epoch {view.validated.epoch}"
        if isinstance(view.validated, Validated):
            when = f"step {view.validated.step:,}"
        lines.append(f"validation after {when}: {validation_words(view.validated.validation)}")
    lines += _optimizers(view)
    if view.comparison.rows:
        lines += ["", *table(_COLUMNS, [_row(stats) for stats in view.comparison.rows])]
        lines += provisional_lines(view.comparison) + uncounted(view)
        if view.compared is not None:
            lines += result_cards(view.compared, view.run)
    lines += [line for flops in view.flops if (line := flops_line(flops))] + flops_hints(view.flops)
    if view.run is not None:
        lines += ["", *answer_lines(amp_answer(view))]
    lines += [*explanations(view), ""]
    if view.weights is not None:
        lines.append(weights_saved(view.weights))
    return [*lines, f"journal: {view.run_dir}/journal.jsonl"]


def _optimizers(view: SessionView) -> list[str]:
    """A row for each of several optimizers, and of which of them the other numbers are."""
    if not view.optimizers:
        return []
    rows = [
        (
            optimizer.label,
            units.count(optimizer.step),
            precision_label(optimizer.precision or "").strip() or NOT_MEASURED,
            *map(_measured_loss, (optimizer.loss, optimizer.smoothed_loss, optimizer.lr)),
            units.count(optimizer.skipped),
        )
        for optimizer in view.optimizers
    ]
    lines = ["", *table(("optimizer", "steps", "precision", "last loss", "smoothed", "lr", "skipped"), rows)]
    (front,) = (optimizer.label for optimizer in view.optimizers if optimizer.is_front)
    return [*lines, *optimizers_left_out(view), f"all other numbers are of {front}"]


def _row(stats: PrecisionStats) -> tuple[str, ...]:
    return (
        precision_label(stats.precision),
        units.count(stats.steps_made),
        of_steps(stats, units.milliseconds(stats.mean_step_seconds)),
        of_steps(stats, units.rate(stats.samples_per_second)),
        peak_words(stats),
        _measured_loss(stats.last_loss),
        units.count(stats.skipped),
    )


def _measured_loss(value: float | None) -> str:
    return NOT_MEASURED if value is None else units.loss(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, the first left-aligned, the others right-aligned.

    Leaves out a column without any measurement, for example peak memory on a CPU.
    """
    columns = zip(head, *rows, strict=True)
    measured = [column for column in columns if not set(column[1:]) <= {NOT_MEASURED, units.NOT_AVAILABLE}]
    widths = [max(map(len, column)) for column in measured]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in zip(*measured, strict=True)
    ]


def tell_unsaved(changes: Sequence[KeepingChanged]) -> int:
    """Write what of a run is not saved, a line for each part; return the status of a run that is done."""
    for change in changes:
        complain(change.trouble)
    return unsaved_status(changes)
