"""Watches somebody else's training loop: ``observe()`` opens a run in the script's own process.

The script keeps its loop, its output, its signals and its exit status. Threads in the background keep the
journal and serve screens; a fault of amptui's is told in one line, and the script goes on without it.
"""

import atexit
import operator
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui import __version__
from amptui.answers import RequestRefused
from amptui.control import Request, StopRequest, record_of
from amptui.device.sampler import Sampler
from amptui.engine.description import device_name, gpu_uuid, hardware, versions
from amptui.engine.loop_hooks import without_hooks
from amptui.engine.observed_loop import ObservedLoop, one_number
from amptui.process.capture import LogTail
from amptui.process.recorder import Recorder
from amptui.prompt import complain
from amptui.records import (
    PRECISIONS,
    DataInfo,
    Note,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
)
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RUN_DIR_VARIABLE, RunDir, create_run_dir, run_argument
from amptui.runs.server import Server
from amptui.telemetry.session import Session
from amptui.text import write_line

ONLY_OBSERVED = "this run is only observed"
"""Why a request is refused: the script's own loop decides everything."""

_CLOSING_SECONDS = 5.0

_DEFAULT_GROWTH_INTERVAL = 2000
"""torch.amp.GradScaler's."""

_T = TypeVar("_T")


def observe(
    model: nn.Module,
    optimizer: Optimizer,
    scaler: GradScaler | None = None,
    *,
    samples_per_step: int | None = None,
) -> "Monitor":
    """Watch a training loop without changing it; call it once, before the first step.

    The loop keeps its own autocast and ``scaler``. Every step of ``optimizer`` is seen through hooks: the
    loss that was backpropagated (unscaled; the sum if there were several), the loss scale and skipped steps,
    learning rates, time, memory, and now and then the norm of the gradients of ``model``. Nothing waits for
    the GPU, and the training stays the same bit for bit.

    ``samples_per_step``: how many samples one optimizer step takes, for the throughput.

    Raises TypeError for arguments of other kinds. If anything of amptui's own fails, it writes one line to
    standard error and the script continues unobserved.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}")
    return Monitor(_Observed(model, optimizer, scaler, samples_per_step))


@dataclass(frozen=True, slots=True, eq=False)
class _Observed:
    """What :func:`observe` was given."""

    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler | None
    samples_per_step: int | None


class Monitor:
    """A run that is being watched, from :func:`observe` to :meth:`close` or the end of the script.

    As a context manager it closes at the end of the block.
    """

    def __init__(self, observed: _Observed) -> None:
        self._run: _Run | None = None
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._excepthook = sys.excepthook
        try:
            self._run = _Run(observed)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the script goes on
            _tell_fault("cannot watch this script", error)
            return
        sys.excepthook = self._take_error
        atexit.register(self._close_at_exit)

    def log(self, loss: Tensor | float | None = None, **values: Tensor | float) -> None:
        """Show ``values`` with the last step, or with the one that is being made; ``loss`` replaces its loss.

        Tensors hold one number each; those on a GPU are not waited for. What is no number is left out, with
        a warning.
        """
        run = self._run
        if run is None:
            return
        try:
            numbers = {name: one_number(name, value) for name, value in values.items()}
            run.loop.log(None if loss is None else one_number("loss", loss), numbers)
        except Exception as error:  # noqa: BLE001 - the training is worth more than a number of it
            run.warn_once(_one_line(str(error)))

    def epochs(self, epochs: Iterable[_T]) -> Iterator[_T]:
        """Iterate over ``epochs`` and tell the screen where each one ends."""
        run = self._run
        if run is not None:
            run.total_epochs = operator.length_hint(epochs)
        for each in epochs:
            yield each
            if run is not None and run is self._run:
                run.loop.finish_epoch()

    def close(self) -> None:
        """Take every hook off and end the run; does nothing the second time."""
        self._close(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._close(error)

    def _take_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """The script dies of ``error``: tell the run at exit, and the terminal as the script would."""
        self._error = error
        with suppress(Exception):
            without_hooks(error)
            trace = error.__traceback__
        self._excepthook(kind, error, trace)

    def _close_at_exit(self) -> None:
        self._close(self._error)

    def _close(self, error: BaseException | None) -> None:
        run, self._run = self._run, None
        if run is None or os.getpid() != self._pid:
            return
        atexit.unregister(self._close_at_exit)
        if sys.excepthook == self._take_error:
            sys.excepthook = self._excepthook
        try:
            run.close(error)
        except Exception as fault:  # noqa: BLE001 - the script has its own end
            _tell_fault("the run was not closed cleanly", fault)


class _Run:
    """The folder, journal, socket and threads of an observed run. Raises AmptuiError and OSError."""

    def __init__(self, observed: _Observed) -> None:
        handed = os.environ.pop(RUN_DIR_VARIABLE, "")
        self._started_by_amptui = bool(handed)
        self._observed = observed
        self._name = _script_name()
        self._began = time.monotonic()
        self._run_dir = RunDir(Path(handed)) if handed else create_run_dir(None, self._name)
        self._lock = RunLock.take(self._run_dir.path, new=True)
        self.total_epochs = 0
        self._warned: set[str] = set()
        try:
            self._connect(observed)
        except BaseException:
            self._lock.release()
            raise
        if not handed:
            write_line(sys.stderr, f"amptui attach {shlex.quote(run_argument(self._run_dir.path))}")

    def _connect(self, observed: _Observed) -> None:
        path = self._run_dir.path
        session = Session(str(path))
        recorder = self._recorder = Recorder(session, self._run_dir, asked={"script": sys.argv})
        self._emit = recorder.emit
        self.loop = ObservedLoop(
            observed.model,
            observed.optimizer,
            observed.scaler,
            self._emit,
            samples_per_step=observed.samples_per_step,
            begins=self._begin,
            failed=self._fail,
        )
        hello = {"version": __version__, "pid": os.getpid(), "run_dir": str(path)}
        self._server = Server(path, hello=hello, obey=self._answer, changed=self._emit)
        recorder.show_to(self._server)
        self._sampler = Sampler(self._emit, read_allocator=lambda: self.loop.allocator.sample)
        log = path / "output.log"
        self._tail = LogTail(log, self._emit) if self._started_by_amptui and log.exists() else None
        self._emit(PhaseChanged(time=time.time(), phase="first step", detail="waiting for the first step"))
        self._server.start()
        if self._server.trouble:
            self._emit(Note(time=time.time(), severity="warning", text=self._server.trouble))
        recorder.start()
        self._sampler.start()
        if self._tail is not None:
            self._tail.start()

    def warn_once(self, text: str) -> None:
        """Tell screen and terminal, unless they were told before."""
        if text not in self._warned:
            self._warned.add(text)
            complain(text)
            self._emit(Note(time=time.time(), severity="warning", text=text))

    def close(self, error: BaseException | None) -> None:
        """Deliver what is left, write the last record, and end every thread."""
        trouble = ""
        try:
            self.loop.close()
        except Exception as fault:  # noqa: BLE001 - a device that failed has nothing left to deliver
            trouble = f"the last steps could not be read: {type(fault).__name__}: {fault}"
            self._emit(Note(time=time.time(), severity="warning", text=_one_line(trouble)))
        if self._tail is not None:
            self._tail.stop()
        self._emit(self._last_record(error))
        self._sampler.stop(timeout=1.0)
        self._recorder.close(_CLOSING_SECONDS)
        self._server.close(_CLOSING_SECONDS)
        self._lock.release()
        if self._recorder.trouble:
            complain(f"journal: {self._recorder.trouble}")

    def _last_record(self, error: BaseException | None) -> RunFinished | RunFailed:
        now, step = time.time(), self.loop.step
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        if error is None or isinstance(error, KeyboardInterrupt):
            seconds = time.monotonic() - self._began
            return RunFinished(
                time=now, steps=step, seconds=seconds, reason="stopped" if error is not None else "done"
            )
        trace = "".join(traceback.format_exception(error))
        text = _one_line(f"{type(error).__name__}: {error}").removesuffix(": ")
        return RunFailed(time=now, step=step, error=text, traceback=trace)

    def _begin(self, precision: str) -> None:
        """Describe the run, as its first step ends."""
        self._emit(PhaseChanged(time=time.time(), phase="training"))
        self._emit(_describe(self._observed, self.loop.device, self._name, precision, self.total_epochs))

    def _fail(self, error: Exception) -> None:
        _tell_fault("stopped watching this script, which goes on", error)
        text = f"amptui stopped watching: {type(error).__name__}: {error}"
        self._emit(Note(time=time.time(), severity="error", text=_one_line(text)))

    def _answer(self, request: Request, number: int) -> None:
        """Answer a screen, in a thread of the server's.

        Only a script that ``amptui run`` started is stopped from a screen: by the signal that a terminal or
        a batch system would send it.
        """
        made = record_of(request, number)
        self._emit(made)
        if isinstance(request, StopRequest) and self._started_by_amptui:
            asked = signal.SIGTERM if request.reason == "SIGTERM" else signal.SIGINT
            signal.pthread_kill(threading.main_thread().ident or 0, asked)
            return
        what = f"{ONLY_OBSERVED}: stop the script itself (pid {os.getpid()})"
        detail = what if isinstance(request, StopRequest) else ONLY_OBSERVED
        self._emit(
            RequestRefused(
                time=time.time(), step=self.loop.step, request=made, reason="unavailable", detail=detail
            )
        )


def _describe(
    observed: _Observed, device: torch.device, name: str, precision: str, total_epochs: int
) -> RunStarted:
    scaler = observed.scaler
    scales = scaler is not None and scaler.is_enabled()
    growth_interval = _DEFAULT_GROWTH_INTERVAL
    if scaler is not None and scales:
        growth_interval = scaler.get_growth_interval()
    config: dict[str, Any] = {
        "arguments": sys.argv[1:],
        "model": type(observed.model).__name__,
        "optimizer": type(observed.optimizer).__name__,
    }
    return RunStarted(
        time=time.time(),
        model=name,
        device=str(device),
        device_name=device_name(device),
        gpu_uuid=gpu_uuid(device),
        precision=precision,
        amp_precision="fp16" if scales or device.type == "cuda" else "bf16",
        unsupported={each: ONLY_OBSERVED for each in PRECISIONS if each != precision},
        config=config,
        versions=versions(),
        hardware=hardware(device),
        data=DataInfo(name="the script's own data", real=True, samples=None),
        parameters=sum(p.numel() for p in observed.model.parameters()),
        batch_size=observed.samples_per_step,
        steps_per_epoch=None,
        total_epochs=total_epochs,
        total_steps=None,
        growth_interval=growth_interval,
        observed=True,
    )


def _script_name() -> str:
    """What the run is called: the file that Python was told to run."""
    stem = Path(sys.argv[0] if sys.argv else "").stem
    if stem == "__main__":
        return Path(sys.argv[0]).parent.name
    return stem if stem not in ("", "-c", "-m") else "script"


def _tell_fault(what: str, error: Exception) -> None:
    """One line on standard error, if there is one."""
    with suppress(Exception):
        complain(_one_line(f"{what}: {type(error).__name__}: {error}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
