"""Serves a run to screens: sends each the history and the records after it, and receives requests.

Each screen has two threads, one that reads and one that sends, so none delays another or the run.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

from amptui.base.errors import RunFolderError
from amptui.base.fork import in_forks
from amptui.base.text import one_line
from amptui.records.control import Request
from amptui.records.keeping import ViewersChanged
from amptui.records.run import FORM
from amptui.runs import protocol, socket_place
from amptui.runs.protocol import Hello, Leave, ProtocolError

MAX_QUEUED_BYTES = 4 * 1024**2
"""Limit of lines queued for a slow screen: a second of the fastest training."""


class Viewer:
    """A screen, or whatever else connected. The server's lock guards the attributes."""

    def __init__(self, connection: socket.socket, *, adopted: bool) -> None:
        self.connection = connection
        self.adopted = adopted
        """Whether it was there from the start instead of connecting to the run's socket."""
        self.introduced = False
        """Whether it said hello."""
        self.live = False
        """Whether it has a history or will get it: new lines follow."""
        self.over = False
        """Whether nothing more is queued for it."""
        self.sending = False
        self.queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self.max_queued_bytes = MAX_QUEUED_BYTES

    @property
    def idle(self) -> bool:
        """Whether everything for it was sent."""
        return self.introduced and not self.sending and not self.queue

    @property
    def waits_for_history(self) -> bool:
        return self.idle and not self.live

    @property
    def settled(self) -> bool:
        """Whether a run that ends can close it; it waits for the screen that was there from the start."""
        return self.live and self.idle if self.introduced else not self.adopted

    def add(self, data: bytes) -> None:
        """Queue whole lines; if too many are waiting, drop them: a new history will replace them."""
        self.queue.append(data)
        self._queued_bytes += len(data)
        if self._queued_bytes > self.max_queued_bytes:
            self.fall_behind()

    def fall_behind(self) -> None:
        """Drop what is queued; the piece that is being sent is completed, so no line is ever torn."""
        self.queue.clear()
        self._queued_bytes = 0
        self.live = False

    def take(self) -> bytes:
        """The next piece to send; empty if there is none."""
        piece = self.queue.popleft() if self.queue else b""
        self._queued_bytes -= len(piece)
        self.sending = bool(piece)
        return piece


HELLO_SECONDS = 10.0
"""A connection that has not said hello by then is closed."""

HISTORY_SHARE = 0.05
"""At most this part of the pump's time goes into histories, however often screens attach or fall behind."""

_CHECK_SECONDS = 1.0
"""How often the server sees that it is to close, and tries again to accept where no descriptor was free."""

_LAST_WORD_SECONDS = 1.0
"""How long a screen that is turned away may take to read why."""

_Change = Literal["attached", "detached", "hung up", "lost", "refused"]


class Server:
    """A run's end of every screen's connection.

    ``handle_request``, which gets each request with its number, and ``changed`` are called by the server's
    threads and must not block. Nothing that screens do or that fails here affects the run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        handle_request: Callable[[Request, int], object],
        changed: Callable[[ViewersChanged], object],
    ) -> None:
        self._folder = folder.resolve()
        self._handle_request = handle_request
        self._changed = changed
        self._lock = threading.Condition()  # guards the viewers and the attributes below
        self._connected: list[Viewer] = []
        self._history: Callable[[], str] | None = None
        self._history_due = 0.0
        self._closing = threading.Event()
        self._listening: socket_place.Listening | None = None
        self._thread = threading.Thread(target=self._accept, name="amptui-server", daemon=True)
        self.trouble = ""
        """Why no screen can attach, in one line; empty if one can."""
        # Screens notice a run's death at once only if no process that it forked holds the connection open.
        in_forks(self.close_copies)

    @property
    def viewers(self) -> int:
        return sum(viewer.introduced for viewer in self._connected)

    def start(self) -> None:
        try:
            self._listening = socket_place.listen(self._folder)
        except RunFolderError as error:
            self.trouble = str(error)
            return
        self._listening.socket.settimeout(_CHECK_SECONDS)
        self._thread.start()

    def adopt(self, connection: socket.socket) -> None:
        """Serve the screen at the other end of ``connection``. From any thread, also before the start."""
        self._welcome(Viewer(connection, adopted=True))

    def publish(self, lines: bytes, history: Callable[[], str]) -> None:
        """Send whole ``lines`` of records; to be called ten times a second, even with nothing new.

        If a screen waits for a history, ``history`` is called once, right here: it returns a session's state
        as one line of JSON, ``lines`` included. Never waits, and otherwise costs microseconds.
        """
        self._history = history
        with self._lock:
            for viewer in self._connected:
                if viewer.live and lines:
                    viewer.add(lines)
            self._lock.notify_all()
        if time.monotonic() >= self._history_due:
            self._send_history(history)

    def renew(self) -> None:
        """Send every screen a new history, since what was published is out of date. From any thread."""
        with self._lock:
            for viewer in self._connected:
                viewer.fall_behind()

    def close(self, timeout_seconds: float) -> None:
        """Send every screen what it accepts within that time; then close the connections and the socket."""
        limit = time.monotonic() + timeout_seconds
        self._closing.set()
        while self._history is not None and (seconds := limit - time.monotonic()) > 0:
            with self._lock:
                self._lock.wait_for(self._may_go_on, seconds)
                if all(viewer.settled for viewer in self._connected):
                    break
            self._send_history(self._history)
        with self._lock:
            for viewer in self._connected:
                _hang_up(viewer)
            self._lock.wait_for(lambda: not self._connected, _LAST_WORD_SECONDS)
        if self._listening is not None:
            with suppress(RunFolderError):
                socket_place.connect(self._folder).close()  # ends the wait for connections
            if self._thread.ident is not None:  # else it could not be started
                self._thread.join(_CHECK_SECONDS)
            self._listening.close()

    def close_copies(self) -> None:
        """In a forked process: close what belongs to the parent."""
        connections = [viewer.connection for viewer in self._connected]
        if self._listening is not None:
            connections.append(self._listening.socket)
        for connection in connections:
            with suppress(OSError):
                os.close(connection.detach())

    def _may_go_on(self) -> bool:
        """Whether a closing server can end or has to send a history."""
        viewers = self._connected
        if any(viewer.waits_for_history for viewer in viewers):
            return True
        return all(viewer.settled for viewer in viewers)

    def _send_history(self, history: Callable[[], str]) -> None:
        """Send the state to the screens that wait for it; called by the thread that publishes."""
        with self._lock:
            waiting = [viewer for viewer in self._connected if viewer.waits_for_history]
        if not waiting:
            return
        began = time.monotonic()
        line, why = b"", ""
        try:
            line = protocol.history_line(history())
        except Exception as error:  # noqa: BLE001 - the waiting screen is told; the pump must continue
            why = f"cannot send the history: {type(error).__name__}: {error}"
        now = time.monotonic()
        self._history_due = now + (now - began) / HISTORY_SHARE
        with self._lock:
            for viewer in waiting:
                viewer.max_queued_bytes = MAX_QUEUED_BYTES + len(line)
                viewer.add(line or _refusal(why))
                viewer.live = True  # what is published later follows the history
                viewer.over = not line
            self._lock.notify_all()

    # The thread that accepts connections.

    def _accept(self) -> None:
        assert self._listening is not None, "else there is no thread"
        while not self._closing.is_set():
            try:
                connection, _ = self._listening.socket.accept()
            except TimeoutError:
                continue
            except OSError:  # no free descriptor: try again later
                self._closing.wait(_CHECK_SECONDS)
                continue
            if self._closing.is_set():
                connection.close()
            else:
                self._welcome(Viewer(connection, adopted=False))

    def _welcome(self, viewer: Viewer) -> None:
        with self._lock:
            self._connected.append(viewer)
        threading.Thread(target=self._serve, args=(viewer,), name="amptui-viewer", daemon=True).start()

    # Two threads for each screen.

    def _serve(self, viewer: Viewer) -> None:
        """Read what the screen sends until it leaves; an error here ends only its own connection."""
        sender = threading.Thread(target=self._send, args=(viewer,), name="amptui-sender", daemon=True)
        sender.start()
        change: _Change = "lost"
        why = ""
        try:
            with viewer.connection.makefile("rb") as requests:
                change = self._read(viewer, requests)
        except ProtocolError as error:
            why = str(error)
        except OSError:  # a screen that closed with unread input resets the connection
            pass
        except Exception as error:  # noqa: BLE001 - the run must go on
            why = f"the run failed to serve the screen: {type(error).__name__}: {error}"
        with self._lock:
            viewer.fall_behind()
            if why:
                viewer.add(_refusal(why))
            viewer.over = True
            self._lock.notify_all()
        if why:
            sender.join(_LAST_WORD_SECONDS)
        _hang_up(viewer)
        sender.join()
        viewer.connection.close()
        with self._lock:
            self._connected.remove(viewer)
            self._lock.notify_all()
            if viewer.introduced:
                self._tell(change, one_line(why))
        if why and not viewer.introduced:
            self._tell("refused", one_line(why))

    def _read(self, viewer: Viewer, requests: BinaryIO) -> _Change:
        """Handle the screen's hello and requests; return how it left."""
        viewer.connection.settimeout(None if viewer.adopted else HELLO_SECONDS)
        try:
            hello = next(_messages(requests), None)
        except TimeoutError:
            raise ProtocolError(f"no hello within {HELLO_SECONDS:g} s") from None
        if hello is None:
            return "lost"
        viewer.connection.settimeout(None)
        if not isinstance(hello, Hello):
            raise ProtocolError("the first line must be a hello")
        if hello.protocol != FORM:
            versions = f"the run uses protocol {FORM}, the screen {hello.protocol}"
            raise ProtocolError(f"{versions}; attach with the version of amptui that started it")
        with self._lock:
            viewer.introduced = True
            viewer.add(protocol.encode(Hello()))
            self._lock.notify_all()
            self._tell("attached")
        for message in _messages(requests):
            if isinstance(message, Leave):
                return message.kind
            if isinstance(message, Hello):
                raise ProtocolError("a second hello")
            self._handle_request(message.request, message.number)
        return "lost"

    def _send(self, viewer: Viewer) -> None:
        """Send what is queued until the connection is over."""
        with suppress(OSError):
            while True:
                with self._lock:
                    viewer.sending = False
                    self._lock.notify_all()  # it may wait for a history now, or the server for its end
                    self._lock.wait_for(lambda: viewer.queue or viewer.over)
                    piece = viewer.take()
                if not piece:
                    break
                viewer.connection.sendall(piece)
        with suppress(OSError):  # ends the reading once what the screen sent before is read
            viewer.connection.shutdown(socket.SHUT_RD)

    def _tell(self, change: _Change, detail: str = "") -> None:
        if self._closing.is_set():
            return
        self._changed(ViewersChanged(time=time.time(), viewers=self.viewers, change=change, detail=detail))


def _messages(requests: BinaryIO) -> Iterator[protocol.Hello | protocol.Ask | Leave]:
    """The messages of a screen, to the end of the connection. Raises ``ProtocolError``."""
    while (line := requests.readline(protocol.MAX_REQUEST_BYTES + 1)).endswith(b"\n"):
        yield protocol.parse(line)
    if len(line) > protocol.MAX_REQUEST_BYTES:
        raise ProtocolError(f"a line of more than {protocol.MAX_REQUEST_BYTES} bytes")


def _refusal(why: str) -> bytes:
    return protocol.error_line(one_line(why))


def _hang_up(viewer: Viewer) -> None:
    """End all waiting on a screen's socket, also if worker processes hold a copy of it."""
    with suppress(OSError):
        viewer.connection.shutdown(socket.SHUT_RDWR)
