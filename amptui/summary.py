"""The summary printed after a run: how it ended, each precision's numbers, what they mean, the journal."""

from collections.abc import Sequence

from amptui import units
from amptui.records import RunFailed, RunFinished
from amptui.telemetry.card import PROVISIONAL, result_cards, result_of_the_pair
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView

_COLUMNS = ("precision", "steps", "median step", "samples/s", "peak allocated", "last loss", "skipped")

NOT_MEASURED = "not measured"
"""In the row of a precision that ran, in place of a figure that was not measured."""


def summary_lines(view: SessionView) -> list[str]:
    """The summary as lines of plain text."""
    lines = [_ending(view)]
    if view.run is not None:
        data = "" if view.run.data.real else " (synthetic data)"
        lines.append(f"{view.run.model} on {view.run.device_name}, {view.run.data.name}{data}")
    if view.last_epoch is not None and view.last_epoch.validation is not None:
        found = view.last_epoch.validation
        lines.append(
            f"validation after epoch {view.last_epoch.epoch}: loss {units.loss(found.loss)}, "
            f"accuracy {units.percent(found.accuracy, 1)}"
        )
    if view.comparison.rows:
        lines += ["", *table(_COLUMNS, [_row(stats) for stats in view.comparison.rows])]
        lines += _verdict(view)
    lines += _numerics(view)
    lines += ["", f"journal: {view.run_dir}/journal.jsonl"]
    return lines


def _ending(view: SessionView) -> str:
    outcome = view.outcome
    if isinstance(outcome, RunFailed):
        return f"failed at step {outcome.step:,}: {outcome.error}"
    if isinstance(outcome, RunFinished):
        word = "done" if outcome.reason == "done" else "stopped"
        return f"{word} after {outcome.steps:,} steps in {units.duration(outcome.seconds)}"
    return f"ended at step {view.step:,}"


def of_steps(stats: PrecisionStats, figure: str) -> str:
    """A figure from measured steps, marked if those were warm-up steps."""
    if figure == units.NOT_AVAILABLE:
        return NOT_MEASURED
    return f"{PROVISIONAL}{figure}" if stats.provisional_steps else figure


def _row(stats: PrecisionStats) -> tuple[str, ...]:
    return (
        precision_label(stats.precision),
        units.count(stats.steps),
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
    lines = provisional_lines(comparison)
    left_out = sum(stats.warm_up_steps for stats in comparison.rows if not stats.provisional_steps)
    lines += [f"{left_out:,} warm-up steps left out"] if left_out else []
    if view.compared is not None:
        lines += result_cards(view.compared, view.run)
    if comparison.amp is None or comparison.baseline is None or result_of_the_pair(view) is not None:
        return lines
    amp, baseline = precision_label(comparison.amp), precision_label(comparison.baseline)
    if comparison.speedup is not None:
        lines.append(speedup_sentence(amp, baseline, comparison.speedup))
    elif comparison.provisional_speedup is not None:
        lines.append(provisional_sentence(amp, baseline, comparison))
    if comparison.memory_saving is not None:
        lines.append(memory_sentence(amp, comparison.memory_saving))
    return lines


def _numerics(view: SessionView) -> list[str]:
    """The findings on float16 and on AMP's speed-up, a line each."""
    numerics, lines = view.numerics, list[str]()
    if numerics.scaler.state != "unused":
        lines.append(f"loss scaler: {numerics.scaler.state}: {numerics.scaler.text}")
    if numerics.window is not None and numerics.window_verdict is not None:
        lines.append(f"float16 histogram of step {numerics.window.step:,}: {numerics.window_verdict.text}")
    if numerics.xray is not None and numerics.xray_verdict is not None:
        lines.append(f"X-ray of step {numerics.xray.step:,}: {numerics.xray_verdict.text}")
    return lines + list(view.comparison.explanations)


def speedup_sentence(amp: str, baseline: str, speedup: float) -> str:
    """``AMP fp16: 1.94× the speed of FP32``; the same words for ratios above and below 1."""
    return f"{amp}: {units.ratio(speedup)} the speed of {baseline}"


def provisional_sentence(amp: str, baseline: str, comparison: Comparison) -> str:
    """``AMP fp16: ~1.94× the speed of FP32, provisional: not enough steps yet: AMP 12 of 20``."""
    assert comparison.provisional_speedup is not None, "there is a first impression"
    ratio = f"{PROVISIONAL}{units.ratio(comparison.provisional_speedup)}"
    return f"{amp}: {ratio} the speed of {baseline}, provisional: {comparison.reason}"


def provisional_lines(comparison: Comparison) -> list[str]:
    """What ``~`` means in the table: the steps behind it; empty if no figure is provisional."""
    shown = [
        f"{stats.provisional_steps:,} in {precision_label(stats.precision)}"
        for stats in comparison.rows
        if stats.provisional_steps
    ]
    return [f"{PROVISIONAL} provisional: warm-up steps, {', '.join(shown)}"] if shown else []


def memory_sentence(amp: str, saving: float) -> str:
    """``AMP fp16: 38% less peak memory``, or more."""
    return f"{amp}: {units.percent(abs(saving))} {'less' if saving >= 0 else 'more'} peak memory"
