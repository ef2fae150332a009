"""Signals that stop a run: the first asks for a clean end, the second exits at once."""

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from amptui.control import StopRequest
from amptui.terminal import HeldTerminal

LEAVE_AFTER_SECONDS = 15.0
"""The process exits within that time after SIGINT or SIGTERM, even if its terminal blocks every write."""

_BY_HAND = (signal.SIGINT, signal.SIGTERM)
"""Somebody waits: the second leaves at once."""

BY_SCHEDULER = (
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM),
    *(signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR),
)
"""What a batch system, a limit or a timer sends before it kills, perhaps twice, perhaps to all processes."""

_FATAL = (signal.SIGQUIT, signal.SIGABRT)

_HEEDED = (signal.SIGHUP, *_BY_HAND, *BY_SCHEDULER)

_leave_at_once = os._exit
"""As it is before code of a model file is kept from it."""


@contextmanager
def held_back() -> Iterator[None]:
    """Within it, stop signals and hangups wait for :class:`StopSignals`, here and in forked processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignals:
    """While entered, signals that would kill the process ask the run to stop instead.

    ``ask`` gets that request, with the first signal's name as its reason, in the main thread. With
    ``hung_up`` SIGHUP calls that and stops nothing. While ``busy`` says so, the process is not left for
    having taken long. ``terminal`` is given back before the process leaves at once, or dies of SIGQUIT or
    SIGABRT. A signal that was ignored when we started stays ignored: that is how nohup asks for it. Those of
    `BY_SCHEDULER` are left to whoever has a handler for them.
    """

    def __init__(
        self,
        ask: Callable[[StopRequest], object],
        *,
        hung_up: Callable[[], object] | None = None,
        busy: Callable[[], bool] = lambda: False,
        terminal: HeldTerminal | None = None,
    ) -> None:
        self._ask_run = ask
        self._hung_up = hung_up
        self._busy = busy
        self._was_busy = False
        self._terminal = terminal
        self._before: dict[signal.Signals, Any] = {}
        self._pid = os.getpid()
        self._urged = False
        self._last_resort: threading.Timer | None = None
        self.received: int | None = None
        """The number of the first stop signal."""

    @property
    def patient(self) -> bool:
        """Whether a clean end may take its time: whoever sent the signal kills when there is no more."""
        return self.received in BY_SCHEDULER and not self._urged

    def __enter__(self) -> "StopSignals":
        self._catch(signal.SIGHUP, self._urge if self._hung_up is None else self._hang_up)
        for number in _BY_HAND:
            self._catch(number, self._urge)
        for number in BY_SCHEDULER:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._catch(number, self._ask)
        if self._terminal is not None:
            for number in _FATAL:
                # What faulthandler has to say of an abort is worth more than a terminal restored in order.
                if number != signal.SIGABRT or not faulthandler.is_enabled():
                    self._catch(number, self._die)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED)
        return self

    def __exit__(self, *_: object) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)

    def _catch(self, number: signal.Signals, handle: Callable[[int, FrameType | None], None]) -> None:
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN:
            self._before[number] = before
            signal.signal(number, handle)

    def _is_ours(self, number: int) -> bool:
        """Whether this is the process that entered, and not one that it forked: a data loader's worker, say.

        A worker that is terminated dies of it. All else that is sent to a whole group of processes it
        outlives: the run still needs its batches to come to a clean end.
        """
        if os.getpid() == self._pid:
            return True
        if number == signal.SIGTERM:
            _die_of(number)
        return False

    def _hang_up(self, number: int, _frame: FrameType | None) -> None:
        if self._hung_up is not None and self._is_ours(number):
            self._hung_up()

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self._is_ours(number) and self.received is None:
            self.received = number
            self._ask_run(StopRequest(signal.Signals(number).name))

    def _urge(self, number: int, frame: FrameType | None) -> None:
        if not self._is_ours(number):
            return
        if self._urged:
            self._leave()
        self._urged = True
        self._ask(number, frame)
        self._leave_in_time()

    def _die(self, number: int, _frame: FrameType | None) -> None:
        if self._terminal is not None and os.getpid() == self._pid:
            self._terminal.give_up()
        _die_of(number)

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
            self._terminal.give_up()
        _leave_at_once(128 + (self.received or 0))


def _die_of(number: int) -> None:
    """What the signal does by default, its core dump included."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
