"""Keeps a run in its folder, shows it to screens, sends its news: of a training, a script, rank 0."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from amptui.base.errors import RunFolderError
from amptui.base.notify_url import VARIABLE
from amptui.base.prompt import complain
from amptui.base.webhook import DeliveryError, News, Webhook, parse_webhook, post
from amptui.device.sampler import Sampler
from amptui.diagnosis.alerts import Alerts
from amptui.process.capture import LogTail
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.codec import line_of
from amptui.records.keeping import KeepingChanged
from amptui.records.run import Note, Record, RunFailed, RunFinished, RunResumed, RunStarted
from amptui.records.samples import AllocatorSample, DeviceSample
from amptui.runs.journal import Journal, JournalReader, cut_after
from amptui.runs.kept_run import described
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir, read_run_json
from amptui.runs.server import Server
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView

INTERVAL_SECONDS = 0.1
"""Ten times a second: faster than anyone reads, slow enough to cost the trainer nothing."""

FOLD_INTERVAL_SECONDS = 1.0
"""Who looks at the session has it folded at once. Until then a fold would only take the interpreter from the
trainer: ten folds a second took longer than all other work of this thread."""

_JOURNAL_SECONDS = 5.0
"""How long the end of a run waits for its journal and for its screens."""

_Shown = TypeVar("_Shown")

_KEEPING_SECONDS = 5.0
"""How long a checkpoint waits for the journal: a full disk may never have room again."""

_MEANWHILE = DeviceSample | RequestMade | RequestRefused
"""Once the run is over, these belong to the process that is ending, and no longer to the run."""

Listener = Callable[[Sequence[Record]], None]


class Recording:
    """A run's lock, journal, session, socket, device samples, output and news.

    ``emit`` takes a record from any thread, in a tenth of a microsecond: it appends to a deque, and never
    waits. A thread drains that into the session, to ``listeners`` and screens, and into the journal: the
    last, so that a slow disk delays the file and not the screen.

    Holds the folder's lock until :meth:`close`. If the run ``goes_on`` there, nothing is written before
    :meth:`begin`. ``request`` goes into ``run.json``, and the news to ``notify_url``. Raises RunFolderError.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        request: Mapping[str, Any],
        listeners: Sequence[Listener] = (),
        goes_on: bool = False,
        notify_url: str = "",
    ) -> None:
        self.run_dir = run_dir
        self._lock = RunLock.take(run_dir.path, new=not goes_on)
        try:
            self._journal = Journal(run_dir.journal_path)
        except BaseException:
            self._lock.release()
            raise
        self._session = Session(str(run_dir.path))
        self._unfolded: list[Record] = []
        self._fold_due = 0.0
        self._folding = threading.Lock()  # guards the two above; taken after the lock of the journal
        self._request = request
        self._listeners = listeners
        self._failed: list[Callable[..., None]] = []
        self._outbox: deque[Record | threading.Event] = deque()  # an event: set once all before it is written
        self.emit: Callable[[Record], object] = self._outbox.append
        self._marks: list[threading.Event] = []
        self._over = self._is_closed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="amptui-recorder", daemon=True)
        self._cause = ""
        self._lacks_run_json = False
        self._unsaved: dict[str, KeepingChanged] = {}
        self._server: Server | None = None
        self._sampler: Sampler | None = None
        self._output: LogTail | None = None
        self._notifier: Notifier | None = None
        if (webhook := webhook_of(notify_url)) is not None:
            self._notifier = Notifier(webhook, read_view=self.view, say=self.emit)
        self._keeping = threading.Lock()  # guards the journal's file and the attributes below
        self._held: list[Record] | None = [] if goes_on else None
        self._run_json: dict[str, Any] = {}

    def start(
        self,
        answer: Callable[[RequestMade], object],
        *,
        read_allocator: Callable[[], AllocatorSample | None],
        viewer: socket.socket | None = None,
    ) -> None:
        """Begin to serve screens, to write, and to sample the device; :meth:`close` also if that fails.

        ``answer`` gets each request of a screen, in threads of the server's. ``viewer``: a
        screen that is there already. ``read_allocator`` is called in the sampler's thread.
        """
        self._server = server = Server(self.run_dir.path, handle_request=answer)
        if viewer is not None:
            server.adopt(viewer)
        server.start()
        if server.trouble:
            self.emit(Note(time=time.time(), severity="warning", text=server.trouble))
        self._thread.start()
        if self._notifier is not None:
            self._notifier.start()
        self._sampler = Sampler(self.emit, read_allocator=read_allocator)
        self._sampler.start()

    def follow_output(self, *, skip: bool) -> None:
        """Record the lines that come into the run's output file, if there is one; ``skip`` those in it."""
        if self.run_dir.output_path.exists():
            self._output = LogTail(self.run_dir.output_path, self.emit, skip=skip)
            self._output.start()

    def close(self, timeout_seconds: float = _JOURNAL_SECONDS) -> None:
        """Stop sampling, send the last news, drain the records, and release the folder; once.

        Screens have the last record before the news is sent.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with self._lock:
            if self._sampler is not None:
                self._sampler.stop(timeout=1.0)
            if self._notifier is not None:
                self._notifier.close()
            self._stopping.set()
            if self._thread.ident is None:  # a run that was given up before it began
                self._journal.close()
            else:
                self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                trouble = f"journal: its last records could not be written within {timeout_seconds:g} s"
                self._unsaved["journal"] = KeepingChanged(time=time.time(), what="journal", trouble=trouble)
            if self._server is not None:
                self._server.close(_JOURNAL_SECONDS)

    @property
    def unsaved(self) -> tuple[KeepingChanged, ...]:
        """The newest word on each part of the run that is not saved."""
        return tuple(self._unsaved.values())

    def view(self) -> SessionView:
        """What is known of the run from the records that were drained. From any thread."""
        self._fold()
        return self._session.view()

    def wait_until_kept(self, _step: int) -> None:
        """Wait until the journal contains all that was emitted so far, within the time of a slow disk."""
        mark = threading.Event()
        self._outbox.append(mark)
        mark.wait(_KEEPING_SECONDS)
        # A checkpoint that survives a power cut needs the steps before it.
        with suppress(OSError), self.run_dir.journal_path.open("rb") as file:
            os.fsync(file.fileno())

    def begin(self, started: RunStarted, resumed: RunResumed | None = None) -> None:
        """Record that the run begins as ``started`` says, or that it goes on as ``resumed`` says.

        Then the journal is cut after that step: what came later is repeated. What is emitted meanwhile comes
        after, and a warning if the journal ends before that step. Both are recorded if it has lost the run's
        first record. Raises RunFolderError.
        """
        if resumed is None:
            self.emit(started)
            return
        # While records are held nothing is written: the pump need not wait for a long journal.
        step, journal = resumed.step, self.run_dir.journal_path
        lost_steps = cut_after(journal, step)
        before = Session(str(self.run_dir.path))
        before.fold(JournalReader(journal))
        with self._keeping:
            before.fold(self._held or [])
            has_first_record = before.view().run is not None
            with self._folding:
                self._unfolded.clear()  # they are among those that were held
                self._session.adopt(before)
            held, self._held = self._held, None
            if held:
                self._journal.append_lines(map(line_of, held))
            if self._server is not None:
                self._server.renew()
        if (last_step := before.view().step) < step:
            text = f"the journal ends at step {last_step:,}: the steps from there to {step:,} are not in it"
            self.emit(Note(time=time.time(), severity="warning", text=text))
        if not has_first_record:
            self.emit(started)
        self.emit(replace(resumed, lost_steps=lost_steps if has_first_record else 0))

    def _pump(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            self._drain()
        while self._outbox:  # includes what was emitted meanwhile
            self._drain()
        # The records still held are of a process that could not resume: the journal stays as it was.
        if self._lacks_run_json:
            self._write_run_json()
        self._journal.close()
        self._tell_trouble(is_last=True)
        self._drain_to_viewers()

    def _drain(self) -> None:
        if not self._outbox and not self._journal.is_behind:
            with self._keeping:  # a history that is sent while the journal is cut would be of before
                self._fold_if_due()
                self._show(self._publish, ())  # a screen may wait for a history
            return
        with self._keeping:
            batch, lines = self._drain_to_viewers()
            if self._held is not None:
                self._held += batch
            else:
                self._journal.append_lines(lines)
        if not self._journal.is_behind:
            while self._marks:
                self._marks.pop().set()
        self._tell_trouble()

    def _drain_to_viewers(self) -> tuple[list[Record], list[bytes]]:
        """Drain the outbox to all but the journal; return the records, and each one's line."""
        batch: list[Record] = []
        for _ in range(len(self._outbox)):
            item = self._outbox.popleft()
            if isinstance(item, RunFinished | RunFailed) and self._output is not None:
                self._output.stop()  # its last lines come before the run's last record
                self._output = None
                self._outbox.append(item)
            elif isinstance(item, threading.Event):
                self._marks.append(item)
            elif not (self._over and isinstance(item, _MEANWHILE)):
                batch.append(item)
                self._over |= isinstance(item, RunFinished | RunFailed)
                if isinstance(item, KeepingChanged):
                    self._unsaved.pop(item.what, None)
                    if item.trouble:
                        self._unsaved[item.what] = item
        with self._folding:
            self._unfolded += batch
        self._fold_if_due()
        for show in self._listeners if batch else ():
            self._show(show, batch)
        for record in batch:
            if isinstance(record, RunStarted | RunResumed):
                self._describe(record)
        lines = [*map(line_of, batch)]
        self._show(self._publish, lines)
        return batch, lines

    def _fold_if_due(self) -> None:
        if time.monotonic() >= self._fold_due:
            self._fold()

    def _fold(self) -> None:
        """Fold what was drained since the last time."""
        with self._folding:
            unfolded, self._unfolded = self._unfolded, []
            self._fold_due = time.monotonic() + FOLD_INTERVAL_SECONDS
            if unfolded:
                self._show(self._session.fold, unfolded)

    def _state(self) -> str:
        self._fold()
        return self._session.state()

    def _publish(self, lines: Sequence[bytes]) -> None:
        if self._server is not None:
            self._server.publish(b"".join(lines), self._state)

    def _show(self, show: Callable[[Sequence[_Shown]], None], batch: Sequence[_Shown]) -> None:
        try:
            show(batch)
        except Exception as error:  # noqa: BLE001 - showing records must never affect saving them
            if show in self._failed:
                return  # one note per batch: more would make it worse
            self._failed.append(show)
            text = f"some records could not be shown: {type(error).__name__}: {error}"
            self._outbox.append(Note(time=time.time(), severity="error", text=text))

    def _describe(self, record: RunStarted | RunResumed) -> None:
        """Write the request and the run's description to ``run.json``; on resume only what changed."""
        if isinstance(record, RunResumed):
            with suppress(RunFolderError):
                self._run_json = read_run_json(self.run_dir.path)
        self._run_json |= {"asked": self._request, **described(record)}
        self._write_run_json()

    def _write_run_json(self) -> None:
        trouble = ""
        try:
            self.run_dir.write_run_json(self._run_json)
        except RunFolderError as error:
            trouble = str(error)
        if trouble or self._lacks_run_json:
            change = KeepingChanged(
                time=time.time(), what="run.json", trouble=trouble, unsaved=int(bool(trouble))
            )
            self._outbox.append(change)
        self._lacks_run_json = bool(trouble)

    def _tell_trouble(self, *, is_last: bool = False) -> None:
        """Emit changes of the journal's state: on the screen at once, in the file when possible.

        ``is_last``: also if only the count may have changed.
        """
        journal = self._journal
        if journal.cause == self._cause and not (is_last and journal.cause):
            return
        self._cause = journal.cause
        trouble = f"journal: {journal.trouble}" if journal.cause else ""
        change = KeepingChanged(time=time.time(), what="journal", trouble=trouble, unsaved=journal.unsaved)
        self._outbox.append(change)
        if not journal.cause and self._lacks_run_json:
            self._write_run_json()  # the disk was full, and no longer is


# ------------------------------------------------------------------------------------- the news

POLL_SECONDS = 1.0
"""How often there may be news."""

RETRY_SECONDS = 10.0
"""The pause before a message is sent a second and last time; the end of the run cuts it short."""

TIMEOUT_SECONDS = 5.0
"""How long the server may take to answer."""

CLOSING_SECONDS = 5.0
"""How long the end of a run waits at most for its last messages."""

_LAST_RECORD_SECONDS = 1.0
"""How long the last record may take to arrive: the recorder writes ten times a second."""

_CLOSING_POLL_SECONDS = 0.05


def webhook_of(url: str) -> Webhook | None:
    """The webhook of a run; a wrong URL, which only a script may have, stops no training."""
    try:
        return parse_webhook(url) if url else None
    except ValueError as error:
        complain(f"{VARIABLE}: {error}")
        return None


class Notifier:
    """Follows a run by ``read_view`` and sends to ``webhook`` what deserves a bell, until :meth:`close`.

    ``say`` takes the event of a message that could not be sent, one until another is sent.
    """

    def __init__(
        self,
        webhook: Webhook,
        *,
        read_view: Callable[[], SessionView],
        say: Callable[[Note], object],
    ) -> None:
        self._webhook = webhook
        self._read_view = read_view
        self._say = say
        self._alerts = Alerts(time.time())
        self._closing = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._follow, name="amptui-notifier", daemon=True)

    def start(self) -> None:
        """Start the thread.

        What it imports is imported before: workers that are forked in the middle of that could never do so.
        """
        import encodings.idna  # noqa: F401
        import http.client  # noqa: F401
        import urllib.request  # noqa: F401

        self._thread.start()

    def close(self) -> None:
        """Send the last news; return after ``CLOSING_SECONDS`` at the latest."""
        if self._thread.ident is None:
            return
        self._closing.set()
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():  # it may hang in a request until the process ends
            self._fail("no answer before the run's end")

    def _follow(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._send_news()
        limit = time.monotonic() + _LAST_RECORD_SECONDS
        while not self._send_news() and time.monotonic() < limit:
            time.sleep(_CLOSING_POLL_SECONDS)

    def _send_news(self) -> bool:
        """Send what has happened since the last call; return whether the run is over."""
        view = self._read_view()
        if text := self._alerts.news(view):
            self._send(News(text, view.folder_name, socket.gethostname()), last_attempt=False)
        return view.outcome is not None

    def _send(self, news: News, *, last_attempt: bool) -> None:
        try:
            post(self._webhook, news, timeout_seconds=TIMEOUT_SECONDS)
            self._is_failing = False
        except DeliveryError as error:
            if error.is_final or last_attempt:
                self._fail(str(error))
            else:
                self._closing.wait(RETRY_SECONDS)
                self._send(news, last_attempt=True)

    def _fail(self, reason: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            text = f"could not notify {self._webhook.place}: {reason}"
            self._say(Note(time=time.time(), severity="warning", text=text))
