"""Writes to the terminal in a thread: a terminal that stalls or disappears never blocks the screen."""

import os
import select
import threading
import time
from itertools import count
from queue import SimpleQueue

_CHUNK_BYTES = 4096
"""About the size of a terminal's buffer: progress is known in steps of this."""

_LEAVING_SECONDS = 10.0
"""At the end, a terminal that accepts nothing for so long is given up; a link may come back until then."""

_HURRIED_SECONDS = 0.5
"""The same for a terminal that is being closed."""


class Outlet:
    """Writes to ``descriptor`` from a thread of its own; ``write`` never waits and never raises.

    A signal handler may write too, also in the middle of another ``write``: Textual draws again at SIGCONT.
    """

    def __init__(self, descriptor: int, encoding: str) -> None:
        # A copy: the caller may close its own while a write still hangs.
        self._descriptor = os.dup(descriptor)
        self._encoding = encoding
        self._texts: SimpleQueue[str] = SimpleQueue()  # put() may interrupt itself, unlike Event.set()
        self._writes = count(1)
        self._queued = 0
        self._accepted = 0
        self._sent_bytes = 0
        self._closing = False
        self._abandoned = False
        self._patience_seconds = _LEAVING_SECONDS
        self._thread = threading.Thread(target=self._run, name="amptui-outlet", daemon=True)
        self.broken = False
        """Whether the terminal is gone."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def write(self, text: str) -> None:
        """Queue ``text``."""
        if not self.broken:
            self._queued = next(self._writes)
            self._texts.put(text)

    @property
    def waiting(self) -> int:
        """Texts that the terminal has not accepted completely."""
        return 0 if self.broken else self._queued - self._accepted

    def hurry(self) -> None:
        """Give up soon at the end: the terminal is being closed. Safe in a signal handler."""
        self._patience_seconds = _HURRIED_SECONDS

    def close(self) -> None:
        """Return once everything is written, or the terminal has accepted nothing for too long."""
        self._closing = True
        self.write("")  # wakes the thread
        sent_bytes, since = self._sent_bytes, time.monotonic()
        while self._thread.is_alive():
            if self._sent_bytes != sent_bytes:
                sent_bytes, since = self._sent_bytes, time.monotonic()
            elif time.monotonic() - since > self._patience_seconds:
                self._abandoned = True
                return  # the thread may hang in a write until the process ends
            self._thread.join(0.05)

    def _run(self) -> None:
        try:
            while not (self._closing and self._texts.empty()):
                texts = [self._texts.get()]
                texts += [self._texts.get() for _ in range(self._texts.qsize())]
                self._send("".join(texts).encode(self._encoding, "replace"))
                self._accepted += len(texts)
        except OSError:
            self.broken = True  # the terminal was closed
        finally:
            os.close(self._descriptor)

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._abandoned:
            try:
                size = os.write(self._descriptor, rest[:_CHUNK_BYTES])
            except BlockingIOError:
                # Another program left the terminal non-blocking.
                select.select([], [self._descriptor], [], 1.0)
                continue
            rest = rest[size:]
            self._sent_bytes += size
