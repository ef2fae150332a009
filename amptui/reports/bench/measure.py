"""Measures a model's precisions in alternation, each batch size in a new training of the same process."""

import json as json_text
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO

from amptui.base.errors import AmptuiError, DataError, DeviceError, DeviceLostError, UsageError
from amptui.base.prompt import complain, put
from amptui.base.text import inert_line
from amptui.engine.ab_test import MAX_ROUNDS
from amptui.engine.worker import torch_failed
from amptui.process.plain_lines import separate_stdout
from amptui.process.stop_signals import StopSignals
from amptui.process.training import Training, free_memory, leave_at_once, measure_training
from amptui.recipe.request import BenchRequest, ModelSpec, TrainRequest, parse_model
from amptui.records.control import ComparisonRequest, Control, PauseRequest, StopRequest
from amptui.records.findings import Float8Layers, ModelCompiled
from amptui.records.run import PRECISIONS, Record, is_emulated
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """The result of one batch size; ``error`` is what ended its training early."""

    measured: Measured
    error: AmptuiError | None
    left_out: Mapping[str, str]
    """The planned precisions that this model cannot run, each with the reason."""
    hangs: bool
    """The trainer did not stop when asked: this process can measure no more."""


def bench(request: BenchRequest, *, json: bool) -> int:
    """Measure, print the results, and return the exit status.

    0 if at least one batch size was measured completely, otherwise the status of the first error, or 128 +
    the number of the signal that ended it. With ``json`` standard output is one JSON object; progress goes to
    standard error. Raises ``UsageError`` and ``DeviceError`` for what is not there.
    """
    spec = parse_model(request.training.model)
    out = separate_stdout() if json else sys.stdout
    progress = Progress(sys.stderr if json else sys.stdout)
    stop = Control()
    with StopSignals(stop.ask) as signals:
        plan = _make_plan(request)
        ended = _measure_all(request, spec, plan, _Watch(progress, stop))
        result = Bench(
            model=spec.text,
            request=request,
            left_out={**plan.left_out, **{name: why for end in ended for name, why in end.left_out.items()}},
            sizes=tuple(end.measured for end in ended),
            interrupted=signals.received is not None,
        )
        _print(result, out, json=json)
    status = 128 + signals.received if signals.received else _status(ended)
    if any(end.hangs or isinstance(end.error, DeviceLostError) for end in ended):
        leave_at_once(status or 1)
    return status


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
    from amptui.engine.float8 import NO_SPEED, torchao_trouble
    from amptui.engine.precision import unsupported_precisions

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


def float16_slowdown(size: int = 512) -> float:
    """How many times as long a product of two square float16 matrices takes on this CPU as a float32 one."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(size, size, dtype=dtype)
        durations = []
        for _ in range(4):
            began = time.perf_counter()
            matrix @ matrix
            durations.append(time.perf_counter() - began)
        return median(durations[1:])  # the first one wakes threads and packs weights

    return seconds(torch.float16) / seconds(torch.float32)


def _make_plan(request: BenchRequest) -> Plan:
    training = request.training
    return plan_precisions(
        request.precisions,
        device_of(training),
        fp8_recipe=training.fp8_recipe,
        compiles=training.compile_mode is not None,
    )


def device_of(training: TrainRequest) -> "torch.device":
    """The device that it trains on. Raises ``AmptuiError`` if torch cannot be imported."""
    try:
        import torch  # noqa: F401 - a second attempt would raise another error
    except Exception as error:
        raise torch_failed(error) from error
    from amptui.engine.setup import choose_device

    return choose_device(training.device)


def slow_float16() -> dict[str, str]:
    """``fp16`` with the reason, if this CPU is much slower in float16; else nothing."""
    times = float16_slowdown()
    if times < SLOW:
        return {}
    return {
        "fp16": f"a float16 matrix product takes {times:.0f} times as long as a float32 one on this CPU; "
        "use --precisions to include it"
    }


def _measure_all(request: BenchRequest, spec: ModelSpec, plan: Plan, watch: "_Watch") -> list[_Ended]:
    """Run one training after the other; lack of memory or data does not end the list."""
    ended: list[_Ended] = []
    with TemporaryDirectory(prefix="amptui-bench-", ignore_cleanup_errors=True) as scratch:
        for batch_size in request.batch_sizes:
            if watch.stop.stop_reason:
                break
            folder = request.run_dir or Path(scratch)
            if len(request.batch_sizes) > 1:
                folder /= f"batch-{batch_size}"
            compiles = request.training.compile_mode is not None
            sides = len(plan.precisions) * (2 if compiles else 1)
            training = replace(
                request.training,
                precision=plan.precisions[0],
                batch_size=batch_size,
                min_steps=(request.rounds or MAX_ROUNDS) * sides * MAX_BLOCK_STEPS,
                interactive=False,
                probes=False,
                max_rounds=request.rounds,
                validation=False,
            )
            end = _measure(training, spec, plan, folder, watch)
            ended.append(end)
            free_memory()
            if end.error is not None:
                batch = f"batch {batch_size}: " if batch_size is not None else ""
                complain(f"{batch}{end.error}")
            if end.hangs or not isinstance(end.error, DeviceError | DataError | None):
                break
    return ended


def _measure(request: TrainRequest, spec: ModelSpec, plan: Plan, folder: Path, watch: "_Watch") -> _Ended:
    """Train like any run, until the precisions are compared."""
    noted, comparison = _Noted(), _Comparison(plan, compiles=request.compile_mode is not None)

    def begin(training: Training) -> None:
        comparison.begin(training)
        watch.progress.begin()

    def look(training: Training) -> None:
        comparison.look(training)
        watch.look(training)

    end = measure_training(
        request,
        spec,
        folder,
        begin=begin,
        look=look,
        hurried=lambda: watch.stop.stop_reason is not None,
        listeners=[noted],
    )
    watch.progress.clear()
    view, error = end.view, end.error or comparison.error
    measured = Measured(
        batch_size=view.run.batch_size if view.run is not None else request.batch_size,
        view=view,
        error=str(error or ""),
        compile_seconds=noted.compile_seconds,
        float8=noted.float8,
    )
    return _Ended(measured=measured, error=error, left_out=comparison.left_out, hangs=end.hangs)


class _Noted:
    """What compiling took for each precision, and which layers multiply in float8."""

    def __init__(self) -> None:
        self.compile_seconds: dict[str, float] = {}
        self.float8: Float8Layers | None = None

    def __call__(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, ModelCompiled):
                before = self.compile_seconds.get(record.precision, 0.0)
                self.compile_seconds[record.precision] = before + record.seconds
            elif isinstance(record, Float8Layers):
                self.float8 = record


@dataclass(slots=True)
class _Comparison:
    """Asks a training for the comparison of the planned precisions.

    At once, or where FP8 is among them once the model is built: only then is it known whether it has a layer
    for it. Until then the training pauses before its first step: it has no more than the comparison takes.
    """

    plan: Plan
    compiles: bool
    left_out: dict[str, str] = field(default_factory=dict)
    error: UsageError | None = None
    """That too few precisions are left."""
    _has_asked: bool = False

    def begin(self, training: Training) -> None:
        """To be called before the trainer starts."""
        if "fp8" in self.plan.precisions:
            training.control.ask(PauseRequest(paused=True))
        else:
            self._ask(training)

    def look(self, training: Training) -> None:
        """To be called now and then."""
        view = training.recording.view()
        if view.run is not None and not self._has_asked:
            self._leave_out(view.run.unsupported)
            self._ask(training)
            training.control.ask(PauseRequest(paused=False))

    def _leave_out(self, unsupported: Mapping[str, str]) -> None:
        planned = self.plan.precisions
        self.left_out |= {name: unsupported[name] for name in planned if name in unsupported}
        left_out = {**self.plan.left_out, **self.left_out}
        self.plan = Plan(
            precisions=tuple(name for name in planned if name not in left_out), left_out=left_out
        )
        self.error = nothing_to_compare(self.plan, compiles=self.compiles)

    def _ask(self, training: Training) -> None:
        self._has_asked = True
        if self.error is not None:
            training.control.ask(StopRequest("nothing to compare"))
        else:
            training.control.ask(ComparisonRequest(self.plan.precisions, eager=self.compiles))


@dataclass(frozen=True, slots=True)
class _Watch:
    """Watches a training while it runs."""

    progress: Progress
    stop: Control
    """Whether the benchmark was asked to stop."""

    def look(self, training: Training) -> None:
        """Show the progress; end the training once its precisions are compared, or when asked to."""
        view = training.recording.view()
        self.progress.update(view)
        if self.stop.stop_reason:
            training.control.ask(StopRequest(self.stop.stop_reason))
        elif view.compared is not None and view.compared.over:
            training.control.ask(StopRequest("compared"))


def _print(result: Bench, out: TextIO, *, json: bool) -> None:
    if not json:
        put("".join(inert_line(out, line) for line in report_lines(result)), out)
        return
    put(json_text.dumps(report_json(result), allow_nan=False) + "\n", out)
    with suppress(OSError):  # the stream is not shared
        out.close()


def _status(ended: Sequence[_Ended]) -> int:
    if any(end.error is None and end.measured.rows for end in ended):
        return 0
    return next((end.error.exit_status for end in ended if end.error is not None), 1)
