"""One viewer in this process: reads a run's records from its socket and shows them on the screen."""

import gc
import math
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from amptui.base import units
from amptui.base.errors import RunFolderError
from amptui.base.prompt import complain
from amptui.diagnosis.alerts import Alerts
from amptui.process.capture import OutputCapture
from amptui.process.plain_lines import PlainFront
from amptui.process.stop_signals import StopSignals
from amptui.records.control import Asker, StopRequest
from amptui.runs.client import Client
from amptui.runs.find import RESTART_SECONDS
from amptui.runs.lock import holder
from amptui.runs.pins import read_pins, write_pins
from amptui.runs.rundir import RunDir
from amptui.runs.socket_place import connect
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, SessionView

if TYPE_CHECKING:
    from amptui.runs.protocol import LeaveKind
    from amptui.tui.canvas_app import Left
    from amptui.tui.opening import Opening

PATIENCE_SECONDS = 30.0
"""How long a run that was asked to stop may be silent before the screen leaves it."""

_GOODBYE_SECONDS = 1.0

_LOOK_INTERVAL_SECONDS = 0.5

_ENDING_SECONDS = 1.0

_SILENT_SECONDS = 5.0
"""A run samples its device every second; during a long call it may miss some."""

_RECONNECT_SECONDS = 0.2

_Received = TypeVar("_Received")


@dataclass(frozen=True, slots=True)
class ViewerEnd:
    """How a viewer ended, and its last view."""

    left: "Left"
    """Why the screen closed; empty if the run had ended before."""
    over: bool
    """Whether the run, or the connection to it, has ended."""
    stop_asked: bool
    """Whether this viewer asked the run to stop."""
    signal: int | None
    view: SessionView
    silence: str
    """What to say of a live run that has sent nothing for seconds; empty if it has."""
    error: str
    """The error of the run or the connection if there was no last record; empty if all is well."""


def watch(
    connection: socket.socket,
    run_dir: Path,
    *,
    attached: bool,
    frames_per_second: float | None,
    opening: "Opening | None" = None,
    quiet: bool = False,
    why_lost: Callable[[], str] = str,
) -> ViewerEnd:
    """Show the run at the other end of ``connection`` until it ends or the viewer leaves.

    ``opening`` is on the terminal until the first frame. A signal that ends an ``attached`` viewer does not
    stop the run. ``quiet``: the screen rings no bell. ``why_lost`` returns how the run's process ended, if
    that is known of one that left no last record.
    """
    from amptui.tui.app import WatchApp

    session, ended, last_heard = Session(str(run_dir)), threading.Event(), _LastHeard(run_dir)
    restarts = _Restarts(session, run_dir)
    client = Client(
        connection,
        restore=last_heard.first(session.restore),
        fold=last_heard.first(session.fold),
        on_request=lambda request: session.fold([request]),
        ended=ended,
        reconnect=lambda: restarts.connect(lambda: client.left),
    )
    error = ""
    alerts = None if quiet else Alerts(time.time())

    def start() -> None:
        gc.freeze()  # nothing imported so far is garbage, and there is a lot of it
        gc.enable()
        capture.reclaim()
        last_heard.hears()
        client.start()

    app = WatchApp(
        look=session.view,
        control=client,
        ended=ended,
        start=start,
        patience_seconds=PATIENCE_SECONDS,
        frames_per_second=frames_per_second,
        attached=attached,
        why_ended=lambda: client.error and _lost_words(client.error, run_dir, why_lost),
        why_silent=lambda: restarts.waiting or last_heard.silence(),
        opening=opening,
        read_pins=read_pins,
        write_pins=write_pins,
        alerts=alerts,
    )

    def stop(request: StopRequest) -> None:
        if attached:
            app.hang_up("detached")
        else:
            client.ask(request)

    def busy() -> bool:
        return not (ended.is_set() or last_heard.silence())

    with StopSignals(stop, hung_up=app.hang_up, busy=busy, closes=True, terminal=app.terminal) as signals:
        # Nothing printed here belongs to the run: if the screen fails, its traceback goes to the log.
        with OutputCapture(lambda _record: None, RunDir(run_dir).output_path) as capture:
            try:
                app.run()
            except Exception:  # noqa: BLE001 - whatever failed, plain lines can still follow the run
                traceback.print_exc()
        if not client.started:
            client.start()  # the screen closed before its first frame; tell the run why
        if app.left is None:
            if opening is not None:
                opening.close()
            complain(_fault_words(ended, "leaves" if attached else "stops"))
            error = _go_on_in_lines(session, ended, client, lambda: app.left is not None, alerts)
    left: Left = "interrupted" if signals.received == signal.SIGINT and not attached else app.left or ""
    client.leave("hung up" if left == "hung up" else "detached", _GOODBYE_SECONDS)
    view = _last_view(session)
    over = view.outcome is not None or (ended.is_set() and not _trains_on(run_dir))
    silence = "" if over else last_heard.silence()
    error = client.error or error
    return ViewerEnd(left, over, client.stop_reason is not None, signals.received, view, silence, error)


def _lost_words(error: str, run_dir: Path, why_lost: Callable[[], str]) -> str:
    """The error of a lost connection; if the run itself lives on, how to get back to it."""
    if not _trains_on(run_dir):
        return why_lost() or error
    return f"{error}; training continues: press q, then amptui attach to reconnect"


def _trains_on(run_dir: Path) -> bool:
    """Whether a run is still alive after its connection ended; a run that ends soon releases its folder."""
    limit = time.monotonic() + _ENDING_SECONDS
    while holder(run_dir) is not None:
        if time.monotonic() > limit:
            return True
        time.sleep(0.02)
    return False


def _last_view(session: Session) -> SessionView:
    try:
        return session.view()
    except Exception:  # noqa: BLE001 - reported before, when the screen failed
        return EMPTY_VIEW


class _Restarts:
    """Waits for ranks that their launcher starts again, and connects to them."""

    def __init__(self, session: Session, run_dir: Path) -> None:
        self._session = session
        self._run_dir = run_dir
        self._max_restarts = 0
        self.waiting = ""
        """What to say meanwhile, in one line."""

    def connect(self, left: Callable[[], bool]) -> socket.socket | None:
        """A connection to the ranks that follow; None if none do, or the screen has ``left``."""
        view = self._session.view()
        restarts = 0 if view.ranks is None else view.ranks.restarts
        self._max_restarts = self._max_restarts if view.ranks is None else view.ranks.max_restarts
        if view.outcome is not None or restarts >= self._max_restarts:
            return None
        self.waiting = "the ranks are being started again"
        limit = time.monotonic() + RESTART_SECONDS
        try:
            while not left() and time.monotonic() < limit:
                with suppress(RunFolderError):
                    return connect(self._run_dir)
                time.sleep(_RECONNECT_SECONDS)
        finally:
            self.waiting = ""
        return None


class _LastHeard:
    """When the run was last heard from (it sends something every second), and what to say if it is silent."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._heard_at = math.inf

    def hears(self) -> None:
        """Note that the run sent something, or that listening starts now."""
        self._heard_at = time.monotonic()

    def first(self, take: Callable[[_Received], None]) -> Callable[[_Received], None]:
        """``take``, and note the time."""

        def heard(received: _Received) -> None:
            self.hears()
            take(received)

        return heard

    def silence(self) -> str:
        """One line; empty while the run sends something."""
        seconds = time.monotonic() - self._heard_at
        if seconds < _SILENT_SECONDS:
            return ""
        words = f"no response from the run for {units.duration(seconds)}"
        process = holder(self._run_dir)
        if process is None or process.pid is None or not process.is_here or not _stands_still(process.pid):
            return words
        return f"{words}: suspended (SIGSTOP); to continue it: kill -CONT {process.pid}"


def _stands_still(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _fault_words(ended: threading.Event, interrupt: str) -> str:
    goes_on = "" if ended.is_set() else f"; training continues, shown as plain lines; Ctrl+C {interrupt} it"
    return f"the screen crashed (see output.log in the run folder){goes_on}"


def _go_on_in_lines(
    session: Session,
    ended: threading.Event,
    control: Asker,
    left: Callable[[], bool],
    alerts: Alerts | None,
) -> str:
    """Follow the run in plain lines after the screen has crashed. Returns why that failed, if it did."""
    front = PlainFront(
        session.view, sys.stdout, alerts=alerts, stop_asked=lambda: control.stop_reason is not None
    )
    try:
        while not (left() or control.stop_reason or ended.wait(_LOOK_INTERVAL_SECONDS)):
            front.update()
        if control.stop_reason:
            ended.wait()
        front.update()
    except Exception as error:  # noqa: BLE001 - the run itself is unharmed, and amptui attach can show it
        return f"cannot show the run: {type(error).__name__}: {error}"
    return ""


def follow_until_first_step(connection: socket.socket, run_dir: Path) -> ViewerEnd:
    """Follow a run in plain lines until its first step, then detach; Ctrl+C before that stops it.

    Closing the terminal before that does not stop it.
    """
    session, ended, closed = Session(str(run_dir)), threading.Event(), threading.Event()
    client = Client(
        connection, restore=session.restore, fold=session.fold, on_request=lambda _request: None, ended=ended
    )
    front = PlainFront(session.view, sys.stdout)

    def busy() -> bool:
        return not ended.is_set()

    with StopSignals(client.ask, hung_up=closed.set, busy=busy, closes=True) as signals:
        client.start()
        while not (session.view().step or closed.is_set() or ended.wait(_LOOK_INTERVAL_SECONDS)):
            front.update()
        if signals.received is not None:
            ended.wait()
        front.update()
    kind: LeaveKind = "hung up" if closed.is_set() else "detached"
    client.leave(kind, _GOODBYE_SECONDS)
    left: Left = kind if signals.received is None else "interrupted"
    stop_asked = signals.received is not None
    return ViewerEnd(left, ended.is_set(), stop_asked, signals.received, session.view(), "", client.error)
