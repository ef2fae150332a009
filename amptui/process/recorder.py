"""The pump: a thread that drains the outbox into the session, to viewers, and into the journal."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from amptui import codec
from amptui.answers import RequestMade
from amptui.errors import RunFolderError
from amptui.records import (
    DeviceSample,
    KeepingChanged,
    Note,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from amptui.runfiles import open_file
from amptui.runs.journal import Journal, read
from amptui.runs.repair import cut_after
from amptui.runs.rundir import RunDir, read_run_json
from amptui.runs.server import Server
from amptui.telemetry.session import Session

INTERVAL_SECONDS = 0.1
"""Ten times a second: quicker than a person reads, slow enough to cost the trainer nothing."""

_Shown = TypeVar("_Shown")

_KEEPING_SECONDS = 5.0
"""A checkpoint waits no longer for the journal: on a full disk that may never have room again."""

Listener = Callable[[Sequence[Record]], None]


class Recorder:
    """Moves records from the threads that emit them to where they are kept and shown.

    ``emit`` is all that the trainer and the sampler see: an append to a deque, which never waits. Session and
    viewers are fed before the journal, so that a slow disk delays the file and not the screen. Of a run that
    ``goes_on`` nothing is written before :meth:`cut_after` made room for it.
    """

    def __init__(
        self,
        session: Session,
        run_dir: RunDir,
        *,
        asked: dict[str, Any],
        listeners: Sequence[Listener] = (),
        goes_on: bool = False,
    ) -> None:
        self._session = session
        self._run_dir = run_dir
        self._asked = asked
        self._journal = Journal(run_dir.journal_path)
        self._listeners = listeners
        self._failed: list[Callable[..., None]] = []
        self._outbox: deque[Record | threading.Event] = deque()  # an event is set when all before it is kept
        self._marks: list[threading.Event] = []
        self._over = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="amptui-recorder", daemon=True)
        self._trouble = self._cause = ""
        self._server: Server | None = None
        self._keeping = threading.Lock()  # guards the journal's file and what follows
        self._held: list[Record] | None = [] if goes_on else None
        self._run_json: dict[str, Any] = {}
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

    def show_to(self, server: Server) -> None:
        """Let ``server``'s viewers see what is drained from now on; to be called before :meth:`start`."""
        self._server = server

    def wait_until_kept(self, _step: int) -> None:
        """Wait until the journal holds all that was emitted so far, or for as long as a disk may be slow."""
        mark = threading.Event()
        self._outbox.append(mark)
        mark.wait(_KEEPING_SECONDS)
        # A checkpoint that outlives a power cut needs the steps before it.
        with suppress(OSError):
            _sync(self._run_dir.journal_path)

    def cut_after(self, step: int) -> int | None:
        """Let the journal and the session end with ``step``, as a run does that goes on from there.

        Returns how many steps were cut off; they are done again. None where no journal says what run it is.
        What is emitted while this runs comes after.
        """
        with self._keeping:
            lost_steps = cut_after(self._run_dir.journal_path, step)
            before = Session(str(self._run_dir.path))
            before.fold(read(self._run_dir.journal_path))
            held = self._held or []
            before.fold(held)
            known = before.view().run
            self._session.adopt(before)
            self._keep_held()
            if self._server is not None:
                self._server.renew()
        return None if known is None else lost_steps

    def _pump(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            self._drain()
        while self._outbox:  # what was found out on the way is told too
            self._drain()
        # What is held still was said by a process that never got to go on: the journal stays as it was.
        self._journal.close()
        self._tell_trouble()
        self._drain_to_viewers()

    def _drain(self) -> None:
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
        """Show what is in the outbox to everybody but the journal; the records, and each one's line."""
        batch: list[Record] = []
        for _ in range(len(self._outbox)):
            taken = self._outbox.popleft()
            if isinstance(taken, threading.Event):
                self._marks.append(taken)
            # These are the process's, and no longer the run's.
            elif not (self._over and isinstance(taken, DeviceSample | RequestMade)):
                batch.append(taken)
                self._over |= isinstance(taken, RunFinished | RunFailed)
        for show in (self._session.fold, *self._listeners) if batch else ():
            self._show(show, batch)
        for record in batch:
            if isinstance(record, RunStarted | RunResumed):
                self._describe(record)
        lines = [_line(record) for record in batch]
        self._show(self._publish, lines)
        return batch, lines

    def _publish(self, lines: Sequence[bytes]) -> None:
        if self._server is not None:
            self._server.publish(b"".join(lines), self._session.state)

    def _keep_held(self) -> None:
        held, self._held = self._held, None
        if held:
            self._journal.append_lines([_line(record) for record in held])

    def _show(self, show: Callable[[Sequence[_Shown]], None], batch: Sequence[_Shown]) -> None:
        try:
            show(batch)
        except Exception as error:  # noqa: BLE001 - what shows records must never cost what keeps them
            if show in self._failed:
                return  # a note a batch, on a trouble that notes only make worse
            self._failed.append(show)
            text = f"some records are not shown: {type(error).__name__}: {error}"
            self._outbox.append(Note(time=time.time(), severity="error", text=text))

    def _describe(self, record: RunStarted | RunResumed) -> None:
        """Let ``run.json`` say what was asked and found; of a run that goes on, what is new of it."""
        if isinstance(record, RunResumed):
            with suppress(RunFolderError):
                self._run_json = read_run_json(self._run_dir.path)
        self._run_json |= {
            "asked": self._asked,
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
        try:
            self._run_dir.write_run_json(self._run_json)
        except RunFolderError as error:
            self._outbox.append(Note(time=time.time(), severity="warning", text=str(error)))

    def _tell_trouble(self) -> None:
        """A change of the journal's state becomes a record: on the screen now, in the file when it can."""
        cause, self._trouble = self._journal.cause, self._journal.trouble
        if cause != self._cause:
            self._cause = cause
            trouble = f"journal: {self._trouble}" if cause else ""
            self._outbox.append(KeepingChanged(time=time.time(), what="journal", trouble=trouble))
            if not cause and self._run_json and not self._run_dir.run_json_path.exists():
                self._write_run_json()  # the folder had gone, and is there again


def _line(record: Record) -> bytes:
    return f"{codec.dumps(record)}\n".encode()


def _sync(path: Path) -> None:
    file = open_file(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
