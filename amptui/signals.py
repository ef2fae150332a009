"""Stop signals: the first asks for a clean end, the second leaves at once; a hangup may mean otherwise."""

import os
import signal
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

LEAVE_AFTER_SECONDS = 15.0
"""After a signal the process is gone by then, even if its terminal blocks every write."""

_STOPPING = (signal.SIGINT, signal.SIGTERM)

_HEEDED = (signal.SIGHUP, *_STOPPING)


def hold_back() -> None:
    """Let what stops or hangs up wait until :class:`StopSignals` is entered, here and in what is forked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP stop the run instead of killing the process.

    ``stop`` is called with the first signal's name, in the main thread. With ``hung_up`` SIGHUP calls that
    and stops nothing. While ``busy`` says so, the process is not left for having taken long; a terminal that
    is left at once gets ``restore``. A signal that was ignored when we started stays ignored: that is how
    nohup asks for it.
    """

    def __init__(
        self,
        stop: Callable[[str], object],
        *,
        hung_up: Callable[[], object] | None = None,
        busy: Callable[[], bool] = lambda: False,
        restore: bytes = b"",
    ) -> None:
        self._stop = stop
        self._hung_up = hung_up
        self._busy = busy
        self._was_busy = False
        self._restore = restore
        self._before: dict[signal.Signals, object] = {}
        self._terminal = _terminal_state()
        self._last_resort: threading.Timer | None = None
        self.received: int | None = None
        """The number of the first signal that stops."""

    def __enter__(self) -> "StopSignals":
        self._catch(signal.SIGHUP, self._handle if self._hung_up is None else self._hang_up)
        for number in _STOPPING:
            self._catch(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED)
        return self

    def __exit__(self, *_: object) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _catch(self, number: signal.Signals, handle: Callable[[int, FrameType | None], None]) -> None:
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN:
            self._before[number] = before
            signal.signal(number, handle)

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        if self._hung_up is not None:
            self._hung_up()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._leave()
        self.received = number
        self._stop(signal.Signals(number).name)
        self._leave_in_time()

    def _leave_in_time(self) -> None:
        """The main thread may be stuck in a write to a terminal that takes nothing any more."""
        self._last_resort = threading.Timer(LEAVE_AFTER_SECONDS, self._leave_unless_busy)
        self._last_resort.daemon = True
        self._last_resort.start()

    def _leave_unless_busy(self) -> None:
        # What was being done a moment ago has an end that takes its time too.
        is_busy, was_busy = self._busy(), self._was_busy
        self._was_busy = is_busy
        if is_busy or was_busy:
            self._leave_in_time()
        else:
            self._leave()

    def _leave(self) -> None:
        if self._terminal is not None:
            with suppress(termios.error):  # the terminal is gone: nothing to restore
                termios.tcsetattr(0, termios.TCSANOW, self._terminal)
            with suppress(OSError):  # nor if it takes nothing: a file of its own, so that only this is tried
                os.write(os.open(os.ttyname(0), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK), self._restore)
        os._exit(128 + (self.received or 0))


def _terminal_state() -> list[Any] | None:
    """The terminal's modes before we touch them, if there is a terminal."""
    try:
        return termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ else None
    except (termios.error, ValueError, OSError):
        return None
