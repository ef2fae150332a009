"""One viewer in this process: reads a run's records from its socket and shows them on the screen."""

import gc
import math
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amptui.base import units
from amptui.base.webhook import Webhook
from amptui.diagnosis.alerts import Alerts
from amptui.process.capture import OutputCapture
from amptui.process.notifier import Notifier
from amptui.process.plain_lines import PlainFront
from amptui.process.stop_signals import StopSignals
from amptui.process.watched_run import WatchedRun
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.control import StopRequest
from amptui.records.run import PhaseChanged, Record
from amptui.runs.client import Client
from amptui.runs.pins import read_pins, write_pins
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.frame import Frame
from amptui.tui.opening import Opening
from amptui.tui.panels.screen_state import ScreenState

if TYPE_CHECKING:
    from amptui.runs.protocol import LeaveKind
    from amptui.tui.screen import Left

PATIENCE_SECONDS = 30.0
"""How long a run that was asked to stop may be silent before the screen leaves it."""

_GOODBYE_SECONDS = 1.0

_POLL_SECONDS = 0.5

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


def watch_run(
    connection: socket.socket,
    run: WatchedRun,
    frames_per_second: float | None,
    *,
    attached: bool,
    quiet: bool,
    webhook: Webhook | None = None,
    phase: PhaseChanged | None = None,
) -> ViewerEnd:
    """Show ``run``, at the other end of ``connection``, until it ends or the viewer leaves.

    ``phase`` is known before the first record arrives. A signal that ends an ``attached`` viewer does not
    stop the run. ``webhook`` gets the news that rings the bell of a terminal that is not ``quiet``, while the
    screen is open.
    """
    session = Session(run.folder_name)
    session.fold([] if phase is None else [phase])
    follower = Follower(connection, run, session)
    ended, frame, state = follower.ended, Frame(), ScreenState()
    # What is known is shown while Textual is imported; of a run that is attached to, its boxes.
    first = None if attached else lambda canvas: frame.draw(canvas, session.view(), state)
    farewell = f"the screen was ended; to watch the run again: {run.attach_command}"
    with Opening(first, farewell=farewell) as opening, ExitStack() as stack:
        from amptui.tui.run_screen import Parts, RunScreen

        def start() -> None:
            gc.freeze()  # nothing imported so far is garbage, and there is a lot of it
            gc.enable()
            capture.reclaim()
            follower.start()

        parts = Parts(
            look=session.view,
            control=follower,
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
            alerts=None if quiet else Alerts(time.time()),
        )
        app = RunScreen(parts, attached=attached)

        def stop(request: StopRequest) -> None:
            if attached:
                app.hang_up("detached")
            else:
                follower.ask(request)

        if webhook is not None:  # its trouble is shown here only
            notifier = Notifier(
                webhook,
                read_status=session.status,
                say=lambda note: session.fold([note]),
                fate=follower.exit_reason,
            )
            notifier.start()
            stack.callback(notifier.close, awaits_end=False)
        restore = opening.restore_at_once
        signals = StopSignals(
            stop, hung_up=app.hang_up, busy=follower.is_heard, closes=True, restore_terminal=restore
        )
        stack.enter_context(signals)
        # Nothing printed here belongs to the run: if the screen fails, its traceback goes to the log.
        with OutputCapture(lambda _record: None, run.output_path) as capture:
            try:
                app.run()
            except Exception:  # noqa: BLE001 - whatever failed, the run goes on
                traceback.print_exc()
        if not follower.started:
            follower.start()  # the screen closed before its first frame; tell the run why
        if app.left is None:
            opening.close()
        stack.close()
        left: Left = "interrupted" if signals.received == signal.SIGINT and not attached else app.left or ""
        follower.leave("hung up" if left == "hung up" else "detached", _GOODBYE_SECONDS)
        try:
            view = session.view()
        except Exception:  # noqa: BLE001 - it is what failed on the screen
            view = EMPTY_VIEW
        over = view.outcome is not None or (ended.is_set() and not run.is_live())
        silence = "" if over else follower.silence()
        error = follower.error
        if app.left is None and not error:
            error = "the screen crashed" + ("" if run.host else " (see output.log in the run folder)")
        stop_asked = follower.stop_reason is not None
        return ViewerEnd(left, over, stop_asked, signals.received, view, silence, error)


class Follower(Client):
    """Follows a run into ``session``, over one connection after another.

    Each request of this screen gets an answer, also if the connection is lost before the run's.
    """

    def __init__(self, connection: socket.socket, run: WatchedRun, session: Session) -> None:
        super().__init__(connection)
        self._run, self.session = run, session
        self._heard_at = math.inf
        self._numbers: set[int] = set()
        """Of the requests that were sent."""
        self._doubtful: list[RequestMade] = []
        """Those that a lost connection may not have carried over."""

    def start(self) -> None:
        """Begin to read, and to notice silence."""
        self._heard_at = time.monotonic()
        super().start()

    def why_ended(self) -> str:
        """Why the connection ended, if the run did not say."""
        return self.error and self._run.lost_words(self.error)

    def exit_reason(self) -> str:
        """What became of a run that was cut off."""
        return self.why_ended() if self.ended.is_set() and self.session.status().outcome is None else ""

    def is_heard(self) -> bool:
        """Whether the run goes on, and says so."""
        return not (self.ended.is_set() or self.silence())

    def silence(self) -> str:
        """What to say of a run that is silent: it sends something every second; empty if it is not."""
        seconds = time.monotonic() - self._heard_at
        if seconds < _SILENT_SECONDS:
            return ""
        words = f"no response from the run for {units.duration(seconds)}"
        cause = self._run.silence_cause()
        return f"{words}: {cause}" if cause else words

    def restore(self, state: Any) -> None:
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

    def fold(self, records: Sequence[Record]) -> None:
        self._heard_at = time.monotonic()
        self.session.fold(records)

    def reconnect(self) -> socket.socket | None:
        connection = self._run.reconnect(self.session.view(), lambda: self.left)
        pending = self.session.view().pending
        self._doubtful += [request for request in pending if request.number in self._numbers]
        return connection

    def requested(self, request: RequestMade) -> None:
        self._numbers.add(request.number)
        self.session.fold([request])

    def unsent(self, request: RequestMade) -> None:
        self._refuse(request, self._run.waiting or "the run takes no request now")

    def recorded(self) -> Iterable[Record]:
        return self._run.recorded()

    def _refuse(self, request: RequestMade, detail: str) -> None:
        step, now = self.session.view().step, time.time()
        refusal = RequestRefused(time=now, step=step, request=request, reason="unavailable", detail=detail)
        self.session.fold([request, refusal])


def follow_until_first_step(connection: socket.socket, run: WatchedRun) -> ViewerEnd:
    """Follow a run in plain lines until its first step, then detach; Ctrl+C before that stops it.

    Closing the terminal before that does not stop it.
    """
    session, closed = Session(run.folder_name), threading.Event()
    follower = Follower(connection, run, session)
    ended, front = follower.ended, PlainFront(session.view, sys.stdout)

    signals = StopSignals(follower.ask, hung_up=closed.set, busy=lambda: not ended.is_set(), closes=True)
    with signals:
        follower.start()
        while not (session.view().step or closed.is_set() or ended.wait(_POLL_SECONDS)):
            front.update()
        if signals.received is not None:
            ended.wait()
        front.update()
    kind: LeaveKind = "hung up" if closed.is_set() else "detached"
    follower.leave(kind, _GOODBYE_SECONDS)
    left: Left = kind if signals.received is None else "interrupted"
    stop_asked = signals.received is not None
    return ViewerEnd(left, ended.is_set(), stop_asked, signals.received, session.view(), "", follower.error)
