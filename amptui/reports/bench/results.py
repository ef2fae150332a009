"""The results of a benchmark, as lines to read and as one JSON object."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from amptui.base import units
from amptui.base.errors import AmptuiError
from amptui.base.table import Column, table_lines
from amptui.diagnosis.event_words import float8_layers
from amptui.diagnosis.finding_fields import ratio_words
from amptui.diagnosis.labels import data_label, precision_label
from amptui.diagnosis.speed import limit_lines, little_memory, result_cards
from amptui.diagnosis.tensor_cores import flops_hints, mfu_words, rate_words
from amptui.diagnosis.words import explained_words, explanation
from amptui.recipe.request import TrainRequest
from amptui.records.findings import Float8Layers, ModelCompiled, PrecisionMeasured, PrecisionsCompared
from amptui.records.run import RunStarted
from amptui.telemetry.flops import flops_now
from amptui.telemetry.timing import judge_limit
from amptui.telemetry.view import PrecisionFlops, SessionView

_ENDINGS = {
    "narrow": "all intervals are narrow",
    "limit": "stopped at the limit of rounds",
    "stopped": "ended early",
    "running": "ended early",
}


class Plan(NamedTuple):
    """Which precisions run, the baseline first, and why the others do not."""

    precisions: tuple[str, ...]
    left_out: Mapping[str, str]

    def without(self, unsupported: Mapping[str, str]) -> "Plan":
        """The plan for a model that does not support these, each with the reason."""
        left_out = {name: unsupported[name] for name in self.precisions if name in unsupported}
        able = tuple(name for name in self.precisions if name not in left_out)
        return Plan(able, {**self.left_out, **left_out})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of one batch size."""

    batch_size: int | None
    """None if the training failed before it was known."""
    view: SessionView
    error: AmptuiError | None = None
    """What ended it early."""
    hangs: bool = False
    """The trainer did not stop when asked: this process can measure no more."""

    @property
    def compile_seconds(self) -> Mapping[str, float]:
        """What compiling took, by precision; in no step's time."""
        seconds: dict[str, float] = {}
        for record in (event.about for event in reversed(self.view.events)):
            if isinstance(record, ModelCompiled):
                seconds[record.precision] = seconds.get(record.precision, 0.0) + record.seconds
        return seconds

    @property
    def float8(self) -> Float8Layers | None:
        """Which layers multiply in float8; None if FP8 did not run."""
        records = (event.about for event in self.view.events)
        return next((record for record in records if isinstance(record, Float8Layers)), None)

    @property
    def rows(self) -> tuple[PrecisionMeasured, ...]:
        """The precisions that have a speed."""
        rows = self.view.compared.rows if self.view.compared is not None else ()
        return tuple(row for row in rows if row.step_seconds is not None)

    def flops_of(self, row: PrecisionMeasured) -> PrecisionFlops | None:
        """What its steps compute, at the speed of the comparison; None if it was not counted."""
        flops = next((one for one in self.view.flops if one.counted.precision == row.precision), None)
        return flops and flops_now(flops.counted, row.step_seconds, self.view.run, row.samples_per_second)

    @property
    def cards(self) -> list[str]:
        """The sentences to quote."""
        return result_cards(self.view.compared, self.view.run) if self.view.compared is not None else []

    @property
    def reasons(self) -> list[str]:
        """What the steps wait for, and what another precision can gain, a sentence each."""
        gains = limit_lines(self.view, {row.precision for row in self.rows})
        return [*map(explained_words, little_memory(self.view)), *gains]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything measured, and what was not."""

    training: TrainRequest
    plan: Plan
    sizes: tuple[Measured, ...]
    interrupted: bool

    @property
    def left_out(self) -> Mapping[str, str]:
        """The precisions that did not run, each with the reason."""
        runs = (size.view.run for size in self.sizes)
        unsupported = (self.plan.without(run.unsupported).left_out for run in runs if run is not None)
        return next(unsupported, self.plan.left_out)

    @property
    def run(self) -> RunStarted | None:
        """The first record of a training; the machine is the same for all."""
        return next((size.view.run for size in self.sizes if size.view.run is not None), None)


def report_lines(bench: Bench) -> list[str]:
    """A table and sentences for each batch size, and what was not measured."""
    lines, run, training = list[str](), bench.run, bench.training
    mode = training.compile_mode
    if run is not None:
        ways = ["channels last"] * training.channels_last + ["cudnn.benchmark"] * training.cudnn_benchmark
        if mode is not None:
            ways.append("compiled" + f" ({mode})" * (mode != "default"))
        lines = [", ".join([f"{run.model} on {run.device_name}", data_label(run.data), *ways])]
    for size in bench.sizes:
        lines += ["", *_size_lines(size)]
    if bench.left_out and bench.sizes:
        lines += ["", *_not_measured(bench.left_out)]
    return lines


def report_json(bench: Bench) -> dict[str, Any]:
    """The same as one JSON object; what was not measured is null."""
    run, training = bench.run, bench.training
    machine = {"device": run.device, "name": run.device_name, **run.hardware} if run is not None else None
    return {
        "model": training.model,
        "machine": machine,
        "versions": run.versions if run is not None else None,
        "data": run.data if run is not None else None,
        "parameters": run.parameters if run is not None else None,
        "channels_last": training.channels_last,
        "cudnn_benchmark": training.cudnn_benchmark,
        "compiled": training.compile_mode is not None,
        "compile_mode": training.compile_mode,
        "seed": training.seed,
        "interrupted": bench.interrupted,
        "left_out": bench.left_out,
        "measured": [_size_json(size, training.compile_mode) for size in bench.sizes],
    }


def _size_lines(size: Measured) -> list[str]:
    name = f"batch {units.count(size.batch_size)}" if size.batch_size is not None else "batch n/a"
    compared = size.view.compared
    if compared is None or not size.rows:
        return [f"{name}: {size.error or 'nothing was measured'}"]
    rounds = units.counted(compared.rounds, "round")
    how = f"{rounds} of {compared.block_steps} steps each, alternating on the same weights, without warm-up"
    lines = [f"{name}: {how}; {_ENDINGS[compared.reason]}"]
    lines += table_lines(_columns(compared, size), compared.rows)
    if size.error:
        lines.append(f"ended early: {size.error}")
    lines += _not_measured(compared.failed, "failed in its first step: ")
    lines += _not_measured(
        {
            row.precision: f"the scaler skipped {units.count(row.skipped)}"
            for row in compared.rows
            if row.step_seconds is None and row.skipped
        },
        "too few steps: ",
    )
    lines += ["", *size.cards] if size.cards else []
    if size.float8 is not None:
        lines.append(float8_layers(size.float8))
    if size.compile_seconds:
        seconds = size.compile_seconds.items()
        took = ", ".join(f"{precision_label(name)} {units.span(span)}" for name, span in seconds)
        lines.append(f"compiling took, in no step's time: {took}")
    lines += [f"hint: {hint}" for hint in flops_hints(size.view.flops)]
    return lines + [f"why: {reason}" for reason in size.reasons]


def _columns(compared: PrecisionsCompared, size: Measured) -> tuple[Column[PrecisionMeasured], ...]:
    def speedup(row: PrecisionMeasured) -> str:
        if row.precision == compared.baseline:
            return "baseline"
        return ratio_words(row.speedup, row.speedup_low, row.speedup_high)

    def of_flops(words: Callable[[PrecisionFlops], str], row: PrecisionMeasured) -> str:
        flops = size.flops_of(row)
        return units.NOT_AVAILABLE if flops is None else words(flops)

    return (
        Column(title="precision", cell=lambda row: precision_label(row.precision), align="left"),
        Column(title="step", cell=lambda row: units.milliseconds(row.step_seconds)),
        Column(title="samples/s", cell=lambda row: units.rate(row.samples_per_second)),
        Column(title="speed-up", cell=speedup),
        Column(title="achieved", cell=partial(of_flops, rate_words)),
        Column(title="MFU", cell=partial(of_flops, mfu_words)),
        Column(title="peak allocated", cell=lambda row: units.number_of_bytes(row.peak_allocated_bytes)),
        Column(
            title="losses", cell=lambda row: f"{units.loss(row.first_loss)} to {units.loss(row.last_loss)}"
        ),
        Column(title="skipped", cell=lambda row: units.count(row.skipped)),
    )


def _not_measured(reasons: Mapping[str, str], what: str = "") -> list[str]:
    return [f"not measured: {precision_label(name)}: {what}{why}" for name, why in reasons.items()]


def _size_json(size: Measured, compile_mode: str | None) -> dict[str, Any]:
    compared = size.view.compared
    return {
        "batch_size": size.batch_size,
        "baseline": compared.baseline if compared is not None else None,
        "block_steps": compared.block_steps if compared is not None else None,
        "rounds": compared.rounds if compared is not None else 0,
        "ended": compared.reason if compared is not None and compared.over else "stopped",
        "rows": compared.rows if compared is not None else (),
        "float8": size.float8,
        "cards": size.cards,
        "reasons": size.reasons,
        "flops": [{**asdict(flops), "mfu": flops.mfu} for row in size.rows if (flops := size.flops_of(row))],
        "timings": [
            {**asdict(timing), "bound": limit.state, "evidence": explanation(limit)}
            for timing in size.view.timings
            for limit in (judge_limit(timing),)
        ],
        "memory": size.view.memory,
        "joules_per_1000_samples": {
            row.precision: row.joules_per_1000_samples for row in size.view.comparison.rows
        },
        "failed": {} if compared is None else compared.failed,
        "error": None if size.error is None else str(size.error),
        **({} if compile_mode is None else {"compile_seconds": size.compile_seconds}),
    }
