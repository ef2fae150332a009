"""One viewer in this process: a run's records from its socket, folded into a session, on the screen."""

import gc
import math
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from amptui import units
from amptui.capture import OutputCapture
from amptui.control import Asker, StopRequest
from amptui.plain import PlainFront
from amptui.prompt import complain
from amptui.runs.client import Client
from amptui.runs.lock import holder
from amptui.signals import StopSignals
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, SessionView

if TYPE_CHECKING:
    from amptui.runs.protocol import LeaveKind
    from amptui.tui.opening import Opening
    from amptui.tui.screen import Left

PATIENCE_SECONDS = 30.0
"""How long a run that was asked to stop may take before its screen leaves without it."""

_GOODBYE_SECONDS = 1.0

_LOOK_INTERVAL_SECONDS = 0.5

_ENDING_SECONDS = 1.0

_SILENT_SECONDS = 5.0
"""A run samples its device each second; one that is busy with a single call may miss some."""

_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True)
class Watched:
    """How a viewer ended, and the last that it knew."""

    left: "Left"
    """Why the screen left; empty where the run had ended before."""
    over: bool
    """Whether the run has ended, or the connection to it."""
    stop_asked: bool
    """Whether the run was asked here to stop."""
    signal: int | None
    view: SessionView
    silence: str
    """What to say of a run that is there and has told nothing for seconds; empty if it told."""
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
    from amptui.tui.panels.phase import is_stopping

    session, ended, hearing = Session(str(run_dir)), threading.Event(), _Hearing(run_dir)
    client = Client(
        connection,
        restore=hearing.first(session.restore),
        fold=hearing.first(session.fold),
        asked=lambda made: session.fold([made]),
        ended=ended,
    )
    control, error = client.control, ""

    def start() -> None:
        gc.freeze()  # what is imported by now is no garbage, and there is much of it
        gc.enable()
        capture.reclaim()
        hearing.hears()
        client.start()

    app = WatchApp(
        look=session.view,
        control=control,
        ended=ended,
        start=start,
        patience_seconds=PATIENCE_SECONDS,
        frames_per_second=frames_per_second,
        attached=attached,
        why_ended=lambda: client.error and _lost_words(client.error, run_dir),
        why_silent=hearing.silence,
        opening=opening,
    )

    def stop(request: StopRequest) -> None:
        if attached:
            app.hang_up("detached")
        else:
            control.ask(request)

    def busy() -> bool:
        return not ended.is_set() and is_stopping(session.view())

    with StopSignals(stop, hung_up=app.hang_up, busy=busy, terminal=app.terminal) as signals:
        # What is printed here is no part of the run: a screen that fails writes its traceback to the log.
        with OutputCapture(lambda _record: None, run_dir / "output.log") as capture:
            try:
                app.run()
            except Exception:  # noqa: BLE001 - whatever it is, the run can still be followed
                traceback.print_exc()
        if not client.started:
            client.start()  # the screen ended before its first frame; the run shall be told why
        if app.left is None:
            if opening is not None:
                opening.close()
            complain(_fault_words(ended, "leaves" if attached else "stops"))
            error = _go_on_in_lines(session, ended, control, lambda: app.left is not None)
    left: Left = "interrupted" if signals.received == signal.SIGINT and not attached else app.left or ""
    client.leave("hung up" if left == "hung up" else "detached", _GOODBYE_SECONDS)
    view = _last_view(session)
    over = view.outcome is not None or (ended.is_set() and not _trains_on(run_dir))
    silence = "" if over else hearing.silence()
    error = client.error or error
    return Watched(left, over, control.stop_reason is not None, signals.received, view, silence, error)


def _lost_words(error: str, run_dir: Path) -> str:
    """What ended, where the connection to a run did: the run itself, or only the sight of it."""
    return f"{error}; training goes on: q leaves, amptui attach comes back" if _trains_on(run_dir) else error


def _trains_on(run_dir: Path) -> bool:
    """Whether a run whose connection ended has not; one that ends lets go of its folder a moment later."""
    limit = time.monotonic() + _ENDING_SECONDS
    while holder(run_dir) is not None:
        if time.monotonic() > limit:
            return True
        time.sleep(0.02)
    return False


def _last_view(session: Session) -> SessionView:
    try:
        return session.view()
    except Exception:  # noqa: BLE001 - told before, where the screen failed for it
        return EMPTY_VIEW


class _Hearing:
    """When a run was last heard, which tells something each second, and what is known of one that is not."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._heard_at = math.inf

    def hears(self) -> None:
        """The run told something, or is listened to from now on."""
        self._heard_at = time.monotonic()

    def first(self, take: Callable[[_Told], None]) -> Callable[[_Told], None]:
        """``take``, with the time noted."""

        def heard(told: _Told) -> None:
            self.hears()
            take(told)

        return heard

    def silence(self) -> str:
        """One line; empty while the run tells."""
        seconds = time.monotonic() - self._heard_at
        if seconds < _SILENT_SECONDS:
            return ""
        words = f"no word from the run for {units.duration(seconds)}"
        found = holder(self._run_dir)
        if found is None or found.pid is None or not found.is_here or not _stands_still(found.pid):
            return words
        return f"{words}: it was stopped (SIGSTOP); kill -CONT {found.pid} lets it go on"


def _stands_still(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _fault_words(ended: threading.Event, interrupt: str) -> str:
    goes_on = "" if ended.is_set() else f"; training goes on, in plain lines; Ctrl+C {interrupt} it"
    return f"the screen failed (output.log in the run folder says why){goes_on}"


def _go_on_in_lines(
    session: Session, ended: threading.Event, control: Asker, left: Callable[[], bool]
) -> str:
    """A fault of the screen must cost nobody the sight of the run. Returns a fault of the lines."""
    front = PlainFront(session.view, sys.stdout)
    try:
        while not (left() or control.stop_reason or ended.wait(_LOOK_INTERVAL_SECONDS)):
            front.update()
        if control.stop_reason:
            ended.wait(PATIENCE_SECONDS)
        front.update()
    except Exception as error:  # noqa: BLE001 - the run is none the worse for it, and can be attached to
        return f"the run cannot be shown: {type(error).__name__}: {error}"
    return ""


def see_off(connection: socket.socket, run_dir: Path) -> Watched:
    """Follow a run in plain lines until it trains, then leave it alone; Ctrl+C until then stops it.

    A terminal that is closed before ends nothing but that.
    """
    session, ended, closed = Session(str(run_dir)), threading.Event(), threading.Event()
    client = Client(
        connection, restore=session.restore, fold=session.fold, asked=lambda _made: None, ended=ended
    )
    front = PlainFront(session.view, sys.stdout)
    with StopSignals(client.control.ask, hung_up=closed.set) as signals:
        client.start()
        while not (session.view().step or closed.is_set() or ended.wait(_LOOK_INTERVAL_SECONDS)):
            front.update()
        if signals.received is not None:
            ended.wait(PATIENCE_SECONDS)
        front.update()
    kind: LeaveKind = "hung up" if closed.is_set() else "detached"
    client.leave(kind, _GOODBYE_SECONDS)
    left: Left = kind if signals.received is None else "interrupted"
    stop_asked = signals.received is not None
    return Watched(left, ended.is_set(), stop_asked, signals.received, session.view(), "", client.error)
