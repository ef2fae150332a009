"""One training in this process: connects its trainer with its recording, and ends both cleanly."""

import gc
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from amptui.base.errors import AmptuiError, DeviceLostError
from amptui.base.fork import end_workers
from amptui.base.notify_url import take_url
from amptui.base.prompt import complain, show_traceback
from amptui.base.runfiles import open_file
from amptui.base.webhook import Webhook, parse_webhook
from amptui.device.sampler import watch_gpu
from amptui.diagnosis.alerts import Alerts
from amptui.diagnosis.summary import tell_unsaved
from amptui.loops.worker import TrainingThread
from amptui.process.capture import OutputCapture
from amptui.process.plain_lines import JsonLines, PlainFront, lasting_streams, separate_stdout
from amptui.process.recorder import Listener
from amptui.process.recording import Recording
from amptui.process.stop_signals import StopSignals
from amptui.ranks.world import World
from amptui.recipe.request import ModelSpec, TrainRequest
from amptui.records.control import Control
from amptui.records.run import Note, PhaseChanged, RunFailed
from amptui.runs import protocol
from amptui.runs.rundir import RunDir, create_run_dir
from amptui.runs.trust import resume_command
from amptui.telemetry.view import SessionView

LOOK_INTERVAL_SECONDS = 0.5
"""How often lines are written without a screen, and an end is looked for."""

RANKS_PATIENCE_SECONDS = 12.0
"""How long a rank is waited for once another one has ended, or before all have met: the reason has to be
found. It is less than the time after which a signal ends a process without a word."""

HURRIED_SECONDS = 5.0
"""How long a trainer may take to stop whose run nobody keeps."""

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long one thread may hold the interpreter: a tenth of the default lets the pump and the socket through
beside a trainer that never lets go, at no measured cost to it."""


class Stopping:
    """Waits for a trainer's end: for its step however long, unless somebody asks to end at once.

    ``timeout_seconds`` limits that, but not the time in which a checkpoint is written. ``tell`` gets what is
    awaited, in words, if it takes longer than a moment.
    """

    def __init__(
        self,
        thread: TrainingThread,
        control: Control,
        *,
        timeout_seconds: float | None = None,
        tell: Callable[[str], object] = lambda _words: None,
    ) -> None:
        self._thread = thread
        self._control = control
        self._timeout_seconds = math.inf if timeout_seconds is None else timeout_seconds
        self._tell = tell
        self._over = False
        self.waited_seconds = 0.0
        """How long the trainer has been waited for."""

    @property
    def waits(self) -> bool:
        """Whether the process must not exit yet, by the trainer's leave."""
        return not (self._over or self._thread.ended.is_set())

    def wait(self, *, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the trainer to stop; return whether it did.

        While ``hurried()`` is true, no longer than ``HURRIED_SECONDS``.
        """
        began, last_words = time.monotonic(), ""
        while not self._thread.join(LOOK_INTERVAL_SECONDS):
            self.waited_seconds = time.monotonic() - began
            if self._is_given_up(HURRIED_SECONDS if hurried() else self._timeout_seconds):
                self._over = True
                return False
            if not self._thread.saving and (words := self._thread.awaited) != last_words:
                last_words = words
                self._tell(words)
        self._over = True
        return True

    def why_given_up(self) -> str:
        """Why the trainer is left, and what it is doing: ``ended at once, in step 20``."""
        if self._control.ends_at_once:
            return f"ended at once, {self._thread.doing}"
        return f"the trainer did not stop within {self.waited_seconds:.0f} s, {self._thread.doing}"

    def _is_given_up(self, limit_seconds: float) -> bool:
        if self._control.ends_at_once:
            return True
        if self._thread.saving:
            return False
        if self.waited_seconds >= limit_seconds:
            return True
        return self.waited_seconds >= RANKS_PATIENCE_SECONDS and not self._thread.others_are_there


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The connected parts of one training."""

    recording: Recording
    control: Control
    thread: TrainingThread
    stopping: Stopping

    def start(self, viewer: socket.socket | None = None) -> None:
        """Start every thread; ``viewer`` watches from the start."""
        gc.enable()
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        self.recording.start(self.control.ask, read_allocator=self.thread.allocator, viewer=viewer)
        self.thread.start()

    def close(self) -> None:
        """End the recording, after the trainer's last record, and the trainer's workers."""
        self.recording.close()
        self.thread.close()
        end_workers()


@contextmanager
def wire(
    request: TrainRequest,
    spec: ModelSpec,
    run_dir: RunDir,
    *,
    listeners: Sequence[Listener] = (),
    world: World | None = None,
    report: Callable[[str], object] | None = None,
    webhook: Webhook | None = None,
) -> Iterator[Training]:
    """A training of ``request`` in ``run_dir`` that serves viewers, ready to start; its recording is closed.

    ``world``: this process is rank 0 of several. ``report`` gets what a stop waits for, as every screen does.
    Raises RunFolderError.
    """
    recording = Recording(
        run_dir, request=request.as_json(), listeners=listeners, goes_on=request.resume, webhook=webhook
    )

    def tell(words: str) -> None:
        recording.emit(PhaseChanged(time=time.time(), phase="stopping", detail=words))
        if report is not None:
            report(f"{words}; a second Ctrl+C or SIGTERM ends the run at once, without a checkpoint")

    files: dict[str, Any] = {
        "cut": recording.cut_after,
        "claim_folder": recording.claim_folder,
        "journaled": recording.wait_until_kept,
        "resume_command": partial(resume_command, run_dir.path),
    }
    with recording:
        if world is None:
            control = Control(recording.emit)
            thread = TrainingThread(request, spec, control, recording.emit, **files)
        else:
            from amptui.ranks.thread import RankThread

            thread = RankThread(request, spec, recording.emit, world, watch_gpu=watch_gpu, **files)
            control = thread.control
        stopping = Stopping(thread, control, timeout_seconds=request.stop_timeout, tell=tell)
        yield Training(recording, control, thread, stopping)


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
    with ExitStack() as stack:
        try:
            training = stack.enter_context(wire(request, spec, run_dir, world=world, webhook=_webhook()))
            signals = stack.enter_context(_stop_signals(training))
            with OutputCapture(training.recording.emit, run_dir.output_path):
                training.start(viewer)
                follow(training)
                return _finish(training, signals, lambda: None)
        except Exception as error:
            # This process has no terminal: its viewers report what it cannot do, before they are sent away.
            if viewer is not None:
                with suppress(OSError):
                    viewer.sendall(protocol.error_line(str(error)))
            if isinstance(error, AmptuiError):
                return error.exit_status
            raise


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
    with ExitStack() as stack:
        stack.enter_context(lasting_streams())
        lines = JsonLines(separate_stdout()) if json else None
        listeners: list[Listener] = [] if lines is None else [lines]
        wired = wire(
            request,
            spec,
            run_dir,
            listeners=listeners,
            world=world,
            report=complain,
            webhook=_webhook(),
        )
        training = stack.enter_context(wired)
        signals = stack.enter_context(_stop_signals(training))
        training.start()
        view = training.recording.view
        if lines is not None:
            follow(training)
            return _finish(training, signals, lambda: lines.finish(view()))
        front = PlainFront(
            view,
            sys.stdout,
            alerts=None if quiet else Alerts(time.time()),
            stop_asked=lambda: training.control.stop_reason is not None,
            resume_command=resume_command(run_dir.path),
        )
        follow(training, front.update)
        return _finish(training, signals, front.finish)


def _webhook() -> Webhook | None:
    """Who hears of this run: the command line has checked it."""
    url = take_url()
    return parse_webhook(url) if url else None


def _stop_signals(training: Training) -> StopSignals:
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def hung_up() -> None:
        text = "the terminal was closed (SIGHUP); training continues"
        training.recording.emit(Note(time=time.time(), severity="info", text=text))
        try:
            redirect_output(training.recording.run_dir.output_path, terminals)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            for descriptor in terminals:
                os.dup2(null, descriptor)

    busy = training.stopping
    return StopSignals(training.control.ask, hung_up=hung_up, busy=lambda: busy.waits, closes=True)


def redirect_output(path: Path, descriptors: Sequence[int]) -> None:
    """Write further output to a file: on a closed terminal every print would fail. Raises OSError."""
    file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in descriptors:
        os.dup2(file, descriptor)
    os.close(file)


def follow(
    training: Training,
    look: Callable[[], object] = lambda: None,
    interval_seconds: float = LOOK_INTERVAL_SECONDS,
) -> None:
    """Call ``look`` now and then until the trainer has ended or was asked to stop."""
    while not training.thread.ended.wait(interval_seconds) and not training.control.stop_reason:
        look()


def _abandon(training: Training, signals: StopSignals, tell: Callable[[], None]) -> NoReturn:
    """End in the middle of a step that is not waited for, and say what is lost."""
    recording, control, thread = training.recording, training.control, training.thread
    step = thread.finished_step
    thread.emit_finished_steps()
    lost = _lost_words(recording.view(), step, resume_command(recording.run_dir.path))
    text = f"{training.stopping.why_given_up()}: {lost}"
    recording.emit(RunFailed(time=time.time(), step=step, error=text, traceback=""))
    training.close()
    tell()
    tell_unsaved(recording.unsaved)
    complain(text)
    # A key on a screen stands for Ctrl+C.
    asked_by = signal.Signals.__members__.get(control.stop_reason or "", signal.SIGINT)
    # Exiting the interpreter while a thread is inside torch aborts the process.
    os._exit(128 + (signals.received or asked_by) if control.ends_at_once else 1)


def _lost_words(view: SessionView, step: int, way_on: str) -> str:
    """Which steps up to ``step``, the last that was finished, a run loses that ends without a checkpoint."""
    saved_step = 0 if view.checkpoint is None else view.checkpoint.step
    lost = "no finished step is lost"
    if step == saved_step + 1:
        lost = f"step {step:,} is lost"
    elif step > saved_step:
        lost = f"steps {saved_step + 1:,} to {step:,} are lost"
    if not saved_step:
        return f"{lost}, there is no checkpoint"
    return f"{lost}; to resume from step {saved_step:,}: {way_on}"


def _finish(training: Training, signals: StopSignals, tell: Callable[[], None]) -> int:
    """Wait for the trainer, close everything and report how it ended; exit hard if it does not end."""
    if not training.stopping.wait():
        _abandon(training, signals, tell)
    training.close()
    tell()
    unsaved_status = tell_unsaved(training.recording.unsaved)
    error = training.thread.error
    if error is not None:
        show_traceback(training.thread.traceback)
        complain(str(error))
        if isinstance(error, DeviceLostError):
            leave_at_once(error.exit_status)
        return error.exit_status
    return 128 + signals.received if signals.received else unsaved_status


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """How a training ended, and all that is known of it."""

    view: SessionView
    error: AmptuiError | None
    """What ended it early."""
    hangs: bool
    """The trainer did not stop when asked: this process can train no more."""


def measure_training(  # noqa: PLR0913 - options by name
    request: TrainRequest,
    spec: ModelSpec,
    folder: Path,
    *,
    begin: Callable[[Training], object] = lambda _training: None,
    look: Callable[[Training], object],
    hurried: Callable[[], bool],
    listeners: Sequence[Listener] = (),
    look_interval_seconds: float = LOOK_INTERVAL_SECONDS,
) -> TrainingEnd:
    """Train in ``folder`` until ``look``, called now and then, asks for a stop, or the run ends.

    ``begin`` is called before the trainer starts; while ``hurried()``, a trainer that was asked to stop is
    not waited for long. Raises RunFolderError.
    """
    from amptui.recipe.precision import Tf32Flags

    run_dir, flags = create_run_dir(folder, spec.name), Tf32Flags.current()
    with wire(request, spec, run_dir, listeners=listeners) as training:
        begin(training)
        training.start()
        follow(training, partial(look, training), look_interval_seconds)
        in_time = training.stopping.wait(hurried=hurried)
        training.close()
    # A run leaves the flags of its last precision, which the next one would take for torch's defaults.
    flags.apply()
    error = training.thread.error
    if not in_time:
        error = AmptuiError(f"the trainer did not stop ({training.thread.doing}); leaving anyway")
    return TrainingEnd(view=training.recording.view(), error=error, hangs=not in_time)


def free_memory() -> None:
    """Free the memory of the previous training."""
    from amptui.device.accelerator import default_device, empty_cache

    gc.collect()
    empty_cache(default_device())


def leave_at_once(status: int) -> NoReturn:
    """Exit without Python's own end, when all is done and written.

    A thread inside torch, pinned memory after a kernel's failure, or a group that other ranks have left would
    abort it.
    """
    with suppress(Exception):  # a handler of the model's
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # gone, or closed by the model
            stream.flush()
    os._exit(status)
