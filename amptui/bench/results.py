"""The results of a benchmark, as lines to read and as one JSON object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amptui import units
from amptui.diagnosis.bottleneck import (
    AMP_PHASES,
    bound_words,
    evidence,
    limit_beside,
    phase_changes,
    why_slower,
)
from amptui.diagnosis.labels import data_label, precision_label
from amptui.diagnosis.speed import explanations, ratio_words, result_cards
from amptui.diagnosis.tensor_cores import flops_hints, mfu_words, rate_words
from amptui.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records import AMP_PRECISIONS, RunStarted
from amptui.request import BenchRequest
from amptui.strictjson import plain
from amptui.summary import table
from amptui.telemetry.comparison import LITTLE_SPEED
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import PrecisionFlops, PrecisionTiming, SessionView

_COLUMNS = (
    *("precision", "median step", "samples/s", "speed-up", "achieved", "MFU", "peak allocated", "losses"),
    "skipped",
)

_ENDINGS = {
    "narrow": "all intervals are narrow",
    "limit": "stopped at the limit of rounds",
    "stopped": "ended early",
    "running": "ended early",
}

REFERENCES: Mapping[str, tuple[str, ...]] = {
    "mnist-deep": ("the original tutorial, unknown GPU: FP32 22.1 s per epoch, AMP 12.95 s, 1.71 times",),
    "resnet50": (
        "NVIDIA DeepLearningExamples, A100-80G: TF32 938 images/s, AMP 2,470, 2.63 times",
        "NVIDIA DeepLearningExamples, V100-16G: FP32 367 images/s, AMP 1,200, 3.26 times",
    ),
}
"""Published results by name in the catalogue; a model file of the same name is a different model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of one batch size."""

    batch_size: int | None
    """None if the training failed before it was known."""
    view: SessionView
    error: str
    """What ended it early; empty if nothing did."""

    @property
    def rows(self) -> tuple[PrecisionMeasured, ...]:
        """The precisions that have a speed."""
        rows = self.view.compared.rows if self.view.compared is not None else ()
        return tuple(row for row in rows if row.step_seconds is not None)

    def flops_of(self, row: PrecisionMeasured) -> PrecisionFlops | None:
        """What its steps compute, at the speed of the comparison; None if it was not counted."""
        found = next((each for each in self.view.flops if each.counted.precision == row.precision), None)
        return found and flops_now(found.counted, row.step_seconds, self.view.run)

    @property
    def failed(self) -> Mapping[str, str]:
        """The precisions whose first step failed, each with the error."""
        return self.view.compared.failed if self.view.compared is not None else {}

    @property
    def cards(self) -> list[str]:
        """The sentences to quote."""
        return result_cards(self.view.compared, self.view.run) if self.view.compared is not None else []

    @property
    def reasons(self) -> list[str]:
        """Why AMP gained little, a sentence each; empty if it gained enough."""
        told = explanations(self.view)
        little = [row for row in self.rows if row.precision in AMP_PRECISIONS and _is_little(row)]
        if not little or self.view.compared is None:
            return told
        timings = {timing.precision: timing for timing in self.view.timings if timing.bound}
        told += [
            f"{precision_label(timing.precision)} is {bound_words(timing)}: {evidence(timing)}"
            for timing in timings.values()
            if timing.bound in ("input", "launch")
        ]
        baseline = timings.get(self.view.compared.baseline)
        if baseline is not None:
            others = [timings[row.precision] for row in little if row.precision in timings]
            slower = [why for other in others if (why := why_slower(baseline, other))]
            # Nobody asks what a slower precision could gain at most.
            told += slower or [self.limit_of(baseline), *(_phase_words(baseline, other) for other in others)]
        names = " and ".join(precision_label(row.precision) for row in little)
        slow = all(row.speedup is not None and row.speedup < 1 for row in little)
        verb = ("was" if len(little) == 1 else "were") + " slower" if slow else "gained little"
        unknown = f"{names} {verb}, and no measurement shows why; see `amptui doctor`"
        return [text for text in dict.fromkeys(told) if text] or [unknown]

    def limit_of(self, timing: PrecisionTiming) -> str:
        """The most that another precision can gain over this one."""
        return limit_beside(timing, self.view.timings, self.view.comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything measured, and what was not."""

    model: str
    """The request."""
    asked: BenchRequest
    left_out: Mapping[str, str]
    """The precisions that did not run, each with the reason."""
    sizes: tuple[Measured, ...]
    interrupted: bool

    @property
    def run(self) -> RunStarted | None:
        """The first record of a training; the machine is the same for all."""
        return next((size.view.run for size in self.sizes if size.view.run is not None), None)


def report_lines(found: Bench) -> list[str]:
    """A table and sentences for each batch size, then published results."""
    lines = _heading(found)
    for size in found.sizes:
        lines += ["", *_size_lines(size)]
    if found.left_out and found.sizes:
        lines += ["", *_not_measured(found.left_out)]
    references = REFERENCES.get(found.model, ())
    if references and any(size.rows for size in found.sizes):
        lines += ["", "for comparison, not measured here:", *(f"  {line}" for line in references)]
    return lines


def report_json(found: Bench) -> dict[str, Any]:
    """The same as JSON values; non-finite numbers are strings, those not measured null."""
    run, asked = found.run, found.asked
    machine = {"device": run.device, "name": run.device_name, **run.hardware} if run is not None else None
    content = {
        "model": found.model,
        "machine": machine,
        "versions": run.versions if run is not None else None,
        "data": run.data if run is not None else None,
        "parameters": run.parameters if run is not None else None,
        "channels_last": asked.training.channels_last,
        "cudnn_benchmark": asked.training.cudnn_benchmark,
        "compiled": asked.training.compile_mode is not None,
        "compile_mode": asked.training.compile_mode,
        "seed": asked.training.seed,
        "interrupted": found.interrupted,
        "left_out": found.left_out,
        "measured": [_size_json(size) for size in found.sizes],
        "not_measured_here": REFERENCES.get(found.model, ()),
    }
    converted: dict[str, Any] = plain(content)
    return converted


def _timing_json(timing: PrecisionTiming, size: Measured) -> dict[str, Any]:
    return {
        "precision": timing.precision,
        "steps": timing.steps,
        "phases": timing.phases,
        "bound": "" if timing.bound == "unknown" else timing.bound,
        "evidence": evidence(timing),
        "limit": size.limit_of(timing),
    }


def _phase_words(baseline: PrecisionTiming, other: PrecisionTiming) -> str:
    changes = phase_changes(baseline, other, AMP_PHASES)
    return f"{precision_label(other.precision)}: {changes}" if changes else ""


def _is_little(row: PrecisionMeasured) -> bool:
    return row.speedup is not None and row.speedup < 1 + LITTLE_SPEED


def _heading(found: Bench) -> list[str]:
    run, training = found.run, found.asked.training
    if run is None:
        return []
    ways = ["channels last"] * training.channels_last + ["cudnn.benchmark"] * training.cudnn_benchmark
    if training.compile_mode is not None:
        ways.append("compiled" + f" ({training.compile_mode})" * (training.compile_mode != "default"))
    return [", ".join([f"{run.model} on {run.device_name}", data_label(run.data), *ways])]


def _size_lines(size: Measured) -> list[str]:
    name = f"batch {units.count(size.batch_size)}" if size.batch_size is not None else "batch n/a"
    compared = size.view.compared
    if compared is None or not size.rows:
        return [f"{name}: {size.error or 'nothing was measured'}"]
    rounds = f"{units.count(compared.rounds)} round{'' if compared.rounds == 1 else 's'}"
    how = f"{rounds} of {compared.block_steps} steps each, alternating on the same weights, without warm-up"
    lines = [f"{name}: {how}; {_ENDINGS[compared.reason]}"]
    lines += table(_COLUMNS, [_cells(row, compared, size.flops_of(row)) for row in compared.rows])
    if size.error:
        lines.append(f"ended early: {size.error}")
    lines += _not_measured(size.failed, "failed in its first step: ")
    lines += ["", *size.cards] if size.cards else []
    lines += [f"hint: {hint}" for hint in flops_hints(size.view.flops)]
    return lines + [f"why: {reason}" for reason in size.reasons]


def _cells(
    row: PrecisionMeasured, compared: PrecisionsCompared, flops: PrecisionFlops | None
) -> Sequence[str]:
    return (
        precision_label(row.precision),
        units.milliseconds(row.step_seconds),
        units.rate(row.samples_per_second),
        "baseline"
        if row.precision == compared.baseline
        else ratio_words(row.speedup, row.speedup_low, row.speedup_high),
        units.NOT_AVAILABLE if flops is None else rate_words(flops),
        units.NOT_AVAILABLE if flops is None else mfu_words(flops),
        units.number_of_bytes(row.peak_allocated_bytes),
        f"{units.loss(row.first_loss)} to {units.loss(row.last_loss)}",
        units.count(row.skipped),
    )


def _not_measured(reasons: Mapping[str, str], what: str = "") -> list[str]:
    return [f"not measured: {precision_label(name)}: {what}{why}" for name, why in reasons.items()]


def _flops_json(found: PrecisionFlops) -> dict[str, Any]:
    return {
        "precision": found.counted.precision,
        "flops_per_step": found.counted.flops,
        "lower_bound": bool(found.counted.uncounted),
        "flops_per_second": found.flops_per_second,
        "peak_flops_per_second": found.peak_flops_per_second,
        "mfu": found.mfu,
        "flops_by_type": found.counted.flops_by_type,
        "nchw_flops": found.counted.nchw_flops,
        "unaligned_flops": found.counted.unaligned_flops,
        "uncounted": found.counted.uncounted,
    }


def _size_json(size: Measured) -> dict[str, Any]:
    compared = size.view.compared
    return {
        "batch_size": size.batch_size,
        "baseline": compared.baseline if compared is not None else None,
        "block_steps": compared.block_steps if compared is not None else None,
        "rounds": compared.rounds if compared is not None else 0,
        "ended": compared.reason if compared is not None and compared.over else "stopped",
        "rows": compared.rows if compared is not None else (),
        "cards": size.cards,
        "reasons": size.reasons,
        "flops": [_flops_json(found) for row in size.rows if (found := size.flops_of(row))],
        "timings": [_timing_json(timing, size) for timing in size.view.timings],
        "memory": size.view.memory,
        "joules_per_1000_samples": {
            row.precision: row.joules_per_1000_samples for row in size.view.comparison.rows
        },
        "failed": size.failed,
        "error": size.error or None,
    }
