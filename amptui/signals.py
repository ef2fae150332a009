"""Stop signals: the first asks for a clean end, the second leaves at once."""

import os
import signal
import sys
import termios
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from amptui.control import Control

LEAVE_AFTER_SECONDS = 15.0
"""After a signal the process is gone by then, even if its terminal blocks every write."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP stop the run instead of killing the process.

    A signal that was ignored when we started stays ignored: that is how nohup asks for it.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._before: dict[signal.Signals, object] = {}
        self._terminal = _terminal_state()
        self._last_resort = threading.Timer(LEAVE_AFTER_SECONDS, self._leave)
        self.received: int | None = None
        """The number of the first signal."""

    def __enter__(self) -> "StopSignals":
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._last_resort.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._leave()
        self.received = number
        self._control.request_stop(signal.Signals(number).name)
        # The main thread may be stuck in a write to a terminal that takes nothing any more.
        self._last_resort.daemon = True
        self._last_resort.start()

    def _leave(self) -> None:
        if self._terminal is not None:
            with suppress(termios.error):  # the terminal is gone: nothing to restore
                termios.tcsetattr(0, termios.TCSANOW, self._terminal)
        os._exit(128 + (self.received or 0))


def _terminal_state() -> list[Any] | None:
    """The terminal's modes before we touch them, if there is a terminal."""
    try:
        return termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ else None
    except (termios.error, ValueError, OSError):
        return None
