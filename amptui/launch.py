"""Puts one training together: thread, sampler, recorder and a front; ends it cleanly however it ends."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from amptui.capture import OutputCapture
from amptui.control import Control
from amptui.device.sampler import Sampler
from amptui.engine.worker import TrainingThread
from amptui.modelspec import parse_model
from amptui.plain import JsonLines, PlainFront, printable, separate_stdout
from amptui.recorder import Listener, Recorder
from amptui.records import RunFailed
from amptui.request import TrainRequest
from amptui.runs.rundir import RunDir, create_run_dir
from amptui.signals import StopSignals
from amptui.summary import summary_lines
from amptui.telemetry.session import Session

STOP_PATIENCE_SECONDS = 5.0
"""How long a trainer may take to stop when asked; then we say so and leave anyway."""

_CLOSING_SECONDS = 5.0

_LOOK_INTERVAL_SECONDS = 0.5
"""How often lines are written where there is no screen."""

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long one thread may hold the interpreter: a tenth of the default keeps the screen's frame rate
beside a trainer that never lets go, at no measured cost to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """One training's parts, wired."""

    session: Session
    control: Control
    thread: TrainingThread
    recorder: Recorder
    sampler: Sampler
    run_dir: RunDir

    def start(self) -> None:
        """Start every thread."""
        gc.enable()
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        self.recorder.start()
        self.sampler.start()
        self.thread.start()

    def wait_for_end(self) -> bool:
        """Wait as long as a trainer may take to stop; whether it did."""
        return self.thread.join(STOP_PATIENCE_SECONDS)

    def close(self) -> None:
        """Stop sampling, drain the records, close the journal."""
        self.sampler.stop(timeout=1.0)
        self.recorder.close(_CLOSING_SECONDS)


def train(request: TrainRequest, *, run_dir: Path | None, json: bool, frames_per_second: float | None) -> int:
    """Run one training behind the front that fits; return the exit status."""
    spec = parse_model(request.model)
    folder = create_run_dir(run_dir, spec.name)
    listeners: list[Listener] = [JsonLines(separate_stdout())] if json else []
    session, control = Session(str(folder.path)), Control()
    recorder = Recorder(session, folder, asked=request.as_json(), listeners=listeners)
    thread = TrainingThread(request, spec, control, recorder.emit)
    sampler = Sampler(recorder.emit, read_allocator=thread.allocator)
    training = Training(session, control, thread, recorder, sampler, folder)
    if request.attended:
        return _train_on_screen(training, frames_per_second)
    return _train_plainly(training, json=json)


def wants_screen(*, headless: bool) -> bool:
    """Whether somebody sits at a terminal that can show a screen and type keys."""
    return (
        not headless
        and os.environ.get("TERM", "dumb") not in ("", "dumb")
        and sys.stdin is not None
        and sys.stdin.isatty()
        and sys.stdout.isatty()
    )


def default_data_dir() -> Path:
    """The user's cache folder for data sets, by the XDG convention."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "amptui"


def _train_plainly(training: Training, *, json: bool) -> int:
    with StopSignals(training.control) as signals:
        training.start()
        if json:
            _follow(training, lambda: None)
            return _finish(training, signals, lambda: None)
        front = PlainFront(training.session.view, sys.stdout)
        _follow(training, front.update)
        return _finish(training, signals, front.finish)


def _follow(training: Training, look: Callable[[], None]) -> None:
    """Look now and then until the trainer has ended, or was asked to: then ``_finish`` waits for it."""
    while not training.thread.ended.wait(_LOOK_INTERVAL_SECONDS) and not training.control.stop_reason:
        look()


def _train_on_screen(training: Training, frames_per_second: float | None) -> int:
    from amptui.tui.app import WatchApp

    with StopSignals(training.control) as signals:
        with OutputCapture(training.recorder.emit, training.run_dir.path / "output.log") as capture:

            def start() -> None:
                capture.reclaim()
                training.start()

            app = WatchApp(
                look=training.session.view,
                control=training.control,
                ended=training.thread.ended,
                start=start,
                patience_seconds=STOP_PATIENCE_SECONDS,
                frames_per_second=frames_per_second,
            )
            app.run()
        if not training.thread.started:
            training.start()  # the screen ended before its first frame; the journal shall have an end too
        if app.interrupted:
            signals.received = signals.received or signal.SIGINT
        if app.return_code and training.control.stop_reason is None:
            _go_on_without_screen(training)
        return _finish(training, signals, lambda: _print_summary(training))


def _go_on_without_screen(training: Training) -> None:
    """A fault of the screen is ours: it must not cost anybody's run."""
    training.control.leave_alone()
    _complain("the screen failed (output.log in the run folder says why); training goes on in plain lines")
    _follow(training, PlainFront(training.session.view, sys.stdout).update)


def _finish(training: Training, signals: StopSignals, tell: Callable[[], None]) -> int:
    """Wait for the trainer, close everything, tell how it ended; leave hard if the trainer will not end."""
    ended = training.wait_for_end()
    if not ended:
        doing, step = training.thread.doing, training.session.view().step
        text = f"the trainer did not stop within {STOP_PATIENCE_SECONDS:g} s ({doing}); leaving anyway"
        training.recorder.emit(RunFailed(time=time.time(), step=step, error=text, traceback=""))
    training.close()
    tell()
    if not ended:
        _complain(text)
        # A thread inside torch would abort the interpreter's own way out.
        os._exit(1)
    error = training.thread.error
    if error is not None:
        _complain(str(error))
        return error.exit_status
    if training.recorder.trouble:
        _complain(f"journal: {training.recorder.trouble}")
    return 128 + signals.received if signals.received else 0


def _print_summary(training: Training) -> None:
    # The first line ends the one the cursor was left in by a terminal without an alternate screen.
    for line in ("", *summary_lines(training.session.view())):
        _write(sys.stdout, printable(line))


def _complain(text: str) -> None:
    _write(sys.stderr, f"amptui: {printable(text)}")


def _write(stream: TextIO, line: str) -> None:
    """Write a line to a stream whose other end may be gone."""
    try:
        stream.write(f"{line}\n")
        stream.flush()
    except OSError:
        pass  # nobody is there to read it; the journal has it all
