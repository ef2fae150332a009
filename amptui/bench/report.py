"""What a measurement of precisions found, as lines for a person and as one JSON object."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amptui import units
from amptui.bench.progress import speedup_words
from amptui.findings import PhaseSeconds, PrecisionMeasured, PrecisionsCompared
from amptui.records import AMP_PRECISIONS, RunStarted
from amptui.request import BenchRequest
from amptui.telemetry.card import result_cards
from amptui.telemetry.explanations import LITTLE_SPEED
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import PrecisionTiming, SessionView
from amptui.wire import plain

_BAR_CELLS = 40

_COLUMNS = ("precision", "median step", "samples/s", "speed-up", "peak allocated", "losses", "skipped")

_ENDINGS = {
    "narrow": "every interval is narrow",
    "limit": "as many as were allowed",
    "stopped": "ended early",
    "running": "ended early",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """What others measured with the same model, in words."""

    lines: tuple[str, ...]
    per_epoch: bool
    """They tell seconds an epoch, so that ours are told too."""


REFERENCES: Mapping[str, Reference] = {
    "mnist-deep": Reference(
        ("the tutorial that it comes from, GPU not named: FP32 22.1 s an epoch, AMP 12.95 s, 1.71 times",),
        per_epoch=True,
    ),
    "resnet50": Reference(
        (
            "NVIDIA DeepLearningExamples, A100-80G: TF32 938 images/s, AMP 2,470, 2.63 times",
            "NVIDIA DeepLearningExamples, V100-16G: FP32 367 images/s, AMP 1,200, 3.26 times",
        ),
        per_epoch=False,
    ),
}
"""By the name in the catalogue: a model file of the same name is another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What became of one batch size."""

    batch_size: int | None
    """None where the training failed before that was known."""
    view: SessionView
    failed: Mapping[str, str]
    """The precisions that failed in their first step, with what happened."""
    error: str
    """What ended it early; empty when nothing did."""

    @property
    def compared(self) -> PrecisionsCompared | None:
        """The comparison as far as it came, with the peaks that were known only after its last round."""
        compared = self.view.compared
        if compared is None:
            return None
        peaks = {row.precision: row.peak_allocated_bytes for row in self.view.comparison.rows}
        return replace(compared, rows=tuple(_with_peak(row, peaks) for row in compared.rows))

    @property
    def rows(self) -> tuple[PrecisionMeasured, ...]:
        """The precisions that have a speed."""
        rows = self.compared.rows if self.compared is not None else ()
        return tuple(row for row in rows if row.step_seconds is not None)

    @property
    def cards(self) -> list[str]:
        """What there is to quote."""
        return result_cards(self.compared, self.view.run) if self.compared is not None else []

    @property
    def reasons(self) -> list[str]:
        """Why AMP gave little, a sentence each; none where it gave enough."""
        # There is no key to press here.
        told = [why.removesuffix("; press x for the breakdown") for why in self.view.comparison.explanations]
        little = [row for row in self.rows if row.precision in AMP_PRECISIONS and _is_little(row)]
        if not little or self.compared is None:
            return told
        timings = {timing.precision: timing for timing in self.view.timings}
        told += [text for timing in timings.values() for text in _bound_words(timing)]
        baseline = timings.get(self.compared.baseline)
        if baseline is not None:
            told.append(baseline.limit)
            others = (timings[row.precision] for row in little if row.precision in timings)
            told += [_phase_words(baseline, other) for other in others]
        names = " and ".join(precision_label(row.precision) for row in little)
        unknown = f"{names} did not pay here, and nothing that was measured says why; see `amptui doctor`"
        return [text for text in dict.fromkeys(told) if text] or [unknown]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """All that was measured, and what was not."""

    model: str
    """As it was asked for."""
    asked: BenchRequest
    left_out: Mapping[str, str]
    """The precisions that did not run, each with the reason."""
    sizes: tuple[Measured, ...]
    interrupted: bool

    @property
    def run(self) -> RunStarted | None:
        """What a training said of itself as it began; the machine is the same for all."""
        return next((size.view.run for size in self.sizes if size.view.run is not None), None)


def report_lines(found: Bench, *, encoding: str = "utf-8") -> list[str]:
    """Tables, sentences and plots; ``encoding`` is that of what they are written to."""
    lines = _heading(found)
    for size in found.sizes:
        lines += ["", *_size_lines(size)]
    lines += _left_out_lines(found)
    if sum(bool(size.rows) for size in found.sizes) > 1:
        lines += _plot_lines(found, full="█" if _can_write("█", encoding) else "#")
    lines += _reference_lines(found)
    return lines


def report_json(found: Bench) -> dict[str, Any]:
    """The same in JSON's types; numbers that are not finite are strings, those not measured null."""
    run, asked = found.run, found.asked
    machine = {"device": run.device, "name": run.device_name, **run.hardware} if run is not None else None
    reference = REFERENCES.get(found.model)
    content = {
        "model": found.model,
        "machine": machine,
        "versions": run.versions if run is not None else None,
        "data": run.data if run is not None else None,
        "parameters": run.parameters if run is not None else None,
        "channels_last": asked.training.channels_last,
        "compiled": asked.training.compiled,
        "seed": asked.training.seed,
        "interrupted": found.interrupted,
        "left_out": found.left_out,
        "measured": [_size_json(size) for size in found.sizes],
        "not_measured_here": reference.lines if reference is not None else (),
    }
    converted: dict[str, Any] = plain(content)
    return converted


def _with_peak(row: PrecisionMeasured, peaks: Mapping[str, int | None]) -> PrecisionMeasured:
    if row.peak_allocated_bytes is not None:
        return row
    return replace(row, peak_allocated_bytes=peaks.get(row.precision))


def _is_little(row: PrecisionMeasured) -> bool:
    return row.speedup is not None and row.speedup < 1 + LITTLE_SPEED


def _bound_words(timing: PrecisionTiming) -> Iterator[str]:
    """What the steps wait for, if it is not arithmetic."""
    if timing.bound not in ("", "compute"):
        yield f"{precision_label(timing.precision)} is {timing.bound}-bound: {timing.evidence}"


def _phase_words(baseline: PrecisionTiming, other: PrecisionTiming) -> str:
    """``AMP bf16: forward 185 ms instead of 366 ms, backward 1.66 s instead of 977 ms``."""
    before = {phase.name: units.milliseconds(_seconds(phase)) for phase in baseline.phases}
    parts = [
        f"{phase.name} {units.milliseconds(_seconds(phase))} instead of {before[phase.name]}"
        for phase in other.phases
        if phase.name in ("forward", "backward") and phase.name in before
    ]
    return f"{precision_label(other.precision)}: {', '.join(parts)}" if parts else ""


def _seconds(phase: PhaseSeconds) -> float:
    return phase.host_seconds if phase.device_seconds is None else phase.device_seconds


def _heading(found: Bench) -> list[str]:
    run = found.run
    if run is None:
        return []
    ways = ["channels last"] * found.asked.training.channels_last + [
        "compiled"
    ] * found.asked.training.compiled
    data = run.data.name if run.data.real else f"{run.data.name} (synthetic data)"
    return [", ".join([f"{run.model} on {run.device_name}", data, *ways])]


def _size_lines(size: Measured) -> list[str]:
    name = f"batch {units.count(size.batch_size)}" if size.batch_size is not None else "batch n/a"
    compared = size.compared
    if compared is None or not size.rows:
        return [f"{name}: {size.error or 'nothing was measured'}"]
    rounds = f"{_counted(compared.rounds, 'round')} of {compared.block_steps} steps each"
    how = f"{rounds}, in turns on the same weights, settling left out"
    lines = [f"{name}: {how}; {_ENDINGS[compared.reason]}"]
    lines += _table([_cells(row, compared) for row in compared.rows])
    if size.error:
        lines.append(f"ended early: {size.error}")
    lines += [f"not measured: {precision_label(name)}: {why}" for name, why in size.failed.items()]
    lines += ["", *size.cards] if size.cards else []
    return lines + [f"why: {reason}" for reason in size.reasons]


def _cells(row: PrecisionMeasured, compared: PrecisionsCompared) -> tuple[str, ...]:
    return (
        precision_label(row.precision),
        units.milliseconds(row.step_seconds),
        units.rate(row.samples_per_second),
        "baseline" if row.precision == compared.baseline else speedup_words(row),
        units.number_of_bytes(row.peak_allocated_bytes),
        f"{units.loss(row.first_loss)} to {units.loss(row.last_loss)}",
        units.count(row.skipped),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell: the first to the left, numbers to the right."""
    cells = [_COLUMNS, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _left_out_lines(found: Bench) -> list[str]:
    if not found.left_out or not found.sizes:
        return []
    return ["", *(f"not measured: {precision_label(name)}: {why}" for name, why in found.left_out.items())]


# ------------------------------------------------------------------------------------- plots


def _plot_lines(found: Bench, *, full: str) -> list[str]:
    """Speed-up and samples a second against the batch size, a bar each."""
    sizes = [(size, row) for size in found.sizes for row in size.rows]
    speedups = [(size, row, row.speedup) for size, row in sizes if row.speedup is not None]
    rates = [(size, row, row.samples_per_second) for size, row in sizes if row.samples_per_second is not None]
    lines = []
    if speedups:
        most = max(1.0, *(value for _, _, value in speedups))
        lines += ["", "speed-up by batch size; | is 1×"]
        for size, row, value in speedups:
            bar = _bar(value / most, full, mark=1 / most)
            lines.append(f"{_place(size, row)}  {bar}  {speedup_words(row)}")
    lines += ["", "samples a second by batch size"]
    most = max((rate for _, _, rate in rates), default=0.0)
    for size, row, rate in rates:
        lines.append(f"{_place(size, row)}  {_bar(rate / most, full)}  {units.rate(rate)}")
    return lines


def _place(size: Measured, row: PrecisionMeasured) -> str:
    return f"{units.count(size.batch_size):>9}  {precision_label(row.precision):9}"


def _bar(fraction: float, full: str, *, mark: float | None = None) -> str:
    """A bar of that part of the width, with a stroke at ``mark`` of it."""
    bar = (full * max(1, round(fraction * _BAR_CELLS))).ljust(_BAR_CELLS)
    if mark is None or not 0 < mark <= 1:
        return bar
    at = max(0, round(mark * _BAR_CELLS) - 1)
    return f"{bar[:at]}|{bar[at + 1 :]}"


def _can_write(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# -------------------------------------------------------------------------- numbers of others


def _reference_lines(found: Bench) -> list[str]:
    reference = REFERENCES.get(found.model)
    if reference is None or not any(size.rows for size in found.sizes):
        return []
    here = [line for size in found.sizes for line in _epoch_lines(size)] if reference.per_epoch else []
    return ["", "to stand beside, not measured here:", *(f"  {line}" for line in reference.lines), *here]


def _epoch_lines(size: Measured) -> list[str]:
    """What an epoch takes at the measured speeds, without its validation."""
    run = size.view.run
    if run is None or run.steps_per_epoch is None:
        return []
    steps = run.steps_per_epoch
    told = [
        f"{precision_label(row.precision)} {units.milliseconds(row.step_seconds * steps)}"
        for row in size.rows
        if row.step_seconds is not None
    ]
    return [f"here, an epoch of {units.count(steps)} steps of {run.batch_size}: {', '.join(told)}"]


def _size_json(size: Measured) -> dict[str, Any]:
    compared = size.compared
    return {
        "batch_size": size.batch_size,
        "baseline": compared.baseline if compared is not None else None,
        "block_steps": compared.block_steps if compared is not None else None,
        "rounds": compared.rounds if compared is not None else 0,
        "ended": compared.reason if compared is not None and compared.over else "stopped",
        "rows": compared.rows if compared is not None else (),
        "cards": size.cards,
        "reasons": size.reasons,
        "timings": size.view.timings,
        "memory": size.view.memory,
        "joules_per_1000_samples": {
            row.precision: row.joules_per_1000_samples for row in size.view.comparison.rows
        },
        "failed": size.failed,
        "error": size.error or None,
    }


def _counted(number: int, word: str) -> str:
    return f"{units.count(number)} {word}{'' if number == 1 else 's'}"
