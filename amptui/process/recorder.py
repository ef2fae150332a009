"""The pump: a thread that drains the outbox into the session, to viewers, and into the journal."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import OwnFolder, open_to_read
from amptui.diagnosis.event_words import steps_missing
from amptui.records import codec
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.keeping import KeepingChanged, ViewersChanged
from amptui.records.run import (
    Note,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from amptui.records.samples import DeviceSample
from amptui.runs.journal import Journal
from amptui.runs.reader import JournalReader
from amptui.runs.repair import StepRanges, cut_after, refuse_newer_checkpoint
from amptui.runs.rundir import RunDir, read_run_json
from amptui.runs.server import Server
from amptui.telemetry.session import Session
from amptui.telemetry.view import RunStatus, SessionView

INTERVAL_SECONDS = 0.1
"""Ten times a second: faster than anyone reads, slow enough to cost the trainer nothing."""

FOLD_INTERVAL_SECONDS = 1.0
"""Who looks at the session has it folded at once. Until then a fold would only take the interpreter from the
trainer: ten folds a second took longer than all other work of this thread."""

_Shown = TypeVar("_Shown")

_KEEPING_SECONDS = 5.0
"""How long a checkpoint waits for the journal: a full disk may never have room again."""

_MEANWHILE = DeviceSample | RequestMade | RequestRefused | ViewersChanged
"""Once the run is over, these belong to the process that is ending, and no longer to the run."""

Listener = Callable[[Sequence[Record]], None]


class Recorder:
    """Moves records from the threads that emit them to the session, the viewers and the journal.

    The trainer and the sampler only call ``emit``, an append to a deque that never waits. Session and viewers
    come before the journal, so that a slow disk delays the file and not the screen. If the run ``goes_on``
    from a checkpoint, nothing is written before :meth:`cut_after`.
    """

    def __init__(
        self,
        session: Session,
        run_dir: RunDir,
        *,
        request: Mapping[str, Any],
        listeners: Sequence[Listener] = (),
        goes_on: bool = False,
    ) -> None:
        self._session = session
        self._unfolded: list[Record] = []
        self._fold_due = 0.0
        self._folding = threading.Lock()  # guards the two above; taken after the lock of the journal
        self._run_dir = run_dir
        self.own_folder = OwnFolder(run_dir.path)
        """Its ``claim`` refuses to write where another folder has taken its place."""
        self._request = request
        self._journal = Journal(run_dir.journal_path)
        self._listeners = listeners
        self._failed: list[Callable[..., None]] = []
        self._outbox: deque[Record | threading.Event] = deque()  # an event: set once all before it is written
        self._marks: list[threading.Event] = []
        self._over = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="amptui-recorder", daemon=True)
        self._cause = ""
        self._lacks_run_json = False
        self._unsaved: dict[str, KeepingChanged] = {}
        self._server: Server | None = None
        self._keeping = threading.Lock()  # guards the journal's file and the attributes below
        self._held: list[Record] | None = [] if goes_on else None
        self._run_json: dict[str, Any] = {}
        self.emit: Callable[[Record], object] = self._outbox.append
        """Takes a record from any thread, in a tenth of a microsecond."""

    def start(self) -> None:
        """Start draining."""
        self._thread.start()

    def close(self, timeout_seconds: float) -> bool:
        """Drain the rest and close the journal; False if that takes longer than ``timeout_seconds``."""
        self._stopping.set()
        if self._thread.ident is None:  # a run that was given up before it began
            self._journal.close()
            return True
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            trouble = f"journal: its last records could not be written within {timeout_seconds:g} s"
            self._unsaved["journal"] = KeepingChanged(time=time.time(), what="journal", trouble=trouble)
        return not self._thread.is_alive()

    @property
    def unsaved(self) -> tuple[KeepingChanged, ...]:
        """The newest word on each part of the run that is not saved."""
        return tuple(self._unsaved.values())

    def show_to(self, server: Server) -> None:
        """Send the viewers of ``server`` what is drained from now on; to be called before :meth:`start`."""
        self._server = server

    def view(self) -> SessionView:
        """What is known of the run from the records that were drained. From any thread."""
        self._fold()
        return self._session.view()

    def status(self) -> RunStatus:
        """As :meth:`view`, without its curves."""
        self._fold()
        return self._session.status()

    def wait_until_kept(self, _step: int) -> None:
        """Wait until the journal contains all that was emitted so far, within the time of a slow disk."""
        mark = threading.Event()
        self._outbox.append(mark)
        mark.wait(_KEEPING_SECONDS)
        # A checkpoint that survives a power cut needs the steps before it.
        with suppress(OSError), open_to_read(self._run_dir.journal_path) as file:
            os.fsync(file.fileno())

    def cut_after(self, step: int, *, starts_at_one: bool = True) -> int | None:
        """Cut the journal and the session after ``step``, from which a run resumes.

        Returns how many steps were cut off: they are repeated. None if the journal does not contain the run's
        first record. What is emitted meanwhile comes after, and a warning of the steps that are missing; a
        script's may have started anywhere. Raises RunFolderError for a journal that ends before ``step``.
        """
        # While records are held nothing is written: the pump need not wait for a long journal.
        if starts_at_one:
            refuse_newer_checkpoint(self._run_dir.journal_path, step)
        lost_steps = cut_after(self._run_dir.journal_path, step)
        before, steps = Session(str(self._run_dir.path)), StepRanges()
        before.fold(steps.seen(JournalReader(self._run_dir.journal_path)))
        with self._keeping:
            before.fold(self._held or [])
            started = before.view().run
            with self._folding:
                self._unfolded.clear()  # they are among those that were held
                self._session.adopt(before)
            held, self._held = self._held, None
            if held:
                self._journal.append_lines([_line(record) for record in held])
            if self._server is not None:
                self._server.renew()
        if missing := steps.missing(step, starts_at_one=starts_at_one):
            text = steps_missing(missing, step)
            self.emit(Note(time=time.time(), severity="warning", text=text))
        return None if started is None else lost_steps

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
            if isinstance(item, threading.Event):
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
        lines = [_line(record) for record in batch]
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
                self._run_json = read_run_json(self._run_dir.path)
        self._run_json |= {
            "asked": self._request,
            "device": record.device,
            "device_name": record.device_name,
            "versions": record.versions,
            "total_steps": record.total_steps,
        }
        if isinstance(record, RunStarted):
            self._run_json |= {
                "model": record.model,
                "started": record.time,
                "config": record.config,
                "hardware": record.hardware,
            }
        self._write_run_json()

    def _write_run_json(self) -> None:
        trouble = ""
        try:
            self._run_dir.write_run_json(self._run_json, self.own_folder)
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


def _line(record: Record) -> bytes:
    return f"{codec.dumps(record)}\n".encode()
