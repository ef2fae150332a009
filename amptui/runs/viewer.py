"""One connection to a run: whether it is a screen that is up to date, and what is queued for it."""

import os
import socket
from collections import deque

from amptui.base.runfiles import is_still

MAX_QUEUED_BYTES = 4 * 1024**2
"""Limit of lines queued for a slow screen: a second of the fastest training."""


class Viewer:
    """A screen, or whatever else connected. The server's lock guards the attributes."""

    def __init__(self, connection: socket.socket, *, adopted: bool) -> None:
        self.connection = connection
        self.opened = os.fstat(connection.fileno())
        """What its descriptor is."""
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
        self._max_queued_bytes = MAX_QUEUED_BYTES

    def is_open(self) -> bool:
        """Whether no other code has closed the connection."""
        return is_still(self.connection.fileno(), self.opened)

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
        """Queue whole lines."""
        self.queue.append(data)
        self._queued_bytes += len(data)

    def add_history(self, line: bytes) -> None:
        """Queue the history; what is published later follows it."""
        self._max_queued_bytes = MAX_QUEUED_BYTES + len(line)
        self.add(line)
        self.live = True

    def add_published(self, lines: bytes) -> None:
        """Queue published lines; if too many are waiting, drop them: a new history will replace them."""
        self.add(lines)
        if self._queued_bytes > self._max_queued_bytes:
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
