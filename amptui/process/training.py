"""One training in this process: its trainer's thread and its recording, started and ended together."""

import gc
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from amptui.base import units
from amptui.base.errors import AmptuiError, DeviceLostError
from amptui.base.fork import end_workers
from amptui.base.notify_url import take_url
from amptui.base.prompt import complain, show_traceback
from amptui.base.stacks import print_stacks_if_killed
from amptui.device.sampler import watch_gpu
from amptui.diagnosis.alerts import Alerts
from amptui.diagnosis.summary import tell_unsaved
from amptui.loops.worker import TrainingThread
from amptui.process.capture import redirect_output
from amptui.process.plain_lines import JsonLines, PlainFront, lasting_streams, separate_stdout
from amptui.process.plan import RANK_VARIABLE, Plan
from amptui.process.recording import Listener, Recording
from amptui.process.stop_signals import StopSignals
from amptui.ranks.world import World
from amptui.recipe.request import TrainRequest, parse_model
from amptui.records.control import Control, tell_nobody
from amptui.records.run import Note, PhaseChanged, Record, RunFailed
from amptui.runs import protocol
from amptui.runs.rundir import create_run_dir, resume_command
from amptui.telemetry.view import SessionView

POLL_SECONDS = 0.5
"""How often lines are written without a screen, and an end is looked for."""

RANKS_PATIENCE_SECONDS = 12.0
"""How long a rank is waited for once another one has ended, or before all have met: the reason has to be
found. It is less than the time after which a signal ends a process without a word."""

HURRIED_SECONDS = 5.0
"""How long a trainer may take to stop whose run nobody keeps."""

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long one thread may hold the interpreter: a tenth of the default lets the pump and the socket through
beside a trainer that never lets go, at no measured cost to it."""


class Training:
    """A trainer's thread and the recording of its run; ``world``: this process is one of several ranks.

    Only rank 0 has a recording, of what all do. ``say`` gets what a stop waits for, as every screen does, if
    that takes longer than a moment. Raises RunFolderError.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        world: World | None = None,
        listeners: Sequence[Listener] = (),
        notify_url: str = "",
        say: Callable[[str], object] = lambda _words: None,
    ) -> None:
        request, self.run_dir, self._world = plan.request, plan.run_dir, world
        self._resume_command = partial(resume_command, plan.run_dir.path)
        self._say = say
        self._has_ended = False
        """Whether the trainer has, or is given up."""
        self._waited_seconds = 0.0
        self.recording: Recording | None = None
        self.emit: Callable[[Record], object] = tell_nobody
        options: dict[str, Any] = {"resume_command": self._resume_command}
        if world is None or world.leads:
            self.recording = recording = Recording(
                plan.run_dir,
                request=request.as_json(),
                listeners=listeners,
                goes_on=request.resume,
                notify_url=notify_url,
            )
            self.emit = recording.emit
            options["begin"] = recording.begin
            options["journaled"] = recording.wait_until_kept
        self.control: Control
        self.thread: TrainingThread
        if world is None:
            self.control = Control(self.emit)
            self.thread = TrainingThread(request, plan.spec, self.control, self.emit, **options)
        else:
            from amptui.ranks.thread import RankThread

            self.thread = thread = RankThread(
                request, plan.spec, self.emit, world, watch_gpu=watch_gpu, **options
            )
            self.control = thread.control

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        if self.recording is not None:
            self.recording.close()

    def view(self) -> SessionView:
        assert self.recording is not None, "only rank 0 shows the run"
        return self.recording.view()

    def start(self, viewer: socket.socket | None = None) -> None:
        """Start every thread; ``viewer`` watches from the start."""
        gc.enable()
        if self.recording is not None:
            sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
            self.recording.start(self.control.ask, read_allocator=self.thread.allocator, viewer=viewer)
        self.thread.start()

    def keep_output(self) -> None:
        """Write what is printed to the run's file and record its lines; a standard error in a file stays."""
        assert self.recording is not None, "a rank's is in the same file"
        path = self.run_dir.output_path
        try:
            redirect_output(path, (1,) if stat.S_ISREG(os.fstat(2).st_mode) else (1, 2))
        except OSError as error:
            text = f"output is not saved in {path}: {error.strerror}"
            self.emit(Note(time=time.time(), severity="warning", text=text))
        else:
            self.recording.follow_output(skip=True)

    def follow(self, poll: Callable[[], object] = lambda: None, seconds: float = POLL_SECONDS) -> None:
        """Call ``poll`` now and then until the trainer has ended or was asked to stop."""
        while not self.thread.ended.wait(seconds) and not self.control.stop_reason:
            poll()

    def wait(self, *, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the trainer to stop; return whether it did.

        For its step however long, unless somebody asks to end at once; while ``hurried()`` no longer than
        ``HURRIED_SECONDS``, but for the time in which a checkpoint is written.
        """
        began, last_words, thread = time.monotonic(), "", self.thread
        while not (self._has_ended or thread.join(POLL_SECONDS)):
            self._waited_seconds = time.monotonic() - began
            is_late = self._waited_seconds >= RANKS_PATIENCE_SECONDS and not thread.others_are_there
            is_late |= self._waited_seconds >= HURRIED_SECONDS and hurried()
            if self.control.ends_at_once or (is_late and not thread.saving):
                self._has_ended = True
                return False
            if not thread.saving and (words := thread.awaited) != last_words:
                last_words = words
                self.emit(PhaseChanged(time=time.time(), phase="stopping", detail=words))
                self._say(f"{words}; a second Ctrl+C or SIGTERM ends the run at once, without a checkpoint")
        self._has_ended = True
        return True

    def close(self) -> None:
        """End the recording, after the trainer's last record, and the trainer's workers."""
        if self.recording is not None:
            self.recording.close()
        self.thread.close()
        end_workers()

    # --------------------------------------------------------------------- a process that only trains

    def stop_signals(self) -> StopSignals:
        """Signals ask for a stop; a closed terminal does not."""
        terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

        def hung_up() -> None:
            text = "the terminal was closed (SIGHUP); training continues"
            self.emit(Note(time=time.time(), severity="info", text=text))
            try:
                redirect_output(self.run_dir.output_path, terminals)
            except OSError:
                null = os.open(os.devnull, os.O_WRONLY)
                for descriptor in terminals:
                    os.dup2(null, descriptor)

        return StopSignals(self.control.ask, hung_up=hung_up, closes=True)

    def finish(self, signals: StopSignals, summarize: Callable[[], object] = lambda: None) -> int:
        """Wait for the trainer, close everything and tell how it ended; exit hard if it does not end."""
        if not self.wait():
            self._abandon(signals, summarize)
        self.close()
        summarize()
        error, traceback = self.thread.error, self.thread.traceback
        if self.recording is None:  # rank 0 tells why the run failed
            assert self._world is not None, "a rank"
            show_traceback(traceback, prefix=f"[rank{self._world.rank}]: ")
            rank_0_end = self.thread.rank_0_end
            if rank_0_end == "hung" or (rank_0_end and RANK_VARIABLE not in os.environ):  # else the launcher
                complain(str(error))
            return 0 if error is None else error.exit_status
        unsaved_status = tell_unsaved(self.recording.unsaved)
        if error is not None:
            show_traceback(traceback)
            complain(str(error))
            if isinstance(error, DeviceLostError):
                leave_at_once(error.exit_status)
            return error.exit_status
        return 128 + signals.received if signals.received else unsaved_status

    def _abandon(self, signals: StopSignals, summarize: Callable[[], object]) -> NoReturn:
        """End in the middle of a step that is not waited for, and say what is lost."""
        control, thread = self.control, self.thread
        why = f"the trainer did not stop within {self._waited_seconds:.0f} s, {thread.doing}"
        if control.ends_at_once:
            why = f"ended at once, {thread.doing}"
        if self.recording is None:
            assert self._world is not None, "a rank"
            complain(f"rank {self._world.rank}: {why}")
            os._exit(1)
        step = thread.emit_finished_steps()
        checkpoint = self.view().checkpoint
        saved_step = 0 if checkpoint is None else checkpoint.step
        lost = f"{units.counted(max(0, step - saved_step), 'finished step')} lost"
        hint = f"; to resume from step {saved_step:,}: {self._resume_command()}"
        text = f"{why}: {lost}{hint if saved_step else ', there is no checkpoint'}"
        self.emit(RunFailed(time=time.time(), step=step, error=text, traceback=""))
        self.close()
        summarize()
        tell_unsaved(self.recording.unsaved)
        complain(text)
        # A key on a screen stands for Ctrl+C.
        asked_by = signal.Signals.__members__.get(control.stop_reason or "", signal.SIGINT)
        # Exiting the interpreter while a thread is inside torch aborts the process.
        os._exit(128 + (signals.received or asked_by) if control.ends_at_once else 1)


def run_training(plan: Plan, viewer: socket.socket | None = None, *, world: World | None = None) -> int:
    """Train in this process, which does nothing else; return the exit status.

    A run that somebody may watch has no terminal, and is watched by ``viewer``, if given, and others. Any
    other writes plain lines, or with ``plan.json`` every record. Of several ranks, rank 0 does so.
    """
    leads, shown = world is None or world.leads, plan.request.interactive
    with ExitStack() as stack:
        lines: JsonLines | None = None
        print_stacks_if_killed()
        if leads:
            stack.enter_context(lasting_streams())
        if leads and not shown and plan.json:
            lines = JsonLines(separate_stdout())
        try:
            training = Training(
                plan,
                world=world,
                listeners=[] if lines is None else [lines],
                notify_url=take_url(),
                say=complain if leads and not shown else lambda _words: None,
            )
            signals = stack.enter_context(stack.enter_context(training).stop_signals())
            if leads and shown:
                training.keep_output()
            training.start(viewer)
            if lines is not None:
                training.follow()
                return training.finish(signals, lambda: lines.finish(training.view()))
            if shown or not leads:
                training.follow()
                return training.finish(signals)
            front = PlainFront(
                training.view,
                sys.stdout,
                alerts=None if plan.quiet else Alerts(time.time()),
                stop_asked=lambda: training.control.stop_reason is not None,
                resume_command=resume_command(plan.run_dir.path),
            )
            training.follow(front.update)
            return training.finish(signals, front.finish)
        except Exception as error:
            # This process has no terminal: its viewers report what it cannot do, before they are sent away.
            if viewer is not None:
                with suppress(OSError):
                    viewer.sendall(protocol.encode(protocol.RunError(str(error))))
            if shown and isinstance(error, AmptuiError):
                return error.exit_status
            raise


def measure_training(
    request: TrainRequest,
    folder: Path,
    *,
    begin: Callable[[Training], object] = lambda _training: None,
    poll: Callable[[Training], object],
    hurried: Callable[[], bool],
    poll_seconds: float = POLL_SECONDS,
) -> tuple[SessionView, AmptuiError | None, bool]:
    """Train in ``folder`` until ``poll``, called now and then, asks for a stop, or the run ends.

    Returns all that is known of it, what ended it early, and whether its trainer hangs, so that this process
    can train no more. ``begin`` is called before the trainer starts; while ``hurried()``, a trainer that was
    asked to stop is not waited for long. Its memory is free afterwards. Raises RunFolderError.
    """
    from amptui.device.accelerator import default_device, empty_cache
    from amptui.recipe.precision import Tf32Flags

    flags = Tf32Flags.current()
    spec = parse_model(request.model)
    with Training(Plan(request, spec, create_run_dir(folder, spec.name))) as training:
        begin(training)
        training.start()
        training.follow(partial(poll, training), poll_seconds)
        in_time = training.wait(hurried=hurried)
        training.close()
    # A run leaves the flags of its last precision, which the next one would take for torch's defaults.
    flags.apply()
    error, view = training.thread.error, training.view()
    if not in_time:
        error = AmptuiError(f"the trainer did not stop ({training.thread.doing}); leaving anyway")
    del training
    gc.collect()
    empty_cache(default_device())
    return view, error, not in_time


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
