"""One viewer in this process: shows a run that goes on, from its socket, or plays back what one recorded."""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from amptui.base.errors import UsageError
from amptui.base.prompt import complain, say, show_traceback
from amptui.base.terminal import can_show_a_screen
from amptui.diagnosis.alerts import Alerts
from amptui.process.capture import OutputLines
from amptui.process.followers import Follower
from amptui.process.plain_lines import PlainFront
from amptui.process.stop_signals import StopSignals, show
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import PhaseChanged
from amptui.runs.find import journal_of
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.frame import Frame
from amptui.tui.opening import Opening
from amptui.tui.panels.screen_state import ScreenState

if TYPE_CHECKING:
    from amptui.tui.replay import ReplayScreen
    from amptui.tui.screen import Left

PATIENCE_SECONDS = 30.0
"""How long a run that was asked to stop may be silent before the screen leaves it."""

_GOODBYE_SECONDS = 1.0

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ViewerEnd:
    """How a viewer ended, and its last view."""

    left: "Left"
    """Why the screen closed; empty if the run had ended before."""
    over: bool
    """Whether the run, or the connection to it, has ended."""
    signal: int | None
    view: SessionView
    error: str
    """Of the run or the connection, if there was no last record, or of the screen; empty if all is well."""


def watch_run(run: Follower, *, attached: bool, quiet: bool, phase: PhaseChanged | None = None) -> ViewerEnd:
    """Show ``run`` until it ends or the viewer leaves.

    ``phase`` is known before the first record arrives. A signal that ends an ``attached`` viewer does not
    stop the run.
    """
    session, ended, frame, state = run.session, run.ended, Frame(), ScreenState()
    session.fold([] if phase is None else [phase])
    # What is known is shown while Textual is imported; of a run that is attached to, its boxes.
    first = None if attached else lambda canvas: frame.draw(canvas, session.view(), state)
    farewell = f"the screen was ended; to watch the run again: {run.attach_command}"
    with Opening(first, farewell=farewell) as opening, ExitStack() as stack:
        from amptui.tui.run_screen import Parts, RunScreen

        def start() -> None:
            gc.freeze()  # nothing imported so far is garbage, and there is a lot of it
            gc.enable()
            run.start()

        parts = Parts(
            look=session.view,
            control=run,
            ended=ended,
            start=start,
            patience_seconds=PATIENCE_SECONDS,
            why_ended=lambda: run.error and run.lost_words(run.error),
            why_silent=lambda: run.waiting or run.silence(),
            is_away=lambda: bool(run.waiting),
            opening=opening,
            alerts=None if quiet else Alerts(time.time()),
        )
        app = RunScreen(parts, attached=attached)

        def stop(request: RequestMade) -> None:
            if attached:
                app.hang_up("detached")
            else:
                run.ask(request)

        signals = stack.enter_context(
            StopSignals(stop, hung_up=app.hang_up, closes=True, restore_terminal=opening.restore_at_once)
        )
        with TemporaryFile() as file:
            with _terminal_reserved(file.fileno()):
                try:
                    app.run()
                except Exception:  # noqa: BLE001 - whatever failed, the run goes on
                    traceback.print_exc()
            file.seek(0)
            printed = OutputLines().feed(file.read())
        if not run.started:
            run.start()  # the screen closed before its first frame; tell the run why
        if app.left is None:
            opening.close()
        stack.close()
        left: Left = "interrupted" if signals.received == signal.SIGINT and not attached else app.left or ""
        run.leave(_GOODBYE_SECONDS)
        try:
            view = session.view()
        except Exception:  # noqa: BLE001 - it is what failed on the screen
            view = EMPTY_VIEW
        over = view.outcome is not None or (ended.is_set() and not run.is_live())
        error = run.error
        if app.left is None:
            show_traceback("\n".join(printed))
            error = error or "the screen crashed"
        return ViewerEnd(left, over, signals.received, view, error)


@contextmanager
def _terminal_reserved(file: int) -> Iterator[None]:
    """Within, the terminal is ``sys.__stdout__``; what else is printed there goes to ``file``.

    Textual draws on ``sys.__stderr__`` and asks ``sys.__stdout__`` for the terminal's size.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
    streams = sys.__stdout__, sys.__stderr__
    saved = {number: os.dup(number) for number in (1, 2) if os.isatty(number)}  # no file of the user's
    for number in saved:
        os.dup2(file, number)
    sys.__stdout__ = sys.__stderr__ = terminal  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        with suppress(OSError):  # it may be gone
            terminal.close()


def follow_until_first_step(run: Follower) -> ViewerEnd:
    """Follow a run in plain lines until its first step, then detach; Ctrl+C before that stops it.

    Closing the terminal before that does not stop it.
    """
    session, closed = run.session, threading.Event()
    ended, front = run.ended, PlainFront(session.view, sys.stdout)

    with StopSignals(run.ask, hung_up=closed.set, closes=True) as signals:
        run.start()
        while not (session.view().step or closed.is_set() or ended.wait(_POLL_SECONDS)):
            front.update()
        if signals.received is not None:
            ended.wait()
        front.update()
    run.leave(_GOODBYE_SECONDS)
    left: Left = "hung up" if closed.is_set() else "detached"
    left = left if signals.received is None else "interrupted"
    return ViewerEnd(left, ended.is_set(), signals.received, session.view(), run.error)


def replay(run: Path, *, speed: float) -> int:
    """Replay ``run``, a run's folder or its journal, at ``speed`` times real time; return the exit status.

    Raises ``UsageError`` without a terminal, and ``RunFolderError`` for a run that cannot be read or has no
    records.
    """
    if not can_show_a_screen():
        raise UsageError("a replay needs a terminal", hint="`amptui export` writes a run to a file")
    path, control = journal_of(run), Control()

    def build(opening: Opening) -> "ReplayScreen":
        from amptui.tui.replay import Player, ReplayScreen

        return ReplayScreen(Player(path, speed=speed), control, opening)

    screen, status = show(build, ask=control.ask)
    if screen.player.passed_over and status != 128 + signal.SIGHUP:  # else nobody can read it
        say("")  # ends the line the cursor was left in by a terminal without an alternate screen
        complain(screen.player.passed_over)
    return status
