"""Signals that stop a run: the first requests a clean end, the second one at once."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from amptui.records.answers import RequestMade

if TYPE_CHECKING:
    from amptui.tui.canvas import Canvas
    from amptui.tui.opening import Opening
    from amptui.tui.screen import Screen

ScreenT = TypeVar("ScreenT", bound="Screen")

AT_ONCE_SECONDS = 5.0
"""A process exits within that time after the second SIGINT or SIGTERM, even if its terminal blocks every
write."""

_BY_HAND = (signal.SIGINT, signal.SIGTERM)
"""A person waits: the second one ends the run at once."""

_SCHEDULERS = ("SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR")

BY_SCHEDULER = tuple(signal.Signals[name] for name in _SCHEDULERS if name in signal.Signals.__members__)
"""Sent by batch systems, limits and timers before they kill, perhaps twice, perhaps to all processes."""

HEEDED = (signal.SIGHUP, *_BY_HAND, *BY_SCHEDULER)
"""What is blocked until it can be handled."""

_POLL_SECONDS = 0.02

_SI_KERNEL = 0x80
"""Linux's ``si_code`` of a signal that no process sent (asm-generic/siginfo.h)."""

_leave_at_once = os._exit
"""The original: a model file's code gets another one."""


@contextmanager
def blocked_stop_signals() -> Iterator[None]:
    """While entered, stop signals and SIGHUP are blocked, until :class:`StopSignals` handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Arrival(NamedTuple):
    """A signal that came."""

    number: int
    is_from_kernel: bool
    """A terminal sent it, to the whole process group, and not another process.

    macOS does not say; there SIGINT is taken for Ctrl+C.
    """


def received_now(numbers: Collection[int]) -> Arrival | None:
    """The first of ``numbers``, which are blocked, that is there; None if none is."""
    if sys.platform != "darwin":
        received = signal.sigtimedwait(numbers, 0)
        return None if received is None else Arrival(received.si_signo, received.si_code == _SI_KERNEL)
    return received_of_pending(numbers)


def received_of_pending(numbers: Collection[int]) -> Arrival | None:
    """The same by what every Unix has; while it is called, no other thread may take these signals."""
    pending = signal.sigpending() & set(numbers)
    if not pending:
        return None
    number = signal.sigwait(pending)
    return Arrival(number, number == signal.SIGINT)


def received_within(seconds: float, numbers: Iterable[int] = HEEDED) -> Arrival | None:
    """The first of ``numbers``, which are blocked, that comes within so many seconds; None if none does.

    ``sigtimedwait`` with a timeout makes up a signal, most often SIGHUP, where this process is stopped and
    goes on (Ctrl+Z and ``fg``): CPython (seen in 3.11) reads what the interrupted call has not written.
    """
    numbers, limit = tuple(numbers), time.monotonic() + seconds
    while (received := received_now(numbers)) is None and time.monotonic() < limit:
        time.sleep(_POLL_SECONDS)
    return received


class StopSignals:
    """While entered, signals that would kill the process ask the run to stop instead.

    ``ask`` gets that request in the main thread; its reason is the first signal's name. With ``hung_up``,
    SIGHUP calls that instead of stopping.

    The second SIGINT or SIGTERM exits at once. With ``closes``, ``ask`` gets a request to stop at once
    instead, the process exits by itself within ``AT_ONCE_SECONDS``, and the third one exits before that.

    ``restore_terminal`` is called before the process exits at once; it may run in a signal handler. A signal
    that was ignored at the start stays ignored, as nohup requires. Those of `BY_SCHEDULER` that have a
    handler keep it.
    """

    def __init__(
        self,
        ask: Callable[[RequestMade], object],
        *,
        hung_up: Callable[[], object] | None = None,
        closes: bool = False,
        restore_terminal: Callable[[], object] | None = None,
    ) -> None:
        self._ask_run = ask
        self._closes = closes
        self._hung_up = hung_up
        self._restore_terminal = restore_terminal
        self._before: dict[signal.Signals, Any] = {}
        self._pid = os.getpid()
        self._urged = False
        self._last_resort: threading.Timer | None = None
        self.received: int | None = None
        """The number of the first stop signal."""

    def __enter__(self) -> "StopSignals":
        self._catch(signal.SIGHUP, self._urge if self._hung_up is None else self._hang_up)
        for number in _BY_HAND:
            self._catch(number, self._urge)
        for number in BY_SCHEDULER:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._catch(number, self._ask)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
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
        """Whether this is the process that entered, not a forked one such as a DataLoader worker.

        A worker dies of SIGTERM only. It survives other signals that are sent to the whole process group:
        the run still needs its batches for a clean end.
        """
        if os.getpid() == self._pid:
            return True
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
            os.kill(os.getpid(), number)
        return False

    def _hang_up(self, number: int, _frame: FrameType | None) -> None:
        if self._hung_up is not None and self._is_ours(number):
            self._hung_up()

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self._is_ours(number) and self.received is None:
            self.received = number
            self._ask_run(RequestMade("stop", reason=signal.Signals(number).name))

    def _urge(self, number: int, frame: FrameType | None) -> None:
        if not self._is_ours(number):
            return
        if not self._urged:
            self._urged = True
            self._ask(number, frame)
            return
        if not self._closes:
            self._leave(number)
        self._closes = False  # it has the time to say how it ended, but only once
        self._ask_run(RequestMade("stop", reason=signal.Signals(number).name, at_once=True))
        # In any case: the main thread may be blocked writing to a terminal.
        self._last_resort = threading.Timer(AT_ONCE_SECONDS, self._leave)
        self._last_resort.daemon = True
        self._last_resort.start()

    def _leave(self, number: int = 0) -> None:
        if self._restore_terminal is not None:
            self._restore_terminal()
        # A second signal may interrupt the handler of the first before that has noted its own.
        _leave_at_once(128 + (self.received or number))


def show(
    build: Callable[["Opening"], ScreenT],
    first: "Callable[[Canvas], object] | None" = None,
    ask: Callable[[RequestMade], object] | None = None,
) -> tuple[ScreenT, int]:
    """Show a screen behind which nothing trains until it is left; return it and the exit status.

    ``first`` draws what the terminal shows while ``build`` imports and makes the screen. ``ask`` gets the
    request of a signal; without it, the screen is left. The status is 1 if the screen failed. Raises why it
    could not go on reading, unless the terminal is gone, so that nobody is there to read that.
    """
    from amptui.tui.opening import Opening

    with Opening(first) as opening:
        screen = build(opening)
        with StopSignals(
            ask or (lambda _: screen.hang_up("interrupted")),
            hung_up=screen.hang_up,
            restore_terminal=opening.restore_at_once,
        ) as signals:
            screen.run()
    if screen.left == "hung up":
        return screen, 128 + signal.SIGHUP
    if screen.failure is not None:
        raise screen.failure
    if screen.left == "interrupted" or signals.received:
        return screen, 128 + (signals.received or signal.SIGINT)
    return screen, int(screen.left is None)
