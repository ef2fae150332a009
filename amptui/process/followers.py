"""Follows a run on this machine or on another for a screen: its records, and what else is known of it."""

import math
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from amptui.base import units
from amptui.base.errors import RunFolderError
from amptui.base.text import one_line
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.run import FORM, Record, RunFailed, RunFinished
from amptui.runs import protocol
from amptui.runs.lock import RESTART_SECONDS, holder
from amptui.runs.protocol import Hello, History, ProtocolError, RunError
from amptui.runs.rundir import RunDir, run_argument
from amptui.runs.socket_place import connect, connect_to_live
from amptui.telemetry.session import Session

if TYPE_CHECKING:
    from amptui.runs.remote import Remote, Ssh

_SILENT_SECONDS = 5.0
"""A run samples its device every second; during a long call it may miss some."""

_ENDING_SECONDS = 1.0

_LAST_RECORD_SECONDS = 10.0
"""How long a run may take, on a busy machine, to write its last record once its connections are closed."""

_RECONNECT_SECONDS = 0.2

_PIECE_BYTES = 1024**2
"""At most so much is folded at once; the system may buffer less."""

_BATCH_RECORDS = 1000
"""The same for the records of a journal."""


class Follower:
    """Follows a run into its session, in a thread of its own, over one connection after another.

    It sends the run the requests of a screen: an ``Asker``.
    """

    host = ""
    """The machine as ssh knows it; empty for this one."""
    folder: Path | None = None
    """The run's, on this machine."""
    list_command = "amptui runs"
    """The command that lists its machine's runs."""
    attach_command: str
    waiting = ""
    """Why nothing arrives, in one line, while the connection is being made again; empty otherwise."""

    def __init__(self, connection: socket.socket, folder_name: str) -> None:
        """``folder_name`` is for people: of another machine ``HOST:FOLDER``."""
        self.session = Session(folder_name)
        self._heard_at = math.inf
        self._connection = connection
        self.ended = threading.Event()
        """Set once the run, or the connection to it, has ended and all is folded; not if this leaves."""
        self._has_history = False
        self._rest = b""
        """The beginning of a line whose end has not arrived."""
        self.left = False
        """Whether the screen has left the run."""
        self._finished = False
        self._thread = threading.Thread(target=self._read, name="amptui-client", daemon=True)
        self.stop_reason: str | None = None
        """The reason with which this screen asked the run to stop."""
        self.hello: Hello | None = None
        """The run's hello."""
        self.error = ""
        """The run's error instead of a last record, or why it ended without one; empty if all is well.

        A last record may have arrived inside a history, which is opaque here: ask the session first.
        """
        self.send(protocol.encode(Hello()))

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        """Begin to read, and to notice silence."""
        self._heard_at = time.monotonic()
        self._thread.start()

    def ask(self, request: RequestMade) -> int:
        """Send a request without waiting; return its number."""
        sent = self.send(protocol.encode(request))
        if request.kind == "stop":
            # A signal's handler may ask for it: it must not take the session's lock.
            self.stop_reason = self.stop_reason or request.reason
        elif sent:  # the run's own record of it arrives with its next batch
            self.session.fold([request])
        else:
            why = self.waiting or "the run takes no request now"
            now, step = time.time(), self.session.view().step
            refusal = RequestRefused(time=now, step=step, request=request, reason="unavailable", detail=why)
            self.session.fold([request, refusal])
        return request.number

    def send(self, line: bytes) -> bool:
        """Send ``line`` to the run; return False if it cannot be sent now. Never waits, takes no lock.

        The system buffers hundreds of requests; a run that has not read those is suspended or gone.
        """
        try:
            return self._connection.send(line, socket.MSG_DONTWAIT) == len(line)
        except OSError:
            return False

    def leave(self, timeout_seconds: float = 1.0) -> None:
        """Follow the run no longer; training continues."""
        self.left = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # ends the reading thread
        if self.started:
            self._thread.join(timeout_seconds)
        self._connection.close()

    def connect_again(self) -> socket.socket | None:
        """A new connection to the run; None if there is none, or this has left.

        Raises ``ProtocolError`` to say why there is none.
        """
        raise NotImplementedError

    def recorded(self) -> Iterable[Record]:
        """The records of a run that has ended before it sent its history."""
        return ()

    def is_live(self) -> bool:
        """Whether a process trains it; one that ends soon releases its folder."""
        raise NotImplementedError

    def lost_words(self, error: str) -> str:
        """What to say of a connection that ended with ``error``."""
        return error

    def silence(self) -> str:
        """What to say of a run that is silent: it sends something every second; empty if it is not."""
        seconds = time.monotonic() - self._heard_at
        if seconds < _SILENT_SECONDS:
            return ""
        return f"no response from the run for {units.duration(seconds)}"

    def _read(self) -> None:
        try:
            self._follow()
            while self._is_lost and (again := self.connect_again()) is not None:
                self._go_on_with(again)
                self._follow()
            if self._is_lost and not self._has_history:
                # What the run has left: on a busy machine a short one is over before its screen can ask.
                records = iter(self.recorded())
                while not self.left and (batch := list(islice(records, _BATCH_RECORDS))):
                    self._has_history = True
                    self._fold_all(batch)
            if self._is_lost:
                self.error = (
                    "the training process exited unexpectedly"
                    if self.hello is not None or self._has_history
                    else "the run ended before it sent anything"
                )
        except ProtocolError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - a screen with nothing to show says why
            self.error = f"cannot follow the run: {type(error).__name__}: {error}"
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # a run that is not understood need not send more
        if not self.left:
            self.ended.set()

    def _follow(self) -> None:
        while not self.error:
            try:
                piece = self._connection.recv(_PIECE_BYTES)
            except OSError:
                return  # a run that closed with unread input resets the connection
            if not piece:
                return
            *lines, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > protocol.MAX_LINE_BYTES:
                raise ProtocolError(f"a line of more than {protocol.MAX_LINE_BYTES} bytes")
            self._take(lines)

    @property
    def _is_lost(self) -> bool:
        """Whether the connection ended without a word."""
        return not (self._finished or self.left or self.error)

    def _go_on_with(self, connection: socket.socket) -> None:
        with suppress(OSError):
            connection.send(protocol.encode(Hello()))  # before any request, which another thread may make
        before, self._connection = self._connection, connection
        before.close()
        self.hello, self._rest = None, b""
        if self.stop_reason is not None:  # the run that was asked is gone
            self.ask(RequestMade("stop", reason=self.stop_reason))
        if self.left:  # meanwhile
            connection.close()

    def _take(self, lines: Sequence[bytes]) -> None:
        """Fold the lines in order, in batches as large as possible."""
        records: list[Record] = []
        for line in lines:
            try:
                message = protocol.read(line)
            except ProtocolError:
                message = None  # not of this version
            if self.hello is None and not isinstance(message, Hello | RunError):
                raise ProtocolError("not an amptui run")
            if isinstance(message, Hello | History | RunError):
                self._fold_all(records)
                records = []
                self._handle(message)
            elif message is not None:
                records.append(message)
        self._fold_all(records)

    def _handle(self, message: Hello | History | RunError) -> None:
        match message:
            case Hello():
                self.hello = message
                if message.protocol != FORM:
                    raise ProtocolError(
                        f"the run uses protocol {message.protocol}, this amptui {FORM}; "
                        f"attach with amptui {message.version}"
                    )
            case History(state):
                self._has_history = True
                self._heard_at = time.monotonic()
                try:
                    self.session.restore(state, host=self.host)
                except ValueError as error:  # it is of another version
                    assert self.hello is not None, "it comes first"
                    raise ProtocolError(f"{error}; attach with amptui {self.hello.version}") from error
            case RunError(text):
                self.error = one_line(text)

    def _fold_all(self, records: Sequence[Record]) -> None:
        if not records:
            return
        if any(isinstance(record, RequestRefused) and record.request.kind == "stop" for record in records):
            self.stop_reason = None  # an observed script goes on
        self._finished |= any(isinstance(record, RunFinished | RunFailed) for record in records)
        self._heard_at = time.monotonic()
        self.session.fold(records)


class LocalFollower(Follower):
    """Of a run on this machine. ``why_lost`` returns how its process ended, if that is known."""

    def __init__(
        self,
        connection: socket.socket,
        folder: Path,
        why_lost: Callable[[], str] = str,
        *,
        is_starting: bool = False,
    ) -> None:
        """``is_starting``: ``connection`` ends once there is a rank 0, to which the next one is made."""
        super().__init__(connection, str(folder))
        self._is_starting = is_starting
        self.folder: Path = folder
        self._why_lost = why_lost
        self._max_restarts = 0
        self.attach_command = f"amptui attach {shlex.quote(run_argument(folder))}"

    def connect_again(self) -> socket.socket | None:
        """A connection to ranks that have been started, or are started again."""
        if self._is_starting:
            self._is_starting = False
            with suppress(RunFolderError):
                return connect_to_live(self.folder)
        view = self.session.view()
        restarts = 0 if view.ranks is None else view.ranks.restarts
        self._max_restarts = self._max_restarts if view.ranks is None else view.ranks.max_restarts
        if view.outcome is not None or restarts >= self._max_restarts:
            return None
        self.waiting = "the ranks are being started again"
        limit = time.monotonic() + RESTART_SECONDS
        try:
            while not self.left and time.monotonic() < limit:
                with suppress(RunFolderError):
                    return connect(self.folder)
                time.sleep(_RECONNECT_SECONDS)
        finally:
            self.waiting = ""
        return None

    def recorded(self) -> Iterable[Record]:
        from amptui.runs.journal import JournalReader

        path = RunDir(self.folder).journal_path
        return JournalReader(path) if not self._is_held(_LAST_RECORD_SECONDS) and path.exists() else ()

    def is_live(self) -> bool:
        return self._is_held(_ENDING_SECONDS)

    def _is_held(self, patience_seconds: float) -> bool:
        limit = time.monotonic() + patience_seconds
        while holder(self.folder) is not None:
            if time.monotonic() > limit:
                return True
            time.sleep(0.02)
        return False

    def lost_words(self, error: str) -> str:
        if not self.is_live():
            return self._why_lost() or error
        return f"{error}; training continues: press q, then amptui attach to reconnect"


class RemoteFollower(Follower):
    """Of a run on another machine, through ssh: only what arrives is known of it."""

    def __init__(self, remote: "Remote", ssh: "Ssh") -> None:
        from amptui.runs.remote import program_there

        super().__init__(ssh.connection, f"{remote.host}:{ssh.header.folder}")
        self.host = remote.host
        self.attach_command = f"amptui attach {remote.argument(ssh.header.run)}"
        self.list_command = f"ssh {shlex.quote(remote.host)} {shlex.quote(f'{program_there()} runs')}"

    def connect_again(self) -> socket.socket | None:
        """Raise ``ProtocolError``: ssh might have to ask the user, who sees a screen."""
        self.waiting = f"connection to {self.host} lost"
        raise ProtocolError(self.waiting)

    def is_live(self) -> bool:
        return bool(self.waiting)

    def lost_words(self, error: str) -> str:
        return f"{error}; to watch the run again: {self.attach_command}" if self.waiting else error
