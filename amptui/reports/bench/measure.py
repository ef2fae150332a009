"""Measures a model's precisions in alternation, each batch size in a new training of the same process."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from amptui.base import strictjson
from amptui.base.errors import DataError, DeviceError, DeviceLostError, UsageError
from amptui.base.prompt import complain, put, say
from amptui.diagnosis.activity import phase_words
from amptui.loops.worker import torch_failed
from amptui.monitor.ab_test import MAX_ROUNDS
from amptui.process.plain_lines import stdout_of
from amptui.process.stop_signals import StopSignals
from amptui.process.training import Training, leave_at_once, measure_training
from amptui.recipe.request import BenchRequest, TrainRequest, parse_model
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import PRECISIONS
from amptui.reports.bench.progress import Progress, comparison_parts
from amptui.reports.bench.results import Bench, Measured, Plan, report_json, report_lines
from amptui.telemetry.view import SessionView

if TYPE_CHECKING:
    import torch

MAX_BLOCK_STEPS = 200
"""Steps of one block at most: up to 50 for the warm-up, 20 that count, and on a GPU those that were sent
before the last of these arrived."""

SLOW = 2.0
"""If float16 is slower than float32 by this factor, it is measured only if asked for."""

_NO_FASTER_FLOAT8 = "no CPU multiplies float8 faster"


def bench(request: BenchRequest, *, json: bool) -> int:
    """Measure, print the results, and return the exit status.

    0 if at least one batch size was measured completely, otherwise the status of the first error, or 128 +
    the number of the signal that ended it. With ``json`` standard output is one JSON object; progress goes to
    standard error. Raises ``UsageError`` and ``DeviceError`` for what is not there.
    """
    training, spec = request.training, parse_model(request.training.model)
    stop, sizes = Control(), list[Measured]()
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
                progress = Progress(sys.stderr if json else sys.stdout)
                sizes.append(_measure(request, plan, batch_size, folder, progress, stop))
                # Lack of memory or data does not end the list.
                if sizes[-1].hangs or not isinstance(sizes[-1].error, DeviceError | DataError | None):
                    break
        result = Bench(
            model=spec.text,
            request=request,
            plan=plan,
            sizes=tuple(sizes),
            interrupted=signals.received is not None,
        )
        if json:
            put(strictjson.line(report_json(result)), out)
        else:
            say(*report_lines(result), out=out)
    status = next((size.error.exit_status for size in sizes if size.error is not None), 1)
    if any(size.error is None and size.rows for size in sizes):
        status = 0
    if signals.received:
        status = 128 + signals.received
    if any(size.hangs or isinstance(size.error, DeviceLostError) for size in sizes):
        leave_at_once(status or 1)
    return status


def _measure(
    request: BenchRequest,
    plan: Plan,
    batch_size: int | None,
    folder: Path,
    progress: Progress,
    stop: Control,
) -> Measured:
    """Train until the planned precisions are compared, or until it is asked to stop; complain of its error.

    The comparison is asked for once the model is built: only then is it known whether it has a layer for FP8.
    Until then the training pauses before its first step: it has no more than the comparison takes.
    """
    compiles, has_asked = request.training.compile_mode is not None, False
    too_few: UsageError | None = None

    def poll(training: Training) -> None:
        nonlocal too_few, has_asked
        view, ask = training.view(), training.control.ask
        if view.run is not None and not has_asked:
            has_asked, able = True, plan.without(view.run.unsupported)
            too_few = nothing_to_compare(able, compiles=compiles)
            if too_few is None:
                ask(RequestMade("comparison", precisions=able.precisions, eager=compiles))
            else:
                ask(RequestMade("stop", reason="nothing to compare"))
            ask(RequestMade("pause", paused=False))
        progress.warn(view)
        progress.show(_progress_words(view))
        if stop.stop_reason:
            ask(RequestMade("stop", reason=stop.stop_reason))
        elif view.compared is not None and view.compared.over:
            ask(RequestMade("stop", reason="compared"))

    sides = len(plan.precisions) * (2 if compiles else 1)
    end = measure_training(
        replace(
            request.training,
            precision=plan.precisions[0],
            batch_size=batch_size,
            min_steps=(request.rounds or MAX_ROUNDS) * sides * MAX_BLOCK_STEPS,
            interactive=False,
            probes=False,
            max_rounds=request.rounds,
            validation=False,
        ),
        parse_model(request.training.model),
        folder,
        begin=lambda training: training.control.ask(RequestMade("pause", paused=True)),
        poll=poll,
        hurried=lambda: stop.stop_reason is not None,
    )
    progress.clear()
    view, error = end.view, end.error or too_few
    if error is not None:
        complain(f"batch {batch_size}: {error}" if batch_size is not None else str(error))
    if view.run is not None:
        batch_size = view.run.batch_size
    return Measured(batch_size=batch_size, view=view, error=error, hangs=end.hangs)


def _progress_words(view: SessionView) -> str:
    """``batch 256  round  3 of at most 24  AMP bf16 1.61× (1.55 to 1.68)``; before that the phase."""
    compared = view.compared
    if compared is None or view.step == 0:
        return phase_words(view.phase)
    if compared.over:
        return ""
    batch = [f"batch {view.run.batch_size}"] if view.run is not None and view.run.batch_size else []
    return "  ".join([*batch, *comparison_parts(compared)])


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
    from amptui.recipe.float8 import torchao_trouble
    from amptui.recipe.precision import unsupported_precisions

    worth = PRECISIONS if names is None else names
    left_out = {name: why for name, why in unsupported_precisions(device).items() if name in worth}
    if "fp8" in worth and "fp8" not in left_out and (trouble := torchao_trouble(fp8_recipe)):
        left_out["fp8"] = trouble
    if names is None and device.type == "cpu":
        left_out = {"ieee": "the same as FP32 on a CPU"} | left_out | slow_on_cpu()
    precisions = tuple(dict.fromkeys(worth))
    precisions = tuple(name for name in precisions if name not in left_out)
    plan = Plan(precisions, left_out)
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


def slow_on_cpu() -> dict[str, str]:
    """``fp8``, and ``fp16`` if this CPU is much slower in float16, each with the reason."""
    import torch

    from amptui.reports.doctor import precisions

    speed = precisions.measure(torch.device("cpu"), ("fp16",), budget_seconds=0.0)["fp16"]
    if isinstance(speed, str) or (times := 1 / speed.value) < SLOW:
        return {"fp8": _NO_FASTER_FLOAT8}
    slower = f"takes {times:.0f} times as long as a float32 one on this CPU"
    return {
        "fp8": _NO_FASTER_FLOAT8,
        "fp16": f"a float16 matrix product {slower}; use --precisions to include it",
    }
