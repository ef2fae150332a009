"""Serves a run to screens: sends each the history and the records after it, and receives requests.

One thread with an event loop of its own serves all of them; nothing that they do delays the run.
"""

import asyncio
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.fork import in_forks
from amptui.base.text import one_line
from amptui.records.answers import RequestMade
from amptui.records.run import FORM
from amptui.runs import protocol, socket_place
from amptui.runs.protocol import Hello, ProtocolError, RunError

MAX_QUEUED_BYTES = 4 * 1024**2
"""Limit of lines queued for a slow screen: a second of the fastest training."""

HISTORY_SHARE = 0.05
"""At most this part of the pump's time goes into histories, however often screens attach or fall behind."""

_RETRY_SECONDS = 1.0
"""How long to wait where no descriptor is free to accept with."""

_LAST_WORD_SECONDS = 1.0
"""How long a screen that is turned away may take to read why."""

_POLL_SECONDS = 0.01


class _Screen:
    """A screen, or whatever else connected. Only the loop's thread changes it."""

    def __init__(self, connection: socket.socket, *, adopted: bool) -> None:
        self.connection = connection
        connection.setblocking(False)
        self.adopted = adopted
        """Whether it was there from the start instead of connecting to the run's socket."""
        self.introduced = False
        """Whether it said hello."""
        self.live = False
        """Whether it has a history or will get it: new lines follow."""
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        """Those of a piece that is being sent included."""
        self.max_queued_bytes = MAX_QUEUED_BYTES
        self.wake = asyncio.Event()

    @property
    def waits_for_history(self) -> bool:
        return self.introduced and not self.live and not self.queued_bytes

    @property
    def settled(self) -> bool:
        """Whether a run that ends can close it; it waits for the screen that was there from the start."""
        return self.live and not self.queued_bytes if self.introduced else not self.adopted

    def add(self, data: bytes) -> None:
        """Queue whole lines; if too many are waiting, drop them: a new history will replace them."""
        self.queue.append(data)
        self.queued_bytes += len(data)
        self.wake.set()
        if self.queued_bytes > self.max_queued_bytes:
            self.fall_behind()

    def fall_behind(self) -> None:
        """Drop what is queued; the piece that is being sent is completed, so no line is ever torn."""
        self.queued_bytes -= sum(map(len, self.queue))
        self.queue.clear()
        self.live = False


class Server:
    """A run's end of every screen's connection.

    ``handle_request`` is called by the server's thread and must not block. Nothing that screens do or that
    fails here affects the run.
    """

    def __init__(self, folder: Path, *, handle_request: Callable[[RequestMade], object]) -> None:
        self._folder = folder.resolve()
        self._handle_request = handle_request
        self._screens: list[_Screen] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._history: Callable[[], str] | None = None
        self._history_due = 0.0
        self._closing = asyncio.Event()
        self._closing_seconds = 0.0
        self._listening: socket_place.Listening | None = None
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._run, name="amptui-server", daemon=True)
        self.trouble = ""
        """Why no screen can attach, in one line; empty if one can."""
        # Screens notice a run's death at once only if no process that it forked holds the connection open.
        in_forks(self.close_copies)

    def start(self) -> None:
        try:
            self._listening = socket_place.listen(self._folder)
        except RunFolderError as error:
            self.trouble = str(error)
        self._thread.start()

    def adopt(self, connection: socket.socket) -> None:
        """Serve the screen at the other end of ``connection``. From any thread, also before the start."""
        self._call(self._welcome, connection, True)

    def publish(self, lines: bytes, history: Callable[[], str]) -> None:
        """Send whole ``lines`` of records; to be called ten times a second, even with nothing new.

        If a screen waits for a history, ``history`` is called once, right here: it returns a session's state
        as one line of JSON, ``lines`` included. Never waits, and otherwise costs microseconds.
        """
        self._history = history
        if lines and self._screens:  # else nobody's thread need wake up
            self._call(self._send, lines)
        if time.monotonic() >= self._history_due:
            self._send_history(history)

    def renew(self) -> None:
        """Send every screen a new history, since what was published is out of date. From any thread."""
        self._call(self._fall_behind)

    def close(self, timeout_seconds: float) -> None:
        """Send every screen what it accepts within that time; then close the connections and the socket."""
        self._closing_seconds = timeout_seconds
        self._call(self._closing.set)
        if self._thread.ident is not None:
            self._thread.join()
        if self._listening is not None:
            self._listening.close()

    def close_copies(self) -> None:
        """In a forked process: close what belongs to the parent."""
        connections = [screen.connection for screen in self._screens]
        if self._listening is not None:
            connections.append(self._listening.socket)
        for connection in connections:
            with suppress(OSError):
                os.close(connection.detach())

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop's thread call it, in the order of these calls; once the server is closed, nobody."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def _send_history(self, history: Callable[[], str]) -> None:
        """Send the state to the screens that wait for it; called by the thread that publishes."""
        if not any(screen.waits_for_history for screen in tuple(self._screens)):
            return
        began = time.monotonic()
        try:
            line, is_last = protocol.history_line(history()), False
        except Exception as error:  # noqa: BLE001 - the waiting screen is told; the pump must continue
            line, is_last = _refusal(f"cannot send the history: {type(error).__name__}: {error}"), True
        now = time.monotonic()
        self._history_due = now + (now - began) / HISTORY_SHARE
        self._call(self._begin, line, is_last)

    # What the loop's thread does.

    def _run(self) -> None:
        with closing(self._loop):
            self._loop.run_until_complete(self._serve_all())

    async def _serve_all(self) -> None:
        accepting = self._loop.create_task(self._accept())
        await self._closing.wait()
        accepting.cancel()
        limit = time.monotonic() + self._closing_seconds
        while self._history is not None and time.monotonic() < limit:
            if all(screen.settled for screen in self._screens):
                break
            self._send_history(self._history)
            await asyncio.sleep(_POLL_SECONDS)
        for screen in self._screens:
            with suppress(OSError):
                screen.connection.shutdown(socket.SHUT_RDWR)  # ends its task
        await asyncio.gather(accepting, *self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while self._listening is not None:
            try:
                connection, _ = await self._loop.sock_accept(self._listening.socket)
            except OSError:  # no free descriptor: try again later
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._welcome(connection, False)

    def _welcome(self, connection: socket.socket, adopted: bool) -> None:
        screen = _Screen(connection, adopted=adopted)
        self._screens.append(screen)
        task = self._loop.create_task(self._serve(screen))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, lines: bytes) -> None:
        for screen in self._screens:
            if screen.live:
                screen.add(lines)

    def _begin(self, history: bytes, is_last: bool) -> None:
        """Send a line with the ``history``, or with why there is none, to the screens that wait for it."""
        for screen in self._screens:
            if screen.waits_for_history:
                screen.max_queued_bytes = MAX_QUEUED_BYTES + len(history)
                screen.live = True  # what is published later follows the history
                screen.add(history)
                if is_last:
                    screen.add(b"")

    def _fall_behind(self) -> None:
        for screen in self._screens:
            screen.fall_behind()

    async def _serve(self, screen: _Screen) -> None:
        """Read what the screen sends until it leaves; an error here ends only its own connection."""
        sender = self._loop.create_task(self._send_queue(screen))
        why = ""
        try:
            await self._read(screen)
        except ProtocolError as error:
            why = str(error)
        except OSError:  # a screen that closed with unread input resets the connection
            pass
        except Exception as error:  # noqa: BLE001 - the run must go on
            why = f"the run failed to serve the screen: {type(error).__name__}: {error}"
        finally:
            screen.introduced = False
            screen.fall_behind()
            if why:
                screen.add(_refusal(why))
                screen.add(b"")
                await asyncio.wait([sender], timeout=_LAST_WORD_SECONDS)
            sender.cancel()
            await asyncio.wait([sender])
            screen.connection.close()
            self._screens.remove(screen)

    async def _send_queue(self, screen: _Screen) -> None:
        """Send what is queued, up to an empty piece or the end of the connection."""
        with suppress(OSError):
            piece = b"-"
            while piece:
                while not screen.queue:
                    await screen.wake.wait()
                    screen.wake.clear()
                piece = screen.queue.popleft()
                await self._loop.sock_sendall(screen.connection, piece)
                screen.queued_bytes -= len(piece)
            screen.connection.shutdown(socket.SHUT_RDWR)

    async def _read(self, screen: _Screen) -> None:
        """Handle the screen's hello and requests, until it has left."""
        messages = self._messages(screen)
        hello = await anext(messages, None)
        if hello is None:
            return
        if not isinstance(hello, Hello):
            raise ProtocolError("the first line must be a hello")
        if hello.protocol != FORM:
            versions = f"the run uses protocol {FORM}, the screen {hello.protocol}"
            raise ProtocolError(f"{versions}; attach with the version of amptui that started it")
        screen.add(protocol.encode(Hello()))
        screen.introduced = True
        async for message in messages:
            if isinstance(message, RequestMade):
                self._handle_request(message)

    async def _messages(self, screen: _Screen) -> AsyncIterator[protocol.Message]:
        """The messages of a screen, to the end of the connection. Raises ``ProtocolError``."""
        rest = b""
        while data := await self._loop.sock_recv(screen.connection, protocol.MAX_REQUEST_BYTES):
            await asyncio.sleep(0)  # where data is waiting, to receive it lets nobody else go on
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield protocol.parse(line)
            if len(rest) > protocol.MAX_REQUEST_BYTES:
                raise ProtocolError(f"a line of more than {protocol.MAX_REQUEST_BYTES} bytes")


def _refusal(why: str) -> bytes:
    return protocol.encode(RunError(one_line(why)))
