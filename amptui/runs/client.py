"""A screen's end of its connection to a run: folds the records that arrive, and sends requests."""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from amptui import __version__
from amptui.answers import RequestMade
from amptui.control import Request, StopRequest, new_number, record_of
from amptui.records import Record, RunFailed, RunFinished
from amptui.runs import protocol, socket_place
from amptui.runs.protocol import Ask, Hello, History, Leave, LeaveKind, ProtocolError, RunError, RunHello

MAX_UNSENT_BYTES = 1024**2
"""Limit of the requests queued for a run that reads none: thousands of them."""

_PIECE_BYTES = 1024**2
"""At most so much is folded at once; the system may buffer less."""


def connect(folder: Path) -> socket.socket:
    """A connection to the live run in ``folder``.

    Raises ``RunFolderError`` if no run listens there, if it belongs to another user, or if it is busy.
    """
    return socket_place.reach(folder)


class RemoteControl:
    """Sends requests to the trainer of another process: an ``Asker``.

    ``told`` gets the record of each request at once: the run's own arrives with its next batch.
    """

    def __init__(self, send: Callable[[Ask], bool], told: Callable[[RequestMade], object]) -> None:
        self._send = send
        self._told = told
        self._stop_reason: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """The reason with which this screen asked the run to stop."""
        return self._stop_reason

    def ask(self, request: Request) -> int:
        """Send a request without waiting; return its number."""
        said = Ask(new_number(), request)
        sent = self._send(said)
        if isinstance(request, StopRequest):
            # A signal may ask for it, in the middle of anything: nothing is told then that takes a lock.
            self._stop_reason = self._stop_reason or request.reason
        elif sent:
            self._told(record_of(request, said.number))
        return said.number


class Client:
    """Reads a run in a thread of its own: ``restore`` gets a history's state, ``fold`` the records after it.

    ``asked`` gets the record of each request made here, in the requesting thread. ``ended`` is set once the
    run, or the connection to it, has ended and everything received is folded; not if the screen leaves.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        restore: Callable[[Any], None],
        fold: Callable[[Sequence[Record]], None],
        asked: Callable[[RequestMade], object],
        ended: threading.Event,
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._restore = restore
        self._fold = fold
        self._ended = ended
        self._lines = protocol.Lines(protocol.MAX_LINE_BYTES)
        self._sending = threading.Condition()  # guards the attributes below, and sending on the connection
        self._unsent = bytearray(protocol.encode(Hello()))  # goes before any request, however early
        self._deaf = False
        self._left = False
        self._last_word = False
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="amptui-client", daemon=True)
        self.control = RemoteControl(lambda said: self.send(protocol.encode(said)), asked)
        """Takes the requests of the screen's keys."""
        self.hello: RunHello | None = None
        """The run's hello."""
        self.error = ""
        """The run's error instead of a last record, or why it ended without one; empty if all is well.

        A last record may have arrived inside a history, which is opaque here: ask the session first.
        """
        self.passed_over = 0
        """Lines that are not records of this version."""

    @property
    def started(self) -> bool:
        """Whether :meth:`start` was called."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Send the hello, and start reading."""
        self.send(b"")
        self._thread.start()

    def send(self, line: bytes) -> bool:
        """Queue ``line`` for the run without waiting; return False if it cannot be sent any more."""
        with self._sending:
            if self._deaf or len(self._unsent) + len(line) > MAX_UNSENT_BYTES:
                return False
            self._unsent += line
            self._send_some()
            if self._unsent:
                with suppress(BlockingIOError):  # the thread is awake already
                    self._waker.send(b"\0")
            return not self._deaf

    def leave(self, kind: LeaveKind, timeout_seconds: float = 1.0) -> None:
        """Tell the run within that time that this screen leaves, and how; training continues."""
        limit = time.monotonic() + timeout_seconds
        self._left = True
        self.send(protocol.encode(Leave(kind)))
        with self._sending:
            self._sending.wait_for(lambda: self._deaf or not self._unsent, timeout_seconds)
            self._deaf = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # ends the reading thread
        if self.started:
            self._thread.join(max(0.0, limit - time.monotonic()))
        else:
            self._close()

    def _send_some(self) -> None:
        """Send what the connection accepts; the caller holds the lock."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._deaf = True  # what it sent before it closed is still to be read
            self._unsent.clear()
        if not self._unsent:
            self._sending.notify_all()

    def _run(self) -> None:
        try:
            self._follow()
        except ProtocolError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - a screen with nothing to show says why
            self.error = f"cannot follow the run: {type(error).__name__}: {error}"
        self._close()
        if not self._left:
            self._ended.set()

    def _close(self) -> None:
        with self._sending:
            self._deaf = True
            self._sending.notify_all()
            for connection in (self._connection, self._woken, self._waker):
                connection.close()

    def _follow(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            over = False
            while not over:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._woken in ready:
                    self._woken.recv(4096)
                with self._sending:
                    self._send_some()
                    waits = selectors.EVENT_WRITE if self._unsent else 0
                selector.modify(self._connection, selectors.EVENT_READ | waits)
                over = not self._receive() or bool(self.error)
        if not (self._last_word or self._left or self.error):
            self.error = (
                "the training process exited unexpectedly"
                if self.hello is not None
                else "the run ended before it sent anything"
            )

    def _receive(self) -> bool:
        """Read what has arrived; return False at the end of the connection."""
        try:
            piece = self._connection.recv(_PIECE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False  # a run that closed with unread input resets the connection
        self._take(self._lines.take(piece))
        return bool(piece)

    def _take(self, lines: Sequence[bytes]) -> None:
        """Fold the lines in order, in batches as large as possible."""
        records: list[Record] = []
        for line in lines:
            said = self._read(line)
            if isinstance(said, RunHello | History | RunError):
                self._fold_all(records)
                records = []
                self._obey(said)
            elif said is not None:
                records.append(said)
        self._fold_all(records)

    def _read(self, line: bytes) -> RunHello | History | RunError | Record | None:
        try:
            said = protocol.read(line)
        except ProtocolError:
            said = None
        if self.hello is None and not isinstance(said, RunHello | RunError):
            raise ProtocolError("not an amptui run")
        self.passed_over += said is None
        return said

    def _obey(self, said: RunHello | History | RunError) -> None:
        match said:
            case RunHello():
                self.hello = said
                if said.protocol != protocol.PROTOCOL:
                    raise ProtocolError(
                        f"the run uses protocol {said.protocol}, this amptui {protocol.PROTOCOL}; "
                        f"attach with amptui {said.version}"
                    )
            case History(state):
                try:
                    self._restore(state)
                except ValueError as error:
                    raise ProtocolError(f"{error}{self._of_another_version()}") from error
            case RunError(text):
                self.error = text

    def _of_another_version(self) -> str:
        version = self.hello.version if self.hello is not None else __version__
        return f"; attach with amptui {version}" if version != __version__ else ""

    def _fold_all(self, records: Sequence[Record]) -> None:
        if not records:
            return
        self._last_word |= any(isinstance(record, RunFinished | RunFailed) for record in records)
        self._fold(records)
