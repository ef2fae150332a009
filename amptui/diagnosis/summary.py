"""The summary printed after a run: how it ended, each precision's numbers, what they mean, the journal."""

from collections.abc import Sequence

from amptui.base import units
from amptui.base.prompt import complain
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import answer_lines
from amptui.diagnosis.event_words import run_ended, weights_saved
from amptui.diagnosis.labels import data_label, precision_label
from amptui.diagnosis.rank_words import run_words, speed_sentence
from amptui.diagnosis.speed import (
    NOT_MEASURED,
    explanations,
    of_steps,
    provisional_lines,
    result_cards,
    uncounted,
)
from amptui.diagnosis.tensor_cores import flops_hints, flops_line
from amptui.records.keeping import KeepingChanged, unsaved_status
from amptui.records.run import Validated, Validation
from amptui.telemetry.view import PrecisionStats, SessionView

_COLUMNS = ("precision", "steps", "median step", "samples/s", "peak allocated", "last loss", "skipped")


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
        lines.append(f"validation after {when}: {_validation(view.validated.validation)}")
    lines += _optimizers(view)
    if view.comparison.rows:
        lines += ["", *table(_COLUMNS, [_row(stats) for stats in view.comparison.rows])]
        lines += _verdict(view)
    lines += _numerics(view)
    lines.append("")
    if view.weights is not None:
        lines.append(weights_saved(view.weights))
    return [*lines, f"journal: {view.run_dir}/journal.jsonl"]


def _validation(found: Validation) -> str:
    own = "".join(f", {name} {units.loss(value)}" for name, value in found.metrics.items())
    return f"loss {units.loss(found.loss)}, accuracy {units.percent(found.accuracy, 1)}{own}"


def _optimizers(view: SessionView) -> list[str]:
    """A row for each of several optimizers, and of which of them the other numbers are."""
    if not view.optimizers:
        return []
    rows = [
        (
            each.label,
            units.count(each.step),
            precision_label(each.precision or "").strip() or NOT_MEASURED,
            units.loss(each.loss).replace(units.NOT_AVAILABLE, NOT_MEASURED),
            units.loss(each.smoothed_loss).replace(units.NOT_AVAILABLE, NOT_MEASURED),
            units.loss(each.lr).replace(units.NOT_AVAILABLE, NOT_MEASURED),
            units.count(each.skipped),
        )
        for each in view.optimizers
    ]
    lines = ["", *table(("optimizer", "steps", "precision", "last loss", "smoothed", "lr", "skipped"), rows)]
    if view.optimizers_left_out:
        lines.append(f"the run has more than {len(rows)} optimizers: the others are left out")
    (front,) = (each.label for each in view.optimizers if each.is_front)
    return [*lines, f"all other numbers are of {front}"]


def _row(stats: PrecisionStats) -> tuple[str, ...]:
    return (
        precision_label(stats.precision),
        units.count(stats.steps_made),
        of_steps(stats, units.milliseconds(stats.median_step_seconds)),
        of_steps(stats, units.rate(stats.samples_per_second)),
        units.number_of_bytes(stats.peak_allocated_bytes).replace(units.NOT_AVAILABLE, NOT_MEASURED),
        units.loss(stats.last_loss).replace(units.NOT_AVAILABLE, NOT_MEASURED),
        units.count(stats.skipped),
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, the first left-aligned, the others right-aligned.

    Leaves out a column without any measurement, for example peak memory on a CPU.
    """
    columns = zip(head, *rows, strict=True)
    kept = [column for column in columns if not set(column[1:]) <= {NOT_MEASURED, units.NOT_AVAILABLE}]
    widths = [max(map(len, column)) for column in kept]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in zip(*kept, strict=True)
    ]


def _verdict(view: SessionView) -> list[str]:
    comparison = view.comparison
    lines = provisional_lines(comparison) + uncounted(view)
    if view.compared is not None:
        lines += result_cards(view.compared, view.run)
    return lines


def _numerics(view: SessionView) -> list[str]:
    """What the steps compute, then the answer on AMP with its findings, and why it gained little."""
    lines = [line for found in view.flops if (line := flops_line(found))] + flops_hints(view.flops)
    if view.run is not None:
        lines += ["", *answer_lines(amp_answer(view))]
    return lines + explanations(view)


def tell_unsaved(changes: Sequence[KeepingChanged]) -> int:
    """Write what of a run is not saved, a line for each part; return the status of a run that is done."""
    for change in changes:
        complain(change.trouble)
    return unsaved_status(changes)
