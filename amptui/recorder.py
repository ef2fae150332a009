"""The pump: a thread that drains the outbox into the session, the journal and whoever listens."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from amptui.errors import RunFolderError
from amptui.records import Note, Record, RunStarted, Severity
from amptui.runs.journal import Journal
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session

INTERVAL_SECONDS = 0.1
"""Ten times a second: quicker than a person reads, slow enough to cost the trainer nothing."""

Listener = Callable[[Sequence[Record]], None]


class Recorder:
    """Moves records from the threads that emit them to where they are kept and shown.

    ``emit`` is all that the trainer and the sampler see: an append to a deque, which never waits. The
    session is fed before the journal, so that a slow disk delays the file and not the screen.
    """

    def __init__(
        self,
        session: Session,
        run_dir: RunDir,
        *,
        asked: dict[str, Any],
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._session = session
        self._run_dir = run_dir
        self._asked = asked
        self._journal = Journal(run_dir.journal_path)
        self._listeners = listeners
        self._failed: list[Listener] = []
        self._outbox: deque[Record] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="amptui-recorder", daemon=True)
        self._trouble = ""
        self.emit: Callable[[Record], object] = self._outbox.append
        """Takes a record from any thread; costs a tenth of a microsecond."""

    def start(self) -> None:
        """Begin to drain."""
        self._thread.start()

    def close(self, timeout_seconds: float) -> bool:
        """Drain what is left and close the journal; false where that took longer than ``timeout_seconds``."""
        self._stopping.set()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def trouble(self) -> str:
        """What is not being kept, in one line; empty when all is."""
        return self._trouble

    def _pump(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            self._drain()
        while self._outbox:  # what was found out on the way is told too
            self._drain()
        self._journal.close()
        self._tell_trouble()

    def _drain(self) -> None:
        batch = [self._outbox.popleft() for _ in range(len(self._outbox))]
        if not batch:
            return
        for show in (self._session.fold, *self._listeners):
            self._show(show, batch)
        for record in batch:
            if isinstance(record, RunStarted):
                self._write_run_json(record)
        self._journal.append(batch)
        self._tell_trouble()

    def _show(self, show: Listener, batch: Sequence[Record]) -> None:
        try:
            show(batch)
        except Exception as error:  # noqa: BLE001 - what shows records must never cost what keeps them
            if show in self._failed:
                return  # a note a batch, on a trouble that notes only make worse
            self._failed.append(show)
            text = f"some records are not shown: {type(error).__name__}: {error}"
            self._outbox.append(Note(time=time.time(), severity="error", text=text))

    def _write_run_json(self, started: RunStarted) -> None:
        content = {
            "model": started.model,
            "started": started.time,
            "asked": self._asked,
            "config": started.config,
            "device": started.device,
            "device_name": started.device_name,
            "hardware": started.hardware,
            "versions": started.versions,
        }
        try:
            self._run_dir.write_run_json(content)
        except RunFolderError as error:
            self._outbox.append(Note(time=time.time(), severity="warning", text=str(error)))

    def _tell_trouble(self) -> None:
        """A change of the journal's state becomes a note: on the screen now, in the file when it can."""
        kind = self._journal.trouble.partition(":")[0]
        if kind != self._trouble.partition(":")[0]:
            text = f"journal: {self._journal.trouble}" if kind else "journal: everything is kept again"
            severity: Severity = "error" if kind else "info"
            self._outbox.append(Note(time=time.time(), severity=severity, text=text))
        self._trouble = self._journal.trouble
