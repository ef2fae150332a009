"""Measures a model's precisions in turns, each batch size in a fresh training of the same process."""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO

from amptui.bench.progress import Progress
from amptui.bench.report import Bench, Measured, report_json, report_lines
from amptui.control import Control
from amptui.device.sampler import Sampler
from amptui.engine.worker import TrainingThread, torch_failed
from amptui.errors import AmptuiError, DataError, DeviceError, UsageError
from amptui.findings import PrecisionsCompared
from amptui.inert import printable
from amptui.modelspec import ModelSpec, parse_model
from amptui.plain import separate_stdout
from amptui.prompt import complain, put
from amptui.recorder import Recorder
from amptui.records import PRECISIONS, Note, PrecisionChanged, Record
from amptui.request import BenchRequest, TrainRequest
from amptui.running import Training
from amptui.runs.lock import RunLock
from amptui.runs.rundir import create_run_dir
from amptui.signals import StopSignals
from amptui.telemetry.session import Session

if TYPE_CHECKING:
    import torch

_LOOK_INTERVAL_SECONDS = 0.25

_WITHOUT_END = 1_000_000
"""Epochs of a training that ends when its precisions are compared."""

SLOW = 2.0
"""Float16 that is slower than float32 by that is not waited for unless it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which precisions run, the baseline first, and why the others do not."""

    precisions: tuple[str, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How one batch size came out; ``error`` is what ended its training early."""

    measured: Measured
    error: AmptuiError | None
    hangs: bool
    """The trainer did not stop when asked: nothing can follow in this process."""


def bench(request: BenchRequest, *, json: bool) -> int:
    """Measure, print what was found, and return the exit status.

    0 when at least one batch size was measured to its end, otherwise the status of what went wrong; 128 + the
    number of the signal that ended it. With ``json`` standard output is one JSON object, and progress goes to
    standard error. Raises ``UsageError`` and ``DeviceError`` for what is not there.
    """
    spec = parse_model(request.training.model)
    out = separate_stdout() if json else sys.stdout
    progress = Progress(sys.stderr if json else sys.stdout)
    stop = Control()
    with StopSignals(stop.request_stop) as signals:
        plan = _make_plan(request)
        ended = _measure_all(request, spec, plan, stop, progress)
        found = Bench(
            model=spec.text,
            asked=request,
            left_out=plan.left_out,
            sizes=tuple(end.measured for end in ended),
            interrupted=signals.received is not None,
        )
        _tell(found, out, json=json)
    status = 128 + signals.received if signals.received else _status(ended)
    if any(end.hangs for end in ended):
        sys.stderr.flush()
        # A thread inside torch would abort the interpreter's own way out.
        os._exit(status or 1)
    return status


def plan_precisions(asked: Sequence[str] | None, device: "torch.device") -> Plan:
    """What ``device`` can run of ``asked``, or all that pays to be looked at there; the rest with its reason.

    Raises ``UsageError`` where fewer than two are left.
    """
    from amptui.engine.precision import unsupported_precisions

    left_out = unsupported_precisions(device)
    if asked is not None:
        left_out = {name: left_out[name] for name in asked if name in left_out}
    elif device.type == "cpu":
        left_out = {"ieee": "on a CPU the same as FP32"} | left_out | _slow_float16()
    wanted = tuple(dict.fromkeys(PRECISIONS if asked is None else asked))
    precisions = tuple(name for name in wanted if name not in left_out)
    if len(precisions) < 2:
        why = "".join(f"; {name}: {reason}" for name, reason in left_out.items())
        raise UsageError(f"nothing to compare{why}", mend="give two precisions or more with --precisions")
    return Plan(precisions=precisions, left_out=left_out)


def float16_slowdown(size: int = 512) -> float:
    """How many times as long a product of two square float16 matrices takes on this CPU as a float32 one."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(size, size, dtype=dtype)
        taken = []
        for _ in range(4):
            began = time.perf_counter()
            matrix @ matrix
            taken.append(time.perf_counter() - began)
        return median(taken[1:])  # the first one wakes threads and packs weights

    return seconds(torch.float16) / seconds(torch.float32)


class Turns:
    """Listens in the trainer's thread: ends the comparison after the rounds asked for, and the run after it.

    A precision whose first step fails is left out, and the others begin anew.
    """

    def __init__(
        self,
        precisions: Sequence[str],
        *,
        rounds: int | None,
        control: Control,
        emit: Callable[[Record], object],
    ) -> None:
        self._precisions = tuple(precisions)
        self._rounds = rounds
        self._control = control
        self._emit = emit
        self._entered = self._precisions[0]
        self._last_error = ""
        self._enough = False
        self.failed: dict[str, str] = {}
        """The precisions that failed, each with what happened."""
        control.request_comparison(self._precisions)

    def emit(self, record: Record) -> None:
        """Pass a record on, and act on it."""
        if isinstance(record, PrecisionsCompared):
            record = self._judge(record)
            if self._rounds is not None:
                record = replace(record, most_rounds=min(self._rounds, record.most_rounds))
        elif isinstance(record, PrecisionChanged):
            self._entered = record.current
        elif isinstance(record, Note) and record.severity == "error":
            self._last_error = record.text
        self._emit(record)

    def _judge(self, record: PrecisionsCompared) -> PrecisionsCompared:
        if not record.over:
            if self._rounds is not None and record.rounds >= self._rounds:
                self._enough = True
                self._control.request_comparison(())
            return record
        if record.reason != "stopped" or self._control.stop_reason:
            self._control.request_stop("compared")
            return record
        if self._enough:
            self._control.request_stop("compared")
            return replace(record, reason="limit")
        # Nobody asked for this end: the precision that was entered last failed in its first step.
        self.failed[self._entered] = self._last_error
        self._precisions = tuple(name for name in self._precisions if name != self._entered)
        if len(self._precisions) > 1:
            self._control.request_comparison(self._precisions)
        else:
            self._control.request_stop("nothing left to compare")
        return record


def _make_plan(request: BenchRequest) -> Plan:
    try:
        import torch  # noqa: F401 - of a second attempt torch would say something else
    except Exception as error:
        raise torch_failed(error) from error
    from amptui.engine.setup import choose_device

    return plan_precisions(request.precisions, choose_device(request.training.device))


def _slow_float16() -> dict[str, str]:
    times = float16_slowdown()
    if times < SLOW:
        return {}
    return {
        "fp16": f"a float16 matrix product takes {times:.0f} times as long as a float32 one on this CPU; "
        "--precisions names it all the same"
    }


def _measure_all(
    request: BenchRequest, spec: ModelSpec, plan: Plan, stop: Control, progress: Progress
) -> list[_Ended]:
    """One training after the other; what fails for want of memory or data does not end the list."""
    ended: list[_Ended] = []
    with TemporaryDirectory(prefix="amptui-bench-", ignore_cleanup_errors=True) as scratch:
        for batch_size in request.batch_sizes:
            if stop.stop_reason:
                break
            folder = request.run_dir or Path(scratch)
            if len(request.batch_sizes) > 1:
                folder /= f"batch-{batch_size}"
            training = replace(
                request.training,
                precision=plan.precisions[0],
                batch_size=batch_size,
                epochs=_WITHOUT_END,
                attended=False,
                probes=False,
                validation=False,
            )
            end = _measure(training, spec, folder, plan.precisions, request.rounds, stop, progress)
            ended.append(end)
            _free_memory()
            if end.error is not None:
                complain(_told(batch_size, end.error))
            if end.hangs or not isinstance(end.error, DeviceError | DataError | None):
                break
    return ended


def _measure(
    request: TrainRequest,
    spec: ModelSpec,
    folder: Path,
    precisions: Sequence[str],
    rounds: int | None,
    stop: Control,
    progress: Progress,
) -> _Ended:
    from amptui.engine.precision import Tf32Flags

    run_dir = create_run_dir(folder, spec.name)
    session, control = Session(str(run_dir.path)), Control()
    lock = RunLock.take(run_dir.path, new=True)
    recorder = Recorder(session, run_dir, asked=request.as_json())
    turns = Turns(precisions, rounds=rounds, control=control, emit=recorder.emit)
    thread = TrainingThread(request, spec, control, turns.emit)
    sampler = Sampler(recorder.emit, read_allocator=thread.allocator)
    training = Training(session, control, thread, recorder, sampler, run_dir)
    flags = Tf32Flags.current()
    progress.begin()
    training.start()
    while not thread.ended.wait(_LOOK_INTERVAL_SECONDS) and not stop.stop_reason:
        progress.update(session.view())
    if stop.stop_reason:
        control.request_stop(stop.stop_reason)
    in_time = training.wait_for_end()
    training.close()
    lock.release()
    # A run leaves the flags of its last precision: the next one would take them for torch's own.
    flags.apply()
    progress.clear()
    error = thread.error
    if not in_time:
        error = AmptuiError(f"the trainer did not stop ({thread.doing}); leaving anyway")
    view = session.view()
    measured = Measured(
        batch_size=view.run.batch_size if view.run is not None else request.batch_size,
        view=view,
        failed=turns.failed,
        error=str(error or ""),
    )
    return _Ended(measured=measured, error=error, hangs=not in_time)


def _free_memory() -> None:
    """Give back what the training before held."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _told(batch_size: int | None, error: AmptuiError) -> str:
    return f"batch {batch_size}: {error}" if batch_size is not None else str(error)


def _tell(found: Bench, out: TextIO, *, json: bool) -> None:
    put(_as_json(found) if json else _as_text(found, out), out)
    if json:  # the stream is our own
        with suppress(OSError):
            out.close()


def _as_json(found: Bench) -> str:
    return json.dumps(report_json(found), allow_nan=False) + "\n"


def _as_text(found: Bench, out: TextIO) -> str:
    encoding = out.encoding or "ascii"
    text = "".join(f"{printable(line)}\n" for line in report_lines(found, encoding=encoding))
    return text.encode(encoding, "replace").decode(encoding)


def _status(ended: Sequence[_Ended]) -> int:
    if any(end.error is None and end.measured.rows for end in ended):
        return 0
    return next((end.error.exit_status for end in ended if end.error is not None), 1)
