"""Measures a model's precisions in alternation, each batch size in a new training of the same process."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from amptui.base import strictjson
from amptui.base.errors import AmptuiError, DataError, DeviceError, DeviceLostError, UsageError
from amptui.base.prompt import complain, put, say
from amptui.loops.worker import torch_failed
from amptui.monitor.ab_test import MAX_ROUNDS
from amptui.process.plain_lines import stdout_of
from amptui.process.stop_signals import StopSignals
from amptui.process.training import Training, leave_at_once, measure_training
from amptui.recipe.request import BenchRequest, ModelSpec, TrainRequest, parse_model
from amptui.records.control import ComparisonRequest, Control, PauseRequest, StopRequest
from amptui.records.run import PRECISIONS, is_emulated
from amptui.reports.bench.progress import Progress
from amptui.reports.bench.results import Bench, Measured, report_json, report_lines

if TYPE_CHECKING:
    import torch

MAX_BLOCK_STEPS = 200
"""Steps of one block at most: up to 50 for the warm-up, 20 that count, and on a GPU those that were sent
before the last of these arrived."""

SLOW = 2.0
"""If float16 is slower than float32 by this factor, it is measured only if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which precisions run, the baseline first, and why the others do not."""

    precisions: tuple[str, ...]
    left_out: Mapping[str, str]


def bench(request: BenchRequest, *, json: bool) -> int:
    """Measure, print the results, and return the exit status.

    0 if at least one batch size was measured completely, otherwise the status of the first error, or 128 +
    the number of the signal that ended it. With ``json`` standard output is one JSON object; progress goes to
    standard error. Raises ``UsageError`` and ``DeviceError`` for what is not there.
    """
    training, spec = request.training, parse_model(request.training.model)
    stop, trials = Control(), list[_Trial]()
    with stdout_of(json=json) as out, StopSignals(stop.ask) as signals:
        compiles = training.compile_mode is not None
        plan = plan_precisions(
            request.precisions, device_of(training), fp8_recipe=training.fp8_recipe, compiles=compiles
        )
        with TemporaryDirectory(prefix="amptui-bench-", ignore_cleanup_errors=True) as scratch:
            for batch_size in request.batch_sizes:
                if stop.stop_reason:
                    break
                folder = request.run_dir or Path(scratch)
                if len(request.batch_sizes) > 1:
                    folder /= f"batch-{batch_size}"
                trials.append(_Trial(plan, compiles, Progress(sys.stderr if json else sys.stdout), stop))
                trials[-1].run(_training(request, plan, batch_size), spec, folder)
                # Lack of memory or data does not end the list.
                if trials[-1].hangs or not isinstance(trials[-1].error, DeviceError | DataError | None):
                    break
        left_out = dict(plan.left_out)
        for trial in trials:
            left_out |= trial.left_out
        result = Bench(
            model=spec.text,
            request=request,
            left_out=left_out,
            sizes=tuple(trial.measured for trial in trials),
            interrupted=signals.received is not None,
        )
        if json:
            put(strictjson.line(report_json(result)), out)
        else:
            say(*report_lines(result), out=out)
    status = next((trial.error.exit_status for trial in trials if trial.error is not None), 1)
    if any(trial.error is None and trial.measured.rows for trial in trials):
        status = 0
    if signals.received:
        status = 128 + signals.received
    if any(trial.hangs or isinstance(trial.error, DeviceLostError) for trial in trials):
        leave_at_once(status or 1)
    return status


def _training(request: BenchRequest, plan: Plan, batch_size: int | None) -> TrainRequest:
    """What trains for one batch size, longer than the comparison takes."""
    training = request.training
    sides = len(plan.precisions) * (1 if training.compile_mode is None else 2)
    return replace(
        training,
        precision=plan.precisions[0],
        batch_size=batch_size,
        min_steps=(request.rounds or MAX_ROUNDS) * sides * MAX_BLOCK_STEPS,
        interactive=False,
        probes=False,
        max_rounds=request.rounds,
        validation=False,
    )


def plan_precisions(
    names: Sequence[str] | None,
    device: "torch.device",
    *,
    fp8_recipe: str | None = None,
    compiles: bool = False,
) -> Plan:
    """The precisions of ``names``, or all worth measuring, that ``device`` supports; and why not the others.

    Whether the model has a layer for FP8 shows once it is built. Raises ``UsageError`` if fewer than two are
    left; one is enough if it runs eagerly and compiled.
    """
    from amptui.recipe.float8 import NO_SPEED, torchao_trouble
    from amptui.recipe.precision import unsupported_precisions

    worth = tuple(name for name in PRECISIONS if not is_emulated(name)) if names is None else names
    left_out = {"fp8-emulated": NO_SPEED} | unsupported_precisions(device)
    left_out = {name: why for name, why in left_out.items() if name in worth}
    if "fp8" in worth and "fp8" not in left_out and (trouble := torchao_trouble(fp8_recipe, "hardware")):
        left_out["fp8"] = trouble
    if names is None and device.type == "cpu":
        left_out = {"ieee": "the same as FP32 on a CPU"} | left_out | slow_float16()
    precisions = tuple(dict.fromkeys(worth))
    precisions = tuple(name for name in precisions if name not in left_out)
    plan = Plan(precisions=precisions, left_out=left_out)
    if (error := nothing_to_compare(plan, compiles=compiles)) is not None:
        raise error
    return plan


def nothing_to_compare(plan: Plan, *, compiles: bool) -> UsageError | None:
    """The error of a plan with too few precisions; None if there are enough."""
    if len(plan.precisions) >= (1 if compiles else 2):
        return None
    why = "".join(f"; {name}: {reason}" for name, reason in plan.left_out.items())
    hint = f"name {'one' if compiles else 'two'} or more with --precisions"
    return UsageError(f"nothing to compare{why}", hint=hint)


def device_of(training: TrainRequest) -> "torch.device":
    """The device that it trains on. Raises ``AmptuiError`` if torch cannot be imported."""
    try:
        import torch  # noqa: F401 - a second attempt would raise another error
    except Exception as error:
        raise torch_failed(error) from error
    from amptui.loops.setup import choose_device

    return choose_device(training.device)


def slow_float16() -> dict[str, str]:
    """``fp16`` with the reason, if this CPU is much slower in float16; else nothing."""
    import torch

    from amptui.reports.doctor import precisions

    speed = precisions.measure(torch.device("cpu"), ("fp16",), budget_seconds=0.0)["fp16"]
    if isinstance(speed, str) or (times := 1 / speed.value) < SLOW:
        return {}
    slower = f"takes {times:.0f} times as long as a float32 one on this CPU"
    return {"fp16": f"a float16 matrix product {slower}; use --precisions to include it"}


class _Trial:
    """One training, which runs until the planned precisions are compared, or until it is asked to stop.

    The comparison is asked for once the model is built: only then is it known whether it has a layer for FP8.
    Until then the training pauses before its first step: it has no more than the comparison takes.
    """

    measured: Measured
    """The result."""

    def __init__(self, plan: Plan, compiles: bool, progress: Progress, stop: Control) -> None:
        self.error: AmptuiError | None = None
        """What ended it early."""
        self.left_out: dict[str, str] = {}
        """The planned precisions that this model cannot run, each with the reason."""
        self.hangs = False
        """The trainer did not stop when asked: this process can measure no more."""
        self._plan, self._compiles, self._progress, self._stop = plan, compiles, progress, stop
        self._has_asked = False

    def run(self, request: TrainRequest, spec: ModelSpec, folder: Path) -> None:
        """Train like any run; complain of what ended it early."""
        end = measure_training(
            request,
            spec,
            folder,
            begin=lambda training: training.control.ask(PauseRequest(paused=True)),
            poll=self._poll,
            hurried=lambda: self._stop.stop_reason is not None,
        )
        self._progress.clear()
        view, self.hangs = end.view, end.hangs
        self.error = end.error or self.error
        self.measured = Measured(
            batch_size=view.run.batch_size if view.run is not None else request.batch_size,
            view=view,
            error=str(self.error or ""),
        )
        if self.error is not None:
            batch = f"batch {request.batch_size}: " if request.batch_size is not None else ""
            complain(f"{batch}{self.error}")

    def _poll(self, training: Training) -> None:
        view = training.view()
        if view.run is not None and not self._has_asked:
            planned, unsupported = self._plan.precisions, view.run.unsupported
            self.left_out = {name: unsupported[name] for name in planned if name in unsupported}
            self._plan = Plan(
                precisions=tuple(name for name in planned if name not in self.left_out),
                left_out={**self._plan.left_out, **self.left_out},
            )
            self.error = nothing_to_compare(self._plan, compiles=self._compiles)
            self._has_asked = True
            if self.error is not None:
                training.control.ask(StopRequest("nothing to compare"))
            else:
                training.control.ask(ComparisonRequest(self._plan.precisions, eager=self._compiles))
            training.control.ask(PauseRequest(paused=False))
        self._progress.update(view)
        if self._stop.stop_reason:
            training.control.ask(StopRequest(self._stop.stop_reason))
        elif view.compared is not None and view.compared.over:
            training.control.ask(StopRequest("compared"))
