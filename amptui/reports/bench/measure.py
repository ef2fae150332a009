"""Measures a model's precisions in alternation, each batch size in a new training of the same process."""

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len, set_cell_size

from amptui.base import strictjson
from amptui.base.errors import DataError, DeviceError, DeviceLostError, UsageError
from amptui.base.prompt import complain, put, say
from amptui.base.text import printable, write_line
from amptui.diagnosis.activity import phase_words
from amptui.diagnosis.finding_fields import ratio_words
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.speed import round_words
from amptui.loops.worker import torch_failed
from amptui.monitor.ab_test import MAX_ROUNDS
from amptui.process.plain_lines import event_line, stdout_of
from amptui.process.stop_signals import StopSignals
from amptui.process.training import Training, leave_at_once, measure_training
from amptui.recipe.request import TrainRequest, parse_model
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import PRECISIONS
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


def bench(
    training: TrainRequest,
    *,
    precisions: Sequence[str] | None,
    batch_sizes: Sequence[int | None],
    rounds: int | None,
    run_dir: Path | None,
    json: bool,
) -> int:
    """Measure ``training`` with each of ``batch_sizes``, print the results, and return the exit status.

    ``precisions``: the first is what the others are compared with; None is all that pay to be looked at here.
    After ``rounds`` it ends, or by its intervals. Runs are kept in ``run_dir`` if there is one.

    0 if at least one batch size was measured completely, otherwise the status of the first error, or 128 +
    the number of the signal that ended it. With ``json`` standard output is one JSON object; progress goes to
    standard error. Raises ``UsageError`` and ``DeviceError`` for what is not there.
    """
    parse_model(training.model)  # before anything is measured
    stop, sizes = Control(), list[Measured]()
    with stdout_of(json=json) as out, StopSignals(stop.ask) as signals:
        plan = plan_precisions(precisions, device_of(training.device))
        with TemporaryDirectory(prefix="amptui-bench-", ignore_cleanup_errors=True) as scratch:
            for batch_size in batch_sizes:
                if stop.stop_reason:
                    break
                folder = run_dir or Path(scratch)
                if len(batch_sizes) > 1:
                    folder /= f"batch-{batch_size}"
                progress = Progress(sys.stderr if json else sys.stdout)
                sized = replace(training, batch_size=batch_size, max_rounds=rounds)
                sizes.append(_measure(sized, plan, folder, progress, stop))
                # Lack of memory or data does not end the list.
                if sizes[-1].hangs or not isinstance(sizes[-1].error, DeviceError | DataError | None):
                    break
        interrupted = signals.received is not None
        result = Bench(training=training, plan=plan, sizes=tuple(sizes), interrupted=interrupted)
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
    training: TrainRequest, plan: Plan, folder: Path, progress: "Progress", stop: Control
) -> Measured:
    """Train until the planned precisions are compared, or until it is asked to stop; complain of its error.

    The comparison is asked for once the model is built: only then is it known whether it has a layer for FP8.
    Until then the training pauses before its first step: it has no more than the comparison takes.
    """
    has_asked, batch_size = False, training.batch_size
    too_few: UsageError | None = None

    def poll(run: Training) -> None:
        nonlocal too_few, has_asked
        view, ask = run.view(), run.control.ask
        if view.run is not None and not has_asked:
            has_asked, able = True, plan.without(view.run.unsupported)
            too_few = nothing_to_compare(able)
            if too_few is None:
                ask(RequestMade("comparison", precisions=able.precisions))
            else:
                ask(RequestMade("stop", reason="nothing to compare"))
            ask(RequestMade("pause", paused=False))
        progress.warn(view)
        progress.show(_progress_words(view))
        if stop.stop_reason:
            ask(RequestMade("stop", reason=stop.stop_reason))
        elif view.compared is not None and view.compared.over:
            ask(RequestMade("stop", reason="compared"))

    view, error, hangs = measure_training(
        replace(
            training,
            precision=plan.precisions[0],
            min_steps=(training.max_rounds or MAX_ROUNDS) * len(plan.precisions) * MAX_BLOCK_STEPS,
            interactive=False,
            probes=False,
            validation=False,
        ),
        folder,
        begin=lambda run: run.control.ask(RequestMade("pause", paused=True)),
        poll=poll,
        hurried=lambda: stop.stop_reason is not None,
    )
    progress.clear()
    error = error or too_few
    if error is not None:
        complain(f"batch {batch_size}: {error}" if batch_size is not None else str(error))
    if view.run is not None:
        batch_size = view.run.batch_size
    return Measured(batch_size=batch_size, view=view, error=error, hangs=hangs)


def _progress_words(view: SessionView) -> str:
    """``batch 256  round  3 of at most 24  AMP bf16 1.61× (1.55 to 1.68)``; before that the phase."""
    compared = view.compared
    if compared is None or view.step == 0:
        return phase_words(view.phase)
    if compared.over:
        return ""
    batch = [f"batch {view.run.batch_size}"] if view.run is not None and view.run.batch_size else []
    return "  ".join([*batch, *comparison_parts(compared)])


def plan_precisions(names: Sequence[str] | None, device: "torch.device") -> Plan:
    """The precisions of ``names``, or all worth measuring, that ``device`` supports; and why not the others.

    Whether the model has a layer for FP8 shows once it is built. Raises ``UsageError`` if fewer than two
    remain.
    """
    from amptui.recipe.float8 import torchao_trouble
    from amptui.recipe.precision import unsupported_precisions

    worth = PRECISIONS if names is None else names
    left_out = {name: why for name, why in unsupported_precisions(device).items() if name in worth}
    if "fp8" in worth and "fp8" not in left_out and (trouble := torchao_trouble()):
        left_out["fp8"] = trouble
    if names is None and device.type == "cpu":
        left_out = {"ieee": "the same as FP32 on a CPU"} | left_out | slow_on_cpu()
    precisions = tuple(dict.fromkeys(worth))
    precisions = tuple(name for name in precisions if name not in left_out)
    plan = Plan(precisions, left_out)
    if (error := nothing_to_compare(plan)) is not None:
        raise error
    return plan


def nothing_to_compare(plan: Plan) -> UsageError | None:
    """The error of a plan with too few precisions; None if there are enough."""
    if len(plan.precisions) >= 2:
        return None
    why = "".join(f"; {name}: {reason}" for name, reason in plan.left_out.items())
    return UsageError(f"nothing to compare{why}", hint="name two or more with --precisions")


def device_of(name: str) -> "torch.device":
    """The device that ``--device`` names. Raises ``AmptuiError`` if torch cannot be imported."""
    try:
        import torch  # noqa: F401 - a second attempt would raise another error
    except Exception as error:
        raise torch_failed(error) from error
    from amptui.loops.setup import choose_device

    return choose_device(name)


def slow_on_cpu() -> dict[str, str]:
    """``fp8``, and ``fp16`` if this CPU is much slower in float16, each with the reason."""
    cpu = device_of("cpu")
    from amptui.reports.doctor import precisions

    speed = precisions.measure(cpu, ("fp16",), budget_seconds=0.0)["fp16"]
    if isinstance(speed, str) or (times := 1 / speed.value) < SLOW:
        return {"fp8": _NO_FASTER_FLOAT8}
    slower = f"takes {times:.0f} times as long as a float32 one on this CPU"
    return {
        "fp8": _NO_FASTER_FLOAT8,
        "fp16": f"a float16 matrix product {slower}; use --precisions to include it",
    }


# ------------------------------------------------------------------------------ how far it is


class Progress:
    """One line that is rewritten on a terminal; elsewhere only warnings are written."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._on_terminal = out, out.isatty()
        self._last_text = ""
        self._warned = 0

    def warn(self, view: SessionView) -> None:
        """Write the new events that are warnings or errors as lines that stay."""
        fresh = [event for event in reversed(view.events) if event.number > self._warned]
        self._warned = max((event.number for event in fresh), default=self._warned)
        for event in fresh:
            if event.severity != "info" and event.kind != "failed":  # that one is reported as an error
                self.clear()
                write_line(self._out, event_line(event))

    def show(self, text: str) -> None:
        """Show ``text`` in place of the last one."""
        if not self._on_terminal or text == self._last_text:
            return
        room, encoding = shutil.get_terminal_size().columns - 1, self._out.encoding or "ascii"
        shown = printable(text).encode(encoding, "replace").decode(encoding)
        if cell_len(shown) > room:  # a line that wraps cannot be rewritten
            shown = set_cell_size(shown, room)
        self._rewrite(f"\r{shown}\x1b[K")
        self._last_text = text

    def clear(self) -> None:
        """Clear the rewritten line."""
        if self._last_text:
            self._rewrite("\r\x1b[K")
        self._last_text = ""

    def _rewrite(self, text: str) -> None:
        with suppress(OSError):  # nobody reads it; the measurement continues
            self._out.write(text)
            self._out.flush()


def comparison_parts(result: PrecisionsCompared) -> list[str]:
    """``round  3 of at most 24``, then ``AMP bf16 1.61× (1.55 to 1.68)`` for each precision with a ratio."""
    ratios = [
        f"{precision_label(row.precision)} {ratio_words(row.speedup, row.speedup_low, row.speedup_high)}"
        for row in result.rows
        if row.speedup
    ]
    return [round_words(result), *ratios]
