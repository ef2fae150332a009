"""One viewer in this process: reads a run's records from its socket and shows them on the screen."""

import gc
import math
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amptui.base import units
from amptui.base.webhook import Webhook
from amptui.diagnosis.alerts import Alerts
from amptui.process.capture import OutputCapture
from amptui.process.notifier import Notifier
from amptui.process.plain_lines import PlainFront
from amptui.process.stop_signals import StopSignals
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.control import StopRequest
from amptui.records.run import Record
from amptui.runs.client import Client
from amptui.runs.pins import read_pins, write_pins
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, SessionView

if TYPE_CHECKING:
    from amptui.process.watched_run import WatchedRun
    from amptui.runs.protocol import LeaveKind
    from amptui.tui.opening import Opening
    from amptui.tui.screen import Left

PATIENCE_SECONDS = 30.0
"""How long a run that was asked to stop may be silent before the screen leaves it."""

_GOODBYE_SECONDS = 1.0

_LOOK_INTERVAL_SECONDS = 0.5

_SILENT_SECONDS = 5.0
"""A run samples its device every second; during a long call it may miss some."""


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
    """Of the run or the connection, if there was no last record, or of the screen; empty if all is well."""


def watch(  # noqa: PLR0913 - options by name
    connection: socket.socket,
    run: "WatchedRun",
    session: Session,
    opening: "Opening",
    *,
    attached: bool,
    frames_per_second: float | None,
    bell: bool,
    webhook: Webhook | None,
) -> ViewerEnd:
    """Show the run at the other end of ``connection`` until it ends or the viewer leaves.

    ``session`` has what is known before the first record arrives; ``opening`` is on the terminal until the
    first frame. A signal that ends an ``attached`` viewer does not stop the run. ``webhook`` gets the news
    that rings the ``bell``, while the screen is open.
    """
    from amptui.tui.run_screen import Parts, RunScreen

    follower = _Follower(connection, run, session)
    client, ended = follower.client, follower.ended

    def start() -> None:
        gc.freeze()  # nothing imported so far is garbage, and there is a lot of it
        gc.enable()
        capture.reclaim()
        follower.start()

    parts = Parts(
        look=session.view,
        control=client,
        ended=ended,
        start=start,
        patience_seconds=PATIENCE_SECONDS,
        frames_per_second=frames_per_second,
        why_ended=follower.why_ended,
        why_silent=lambda: run.waiting or follower.silence(),
        is_away=lambda: bool(run.waiting),
        opening=opening,
        pinned=read_pins(),
        write_pins=write_pins,
        alerts=Alerts(time.time()) if bell else None,
    )
    app = RunScreen(parts, attached=attached)

    def stop(request: StopRequest) -> None:
        if attached:
            app.hang_up("detached")
        else:
            client.ask(request)

    def busy() -> bool:
        return not (ended.is_set() or follower.silence())

    restore = opening.restore_at_once
    signals = StopSignals(stop, hung_up=app.hang_up, busy=busy, closes=True, restore_terminal=restore)
    with _notifying(webhook, follower), signals:
        # Nothing printed here belongs to the run: if the screen fails, its traceback goes to the log.
        with OutputCapture(lambda _record: None, run.output_path) as capture:
            try:
                app.run()
            except Exception:  # noqa: BLE001 - whatever failed, the run goes on
                traceback.print_exc()
        if not client.started:
            client.start()  # the screen closed before its first frame; tell the run why
        if app.left is None:
            opening.close()
    left: Left = "interrupted" if signals.received == signal.SIGINT and not attached else app.left or ""
    client.leave("hung up" if left == "hung up" else "detached", _GOODBYE_SECONDS)
    try:
        view = session.view()
    except Exception:  # noqa: BLE001 - it is what failed on the screen
        view = EMPTY_VIEW
    over = view.outcome is not None or (ended.is_set() and not run.is_live())
    silence = "" if over else follower.silence()
    error = client.error
    if app.left is None and not error:
        error = "the screen crashed" + ("" if run.host else " (see output.log in the run folder)")
    stop_asked = client.stop_reason is not None
    return ViewerEnd(left, over, stop_asked, signals.received, view, silence, error)


@contextmanager
def _notifying(webhook: Webhook | None, follower: "_Follower") -> Iterator[None]:
    """Send the run's news meanwhile, if there is a ``webhook``; its trouble is shown here only."""
    if webhook is None:
        yield
        return
    session = follower.session

    def fate() -> str:
        is_cut_off = follower.ended.is_set() and session.status().outcome is None
        return follower.why_ended() if is_cut_off else ""

    notifier = Notifier(webhook, look=session.status, say=lambda note: session.fold([note]), fate=fate)
    notifier.start()
    try:
        yield
    finally:
        notifier.close(awaits_end=False)


class _Follower:
    """Follows a run into ``session``, over one connection after another.

    Each request of this screen gets an answer, also if the connection is lost before the run's.
    """

    def __init__(self, connection: socket.socket, run: "WatchedRun", session: Session) -> None:
        self._run = run
        self._heard_at = math.inf
        self._numbers: set[int] = set()
        """Of the requests that were sent."""
        self._doubtful: list[RequestMade] = []
        """Those that a lost connection may not have carried over."""
        self.session, self.ended = session, threading.Event()
        self.client = Client(
            connection,
            restore=self._restore,
            fold=self._fold,
            on_request=self._note,
            ended=self.ended,
            on_unsent=lambda request: self._refuse(request, run.waiting or "the run takes no request now"),
            reconnect=self._reconnect,
            recorded=run.recorded,
        )

    def start(self) -> None:
        """Begin to read, and to notice silence."""
        self._heard_at = time.monotonic()
        self.client.start()

    def why_ended(self) -> str:
        """Why the connection ended, if the run did not say."""
        return self.client.error and self._run.lost_words(self.client.error)

    def silence(self) -> str:
        """What to say of a run that is silent: it sends something every second; empty if it is not."""
        seconds = time.monotonic() - self._heard_at
        if seconds < _SILENT_SECONDS:
            return ""
        words = f"no response from the run for {units.duration(seconds)}"
        cause = self._run.silence_cause()
        return f"{words}: {cause}" if cause else words

    def _restore(self, state: Any) -> None:
        self._heard_at = time.monotonic()
        self.session.restore(state, host=self._run.host)
        # The run, whose history has just arrived, has never heard of some.
        view, doubtful = self.session.view(), self._doubtful
        arrived = {request.number for request in view.pending}
        arrived |= {answer.request.number for answer in view.answers}
        self._doubtful = []
        for request in doubtful:
            if request.number not in arrived:
                self._refuse(request, "the connection was lost before it arrived: press the key again")

    def _fold(self, records: Sequence[Record]) -> None:
        self._heard_at = time.monotonic()
        self.session.fold(records)

    def _reconnect(self) -> socket.socket | None:
        connection = self._run.reconnect(self.session.view(), lambda: self.client.left)
        pending = self.session.view().pending
        self._doubtful += [request for request in pending if request.number in self._numbers]
        return connection

    def _note(self, request: RequestMade) -> None:
        self._numbers.add(request.number)
        self.session.fold([request])

    def _refuse(self, request: RequestMade, detail: str) -> None:
        step, now = self.session.view().step, time.time()
        refusal = RequestRefused(time=now, step=step, request=request, reason="unavailable", detail=detail)
        self.session.fold([request, refusal])


def follow_until_first_step(connection: socket.socket, run_dir: Path) -> ViewerEnd:
    """Follow a run in plain lines until its first step, then detach; Ctrl+C before that stops it.

    Closing the terminal before that does not stop it.
    """
    session, ended, closed = Session(str(run_dir)), threading.Event(), threading.Event()
    client = Client(
        connection, restore=session.restore, fold=session.fold, on_request=lambda _request: None, ended=ended
    )
    front = PlainFront(session.view, sys.stdout)

    signals = StopSignals(client.ask, hung_up=closed.set, busy=lambda: not ended.is_set(), closes=True)
    with signals:
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
