"""The run's side of one connection: what is still to be sent to the screen, and what it sends."""

import socket
from collections import deque
from contextlib import suppress
from typing import Literal

from amptui.runs import protocol

MAX_QUEUED_BYTES = 4 * 1024**2
"""Limit of lines queued for a slow screen, besides a history: a second of the fastest training."""

_PIECE_BYTES = 64 * 1024

Standing = Literal["new", "behind", "waiting", "live"]
"""``new`` has not said hello; ``behind`` missed something and still has to take what it was being sent;
``waiting`` is for a history; ``live`` gets what is published."""


class Peer:
    """A screen, or whatever else connected. Nothing here blocks on it."""

    def __init__(self, connection: socket.socket, *, adopted: bool, since: float) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.adopted = adopted
        """Whether it was there from the start instead of connecting to the run's socket."""
        self.since = since
        """When it connected, on the monotonic clock."""
        self.standing: Standing = "new"
        self.blocked = False
        """Whether its socket is full for now."""
        self.gone = False
        """Whether the other end is closed."""
        self._owed: deque[bytes] = deque()
        self._owed_bytes = 0
        self._sent_bytes = 0  # of the first queued line
        self._max_owed_bytes = MAX_QUEUED_BYTES
        self._heard = protocol.Lines(protocol.MAX_REQUEST_BYTES)

    @property
    def introduced(self) -> bool:
        """Whether it is a screen that said hello."""
        return self.standing != "new"

    @property
    def settled(self) -> bool:
        """Whether everything for it was sent; the run waits for one that was there from the start."""
        if not self.introduced:
            return not self.adopted
        return self.standing == "live" and not self._owed

    def introduce(self, hello: bytes) -> None:
        """Note its hello, and queue the run's."""
        self._owe(hello)
        self.standing = "behind"

    def owe_history(self, line: bytes) -> None:
        """Queue the history; what is published later follows it."""
        self._max_owed_bytes = MAX_QUEUED_BYTES + len(line)
        self._owe(line)
        self.standing = "live"

    def owe_lines(self, lines: bytes) -> None:
        """Queue published lines; if too many are waiting, ask for a new history instead."""
        if self._owed_bytes + len(lines) > self._max_owed_bytes:
            self.fall_behind()
        else:
            self._owe(lines)

    def fall_behind(self) -> None:
        """Drop what is queued, except a line that is partly sent: no line is ever torn."""
        begun = self._owed[0] if self._sent_bytes else b""
        self._owed.clear()
        self._owed_bytes = 0
        if begun:
            self._owe(begun)
        self.standing = "behind"

    def send(self) -> None:
        """Send what the socket accepts now. Raises ``OSError`` if the other end is gone."""
        self.blocked = False
        while self._owed and not self.blocked:
            first = self._owed[0]
            try:
                self._sent_bytes += self.connection.send(memoryview(first)[self._sent_bytes :])
            except BlockingIOError:
                self.blocked = True
            if self._sent_bytes == len(first):
                self._owed.popleft()
                self._owed_bytes -= len(first)
                self._sent_bytes = 0
        if not self._owed:
            self._max_owed_bytes = MAX_QUEUED_BYTES
            if self.standing == "behind":
                self.standing = "waiting"

    def hear(self) -> list[bytes]:
        """The lines that arrived; sets ``gone`` after the last. Raises ``ProtocolError`` for one too long."""
        try:
            piece = self.connection.recv(_PIECE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            piece = b""  # a screen that closed with unread input resets the connection
        self.gone = not piece
        return self._heard.take(piece)

    def close(self, last_word: bytes = b"") -> None:
        """Close the connection, after sending ``last_word`` if that tears no line."""
        with suppress(OSError):
            if last_word and not self._sent_bytes:
                self.connection.send(last_word)
            # A worker process that the training forked may hold a copy: this ends the connection for all.
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _owe(self, data: bytes) -> None:
        self._owed.append(data)
        self._owed_bytes += len(data)
