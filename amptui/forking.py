"""Starts a piece of work as a process of its own that no terminal can reach, and learns how it ended."""

import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from typing import NoReturn

_LOOK_INTERVAL_SECONDS = 0.02


class Offspring:
    """The process that does the work; a child of this one for as long as this one lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal as in :mod:`subprocess`; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, timeout_seconds: float) -> int | None:
        """Its exit status; None if it runs for longer than that."""
        limit = time.monotonic() + timeout_seconds
        while self.status is None and time.monotonic() < limit:
            time.sleep(_LOOK_INTERVAL_SECONDS)
        return self.status


def fork(work: Callable[[], int]) -> Offspring:
    """Call ``work`` in a child that leads a session without a terminal, and exits with what that returns.

    To be called while there is one thread only. The child reads nothing; what it writes to standard output,
    or to a standard error that is no file, goes nowhere until somebody captures it: a terminal or the reader
    of a pipe may go before the child does, and would else wait for its end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Where whoever started us ignores it, the system forgets how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _live_as_child(work)
    return Offspring(pid)


def _live_as_child(work: Callable[[], int]) -> NoReturn:
    status = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1) if stat.S_ISREG(os.fstat(2).st_mode) else (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        status = work()
    finally:
        # Not sys.exit: what the parent would do on its way out is not the child's to do.
        os._exit(status)
