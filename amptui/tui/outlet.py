"""What waits to be written to a terminal: one that takes nothing, or is gone, holds nobody up but itself."""

import os
import select
import threading
import time
from collections import deque

_CHUNK_BYTES = 4096
"""A terminal's own buffer is about as large: what it has taken is known in steps of this."""

_LEAVING_SECONDS = 10.0
"""At the end a terminal that takes nothing for so long is left as it is; until then a link may come back."""

_HURRIED_SECONDS = 0.5
"""The same for one that is closed or being closed."""


class Outlet:
    """Writes to ``descriptor`` from a thread of its own; ``write`` never waits and never raises."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        # Whoever gave it may close it while a write still hangs in it.
        self._descriptor = os.dup(descriptor)
        self._encoding = encoding
        self._texts: deque[str] = deque()
        self._given = 0
        self._taken = 0
        self._sent_bytes = 0
        self._woken = threading.Event()
        self._closing = False
        self._abandoned = False
        self._patience_seconds = _LEAVING_SECONDS
        self._thread = threading.Thread(target=self._run, name="amptui-outlet", daemon=True)
        self.broken = False
        """Whether there is no terminal to write to any more."""

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def write(self, text: str) -> None:
        """Have ``text`` written after all that was given before."""
        if not self.broken:
            self._given += 1
            self._texts.append(text)
            self._woken.set()

    @property
    def waiting(self) -> int:
        """Texts that the terminal has not taken wholly."""
        return 0 if self.broken else self._given - self._taken

    def hurry(self) -> None:
        """Do not wait long at the end: the terminal is being closed. Safe in a signal handler."""
        self._patience_seconds = _HURRIED_SECONDS

    def close(self) -> None:
        """Return once all is written, or the terminal has taken nothing for too long."""
        self._closing = True
        self._woken.set()
        sent, since = self._sent_bytes, time.monotonic()
        while self._thread.is_alive():
            if self._sent_bytes != sent:
                sent, since = self._sent_bytes, time.monotonic()
            elif time.monotonic() - since > self._patience_seconds:
                self._abandoned = True
                return  # it may hang in a write for as long as the process lives
            self._thread.join(0.05)

    def _run(self) -> None:
        try:
            while self._texts or not self._closing:
                self._woken.wait()
                self._woken.clear()
                while self._texts:
                    texts = [self._texts.popleft() for _ in range(len(self._texts))]
                    self._send("".join(texts).encode(self._encoding, "replace"))
                    self._taken += len(texts)
        except OSError:
            self.broken = True  # hung up, or its other end is closed
        finally:
            os.close(self._descriptor)

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self._abandoned:
            try:
                sent = os.write(self._descriptor, left[:_CHUNK_BYTES])
            except BlockingIOError:
                # Another program left the terminal so.
                select.select([], [self._descriptor], [], 1.0)
                continue
            left = left[sent:]
            self._sent_bytes += sent
