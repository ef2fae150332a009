"""A screen's end of its connection to a run: folds the records that arrive, and sends requests."""

import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from amptui.base.version import __version__
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.control import Request, StopRequest, new_number, record_of
from amptui.records.run import FORM, Record, RunFailed, RunFinished
from amptui.runs import protocol
from amptui.runs.protocol import Ask, Hello, History, Leave, LeaveKind, ProtocolError, RunError

_PIECE_BYTES = 1024**2
"""At most so much is folded at once; the system may buffer less."""

_BATCH_RECORDS = 1000
"""The same for the records of a journal."""


class Client:
    """Reads a run in a thread of its own, and sends it the requests of a screen: an ``Asker``.

    Its subclasses take what arrives, in that thread.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.ended = threading.Event()
        """Set once the run, or the connection to it, has ended and all is folded; not if this leaves."""
        self._has_history = False
        self._lines = protocol.Lines(protocol.MAX_LINE_BYTES)
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

    def restore(self, state: Any) -> None:
        """Take a history's state. Raises ValueError for one of another version."""
        raise NotImplementedError

    def fold(self, records: Sequence[Record]) -> None:
        """Take the records after it."""
        raise NotImplementedError

    def requested(self, request: RequestMade) -> None:
        """A request was sent, by any thread: the run's own record of it arrives with its next batch."""

    def unsent(self, request: RequestMade) -> None:
        """The run cannot take that now; a stop is sent to the next connection."""

    def reconnect(self) -> socket.socket | None:
        """The connection is lost: a new one, to a run that has been started again or is still there, or None.

        Raises ``ProtocolError`` to say why there is none.
        """
        return None

    def recorded(self) -> Iterable[Record]:
        """The records of a run that has ended before it sent its history."""
        return ()

    @property
    def started(self) -> bool:
        """Whether :meth:`start` was called."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def ask(self, request: Request) -> int:
        """Send a request without waiting; return its number."""
        number = new_number()
        sent = self.send(protocol.encode(Ask(number, request)))
        if isinstance(request, StopRequest):
            # A signal's handler may ask for it: it must not take the session's lock.
            self.stop_reason = self.stop_reason or request.reason
        else:
            (self.requested if sent else self.unsent)(record_of(request, number))
        return number

    def send(self, line: bytes) -> bool:
        """Send ``line`` to the run; return False if it cannot be sent now. Never waits, takes no lock.

        The system buffers hundreds of requests; a run that has not read those is suspended or gone.
        """
        try:
            return self._connection.send(line, socket.MSG_DONTWAIT) == len(line)
        except OSError:
            return False

    def leave(self, kind: LeaveKind, timeout_seconds: float = 1.0) -> None:
        """Tell the run that this screen leaves, and how; training continues."""
        self.left = True
        self.send(protocol.encode(Leave(kind)))
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # ends the reading thread
        if self.started:
            self._thread.join(timeout_seconds)
        self._connection.close()

    def _read(self) -> None:
        try:
            self._follow()
            while self._is_lost and (again := self.reconnect()) is not None:
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
        while not self.error and (piece := self._receive()):
            self._take(self._lines.take(piece))

    @property
    def _is_lost(self) -> bool:
        """Whether the connection ended without a word."""
        return not (self._finished or self.left or self.error)

    def _go_on_with(self, connection: socket.socket) -> None:
        with suppress(OSError):
            connection.send(protocol.encode(Hello()))  # before any request, which another thread may make
        before, self._connection = self._connection, connection
        before.close()
        self.hello, self._lines = None, protocol.Lines(protocol.MAX_LINE_BYTES)
        if self.stop_reason is not None:  # the run that was asked is gone
            self.ask(StopRequest(self.stop_reason))
        if self.left:  # meanwhile
            connection.close()

    def _receive(self) -> bytes:
        """What has arrived; empty at the end of the connection."""
        try:
            return self._connection.recv(_PIECE_BYTES)
        except OSError:
            return b""  # a run that closed with unread input resets the connection

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
                self._obey(message)
            elif message is not None:
                records.append(message)
        self._fold_all(records)

    def _obey(self, message: Hello | History | RunError) -> None:
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
                try:
                    self.restore(state)
                except ValueError as error:
                    version = self.hello.version if self.hello is not None else __version__
                    more = f"; attach with amptui {version}" if version != __version__ else ""
                    raise ProtocolError(f"{error}{more}") from error
            case RunError(text):
                self.error = text

    def _fold_all(self, records: Sequence[Record]) -> None:
        if not records:
            return
        if any(isinstance(record, RequestRefused) and record.request.kind == "stop" for record in records):
            self.stop_reason = None  # an observed script goes on
        self._finished |= any(isinstance(record, RunFinished | RunFailed) for record in records)
        self.fold(records)
