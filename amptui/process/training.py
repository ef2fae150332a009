"""One training in this process: connects its threads, recorder and socket, and ends them cleanly."""

import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from amptui import __version__
from amptui.control import Control
from amptui.device.nvml import open_probe
from amptui.device.sampler import Sampler
from amptui.diagnosis.alerts import Alerts
from amptui.engine.distributed.rank_control import RankControl
from amptui.engine.distributed.world import World
from amptui.engine.worker import TrainingThread
from amptui.errors import AmptuiError, DeviceLostError
from amptui.fork import end_workers
from amptui.modelspec import ModelSpec
from amptui.process.capture import OutputCapture
from amptui.process.plain_lines import (
    JsonLines,
    PlainFront,
    lasting_streams,
    renew_streams,
    separate_stdout,
)
from amptui.process.recorder import Listener, Recorder
from amptui.process.stop_signals import StopSignals
from amptui.process.stopping import Stopping, lost_words, signal_of
from amptui.prompt import complain, tell_unsaved
from amptui.records import Note, PhaseChanged, Record, RunFailed
from amptui.request import TrainRequest
from amptui.runfiles import open_file
from amptui.runs import protocol
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir
from amptui.runs.server import Server
from amptui.runs.trust import resume_command
from amptui.telemetry.session import Session

_CLOSING_SECONDS = 5.0

_LOOK_INTERVAL_SECONDS = 0.5
"""How often lines are written without a screen."""

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long one thread may hold the interpreter: a tenth of the default lets the pump and the socket through
beside a trainer that never lets go, at no measured cost to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The connected parts of one training."""

    session: Session
    control: Control
    thread: TrainingThread
    recorder: Recorder
    sampler: Sampler
    run_dir: RunDir
    server: Server
    stopping: Stopping

    def start(self) -> None:
        """Start every thread."""
        gc.enable()
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        self.server.start()
        if self.server.trouble:
            self.recorder.emit(Note(time=time.time(), severity="warning", text=self.server.trouble))
        self.recorder.start()
        self.sampler.start()
        self.thread.start()

    def close(self) -> None:
        """Stop sampling, drain the records, close the journal, and send every viewer the last record."""
        self.sampler.stop(timeout=1.0)
        self.recorder.close(_CLOSING_SECONDS)
        self.server.close(_CLOSING_SECONDS)
        self.thread.close()
        end_workers()


def wire(
    request: TrainRequest,
    spec: ModelSpec,
    run_dir: RunDir,
    *,
    listeners: Sequence[Listener] = (),
    world: World | None = None,
    report: Callable[[str], object] | None = None,
) -> Training:
    """A training of ``request`` in ``run_dir`` that serves viewers, ready to start.

    ``world``: this process is rank 0 of several. ``report`` gets what a stop waits for, as every screen does.
    """
    session = Session(str(run_dir.path))
    recorder = Recorder(
        session, run_dir, asked=request.as_json(), listeners=listeners, goes_on=request.resume
    )
    control = Control(recorder.emit) if world is None else RankControl(world, recorder.emit)
    server = Server(
        run_dir.path,
        hello={"version": __version__, "pid": os.getpid(), "run_dir": str(run_dir.path)},
        obey=control.ask,
        changed=recorder.emit,
    )
    recorder.show_to(server)
    thread = _thread(
        request,
        spec,
        control,
        recorder.emit,
        world,
        cut=recorder.cut_after,
        journaled=recorder.wait_until_kept,
        resume_command=partial(resume_command, run_dir.path),
    )
    sampler = Sampler(recorder.emit, read_allocator=thread.allocator)

    def tell(words: str) -> None:
        recorder.emit(PhaseChanged(time=time.time(), phase="stopping", detail=words))
        if report is not None:
            report(f"{words}; a second Ctrl+C or SIGTERM ends the run at once, without a checkpoint")

    stopping = Stopping(thread, control, timeout_seconds=request.stop_timeout, tell=tell)
    return Training(session, control, thread, recorder, sampler, run_dir, server, stopping)


def _thread(
    request: TrainRequest,
    spec: ModelSpec,
    control: Control,
    emit: Callable[[Record], object],
    world: World | None,
    **files: Any,
) -> TrainingThread:
    if world is None:
        return TrainingThread(request, spec, control, emit, **files)
    from amptui.engine.distributed.rank_thread import RankThread

    assert isinstance(control, RankControl), "made above"
    return RankThread(request, spec, control, emit, world, watch_gpu=watch_gpu, **files)


def watch_gpu(uuid: str, take: Callable[[Record], object]) -> Callable[[], object]:
    """Sample one GPU about once a second, in threads, until the returned function is called."""
    sampler = Sampler(take, open_probe=partial(open_probe, uuid))
    sampler.start()
    return sampler.stop


def run_for_viewers(
    request: TrainRequest,
    spec: ModelSpec,
    run_dir: RunDir,
    viewer: socket.socket | None,
    *,
    world: World | None = None,
) -> int:
    """Train in a process without a terminal, watched by ``viewer``, if given, and others.

    Returns the exit status. ``world``: this process is rank 0 of several.
    """
    try:
        with RunLock.take(run_dir.path, new=not request.resume) as lock:
            return _run_for_viewers(wire(request, spec, run_dir, world=world), lock, viewer)
    except Exception as error:
        # This process has no terminal: its viewers report what it cannot do.
        if viewer is not None:
            with suppress(OSError):
                viewer.sendall(protocol.error_line(str(error)))
        if isinstance(error, AmptuiError):
            return error.exit_status
        raise


def _run_for_viewers(training: Training, lock: RunLock, viewer: socket.socket | None) -> int:
    if viewer is not None:
        training.server.adopt(viewer)
    log = training.run_dir.path / "output.log"
    with _stop_signals(training) as signals, OutputCapture(training.recorder.emit, log):
        training.start()
        follow(training, lock.renew)
        return _finish(training, signals, lambda: None)


def run_plainly(
    request: TrainRequest,
    spec: ModelSpec,
    run_dir: RunDir,
    *,
    json: bool,
    quiet: bool = False,
    world: World | None = None,
) -> int:
    """Train in this process, in plain lines or with every record as JSON on standard output.

    ``quiet``: plain lines on a terminal ring no bell. ``world``: this process is rank 0 of several.
    """
    with RunLock.take(run_dir.path, new=not request.resume) as lock, lasting_streams():
        lines = JsonLines(separate_stdout()) if json else None
        listeners: list[Listener] = [] if lines is None else [lines]
        training = wire(request, spec, run_dir, listeners=listeners, world=world, report=complain)
        with _stop_signals(training) as signals:
            training.start()
            if lines is not None:
                follow(training, lock.renew)
                return _finish(training, signals, lambda: lines.finish(training.session.view()))
            front = PlainFront(
                training.session.view,
                sys.stdout,
                alerts=None if quiet else Alerts(time.time()),
                stop_asked=lambda: training.control.stop_reason is not None,
            )
            follow(training, lock.renew, front.update)
            return _finish(training, signals, front.finish)


def _stop_signals(training: Training) -> StopSignals:
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def hung_up() -> None:
        text = "the terminal was closed (SIGHUP); training continues"
        training.recorder.emit(Note(time=time.time(), severity="info", text=text))
        _redirect_output(training.run_dir.path / "output.log", terminals)

    busy = training.stopping
    return StopSignals(training.control.ask, hung_up=hung_up, busy=lambda: busy.waits, closes=True)


def _redirect_output(path: Path, descriptors: Sequence[int]) -> None:
    """Write further output to a file: on a closed terminal every print would fail."""
    try:
        file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(file, descriptor)
    os.close(file)
    renew_streams()


def follow(training: Training, *looks: Callable[[], object]) -> None:
    """Poll until the trainer has ended or was asked to stop."""
    while not training.thread.ended.wait(_LOOK_INTERVAL_SECONDS) and not training.control.stop_reason:
        for look in looks:
            look()


def _abandon(training: Training, signals: StopSignals, tell: Callable[[], None]) -> NoReturn:
    """End in the middle of a step that is not waited for, and say what is lost."""
    control, thread, step = training.control, training.thread, training.thread.finished_step
    thread.emit_finished_steps()
    lost = lost_words(training.session.view(), step, resume_command(training.run_dir.path))
    text = f"{training.stopping.why_given_up()}: {lost}"
    training.recorder.emit(RunFailed(time=time.time(), step=step, error=text, traceback=""))
    training.close()
    tell()
    tell_unsaved(training.recorder.unsaved)
    complain(text)
    asked = signals.received or signal_of(control.stop_reason)
    # Exiting the interpreter while a thread is inside torch aborts the process.
    os._exit(128 + asked if control.ends_at_once else 1)


def _finish(training: Training, signals: StopSignals, tell: Callable[[], None]) -> int:
    """Wait for the trainer, close everything and report how it ended; exit hard if it does not end."""
    if not training.stopping.wait():
        _abandon(training, signals, tell)
    training.close()
    tell()
    unsaved_status = tell_unsaved(training.recorder.unsaved)
    error = training.thread.error
    if error is not None:
        complain(str(error))
        if isinstance(error, DeviceLostError):
            # torch would abort when it frees pinned memory, as a normal exit does.
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(error.exit_status)
        return error.exit_status
    return 128 + signals.received if signals.received else unsaved_status
