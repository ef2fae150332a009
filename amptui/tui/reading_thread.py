"""The thread in which a screen reads files: keys wake it, and no file system keeps the screen open."""

import math
import threading

from amptui.base.errors import AmptuiError

_PATIENCE_SECONDS = 1.0


class ReadingThread:
    """Works again and again in a thread of its own, until it is stopped or fails. A subclass says at what."""

    def __init__(self, name: str) -> None:
        self._stopping = False
        self._wake = threading.Event()
        """Set it to have work done at once."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: AmptuiError | None = None
        """Why the thread has ended before it was stopped."""

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread if it was started; one that does not stop in time is abandoned."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_SECONDS)

    def _work(self) -> float:
        """Do what is due; the seconds until there is more, inf if only a key brings more.

        What wakes the thread meanwhile makes it work again. Raises AmptuiError.
        """
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                wait_seconds = self._work()
                if wait_seconds > 0 and not self._stopping:
                    self._wake.wait(None if math.isinf(wait_seconds) else wait_seconds)
        except AmptuiError as error:
            self.failure = error
