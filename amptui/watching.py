"""One viewer in this process: a run's records from its socket, folded into a session, on the screen."""

import gc
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from amptui.capture import OutputCapture
from amptui.plain import PlainFront
from amptui.prompt import complain
from amptui.runs.client import Client, RemoteControl
from amptui.signals import StopSignals
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView

if TYPE_CHECKING:
    from amptui.runs.protocol import LeaveKind
    from amptui.tui.opening import Opening
    from amptui.tui.screen import Left

PATIENCE_SECONDS = 30.0
"""How long a run that was asked to stop may take before its screen leaves without it."""

_GOODBYE_SECONDS = 1.0

_LOOK_INTERVAL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Watched:
    """How a viewer ended, and the last that it knew."""

    left: "Left"
    """Why the screen left; empty where the run had ended before."""
    over: bool
    """Whether the run has ended, or the connection to it."""
    signal: int | None
    view: SessionView
    error: str
    """What the run, or the connection to it, said instead of a last record; empty if all is well."""


def watch(
    connection: socket.socket,
    run_dir: Path,
    *,
    attached: bool,
    frames_per_second: float | None,
    opening: "Opening | None" = None,
) -> Watched:
    """Show the run at the other end of ``connection`` until it or its viewer leaves.

    ``opening`` stands on the terminal until then. A signal that ends an ``attached`` viewer stops no run.
    """
    from amptui.tui.app import WatchApp
    from amptui.tui.driver import RESTORE
    from amptui.tui.panels.phase import is_stopping

    session, ended = Session(str(run_dir)), threading.Event()
    client = Client(connection, restore=session.restore, fold=session.fold, ended=ended)
    control = client.control

    def start() -> None:
        gc.enable()
        capture.reclaim()
        client.start()

    app = WatchApp(
        look=session.view,
        control=control,
        ended=ended,
        start=start,
        patience_seconds=PATIENCE_SECONDS,
        frames_per_second=frames_per_second,
        attached=attached,
        why_ended=lambda: client.error,
        opening=opening,
    )

    def stop(reason: str) -> None:
        if attached:
            app.hang_up()
        else:
            control.request_stop(reason)

    def busy() -> bool:
        return not ended.is_set() and is_stopping(session.view())

    with StopSignals(stop, hung_up=app.hang_up, busy=busy, restore=RESTORE) as signals:
        # What is printed here is no part of the run: a screen that fails writes its traceback to the log.
        with OutputCapture(lambda _record: None, run_dir / "output.log") as capture:
            app.run()
        if not client.started:
            client.start()  # the screen ended before its first frame; the run shall be told why
        if app.return_code and not app.left:
            if opening is not None:
                opening.close()
            _go_on_in_lines(session, control, ended)
    left: Left = "interrupted" if signals.received == signal.SIGINT and not attached else app.left
    client.leave("hung up" if left == "hung up" else "detached", _GOODBYE_SECONDS)
    view = session.view()
    return Watched(left, ended.is_set() or view.outcome is not None, signals.received, view, client.error)


def _go_on_in_lines(session: Session, control: RemoteControl, ended: threading.Event) -> None:
    """A fault of the screen is ours: it must not cost anybody the sight of the run."""
    complain("the screen failed (output.log in the run folder says why); training goes on, in plain lines")
    front = PlainFront(session.view, sys.stdout)
    while not ended.wait(_LOOK_INTERVAL_SECONDS) and not control.stop_reason:
        front.update()
    ended.wait(PATIENCE_SECONDS)
    front.update()


def see_off(connection: socket.socket, run_dir: Path) -> Watched:
    """Follow a run in plain lines until it trains, then leave it alone; Ctrl+C until then stops it.

    A terminal that is closed before ends nothing but that.
    """
    session, ended, closed = Session(str(run_dir)), threading.Event(), threading.Event()
    client = Client(connection, restore=session.restore, fold=session.fold, ended=ended)
    front = PlainFront(session.view, sys.stdout)
    with StopSignals(client.control.request_stop, hung_up=closed.set) as signals:
        client.start()
        while not (session.view().step or closed.is_set() or ended.wait(_LOOK_INTERVAL_SECONDS)):
            front.update()
        if signals.received is not None:
            ended.wait(PATIENCE_SECONDS)
        front.update()
    kind: LeaveKind = "hung up" if closed.is_set() else "detached"
    client.leave(kind, _GOODBYE_SECONDS)
    left: Left = kind if signals.received is None else "interrupted"
    return Watched(left, ended.is_set(), signals.received, session.view(), client.error)
