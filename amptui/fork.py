"""Starts a piece of work as a process of its own that no terminal can reach, and learns how it ended."""

import os
import signal
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import NoReturn

_LOOK_INTERVAL_SECONDS = 0.02

_HELPERS = (
    ("multiprocessing.forkserver", "_forkserver"),
    ("multiprocessing.resource_tracker", "_resource_tracker"),
)
"""The processes beside the workers; Python's own tests end them with the method that is called here."""


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


def how_ended(status: int) -> str:
    """How a process ended, by a signal if negative: ``exited with status 3``, ``was killed by SIGSEGV``."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def end_workers(patience_seconds: float = 1.0) -> None:
    """End the daemons that :mod:`multiprocessing` started here, and its two helpers where nobody needs them.

    A loader's workers that a fork server started would outlive this process for good, and the helpers hold
    copies of its standard output.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    for end in ("terminate", "kill"):
        daemons = [child for child in multiprocessing.active_children() if child.daemon]
        for child in daemons:
            getattr(child, end)()
        limit = time.monotonic() + patience_seconds
        for child in daemons:
            child.join(max(0.0, limit - time.monotonic()))
    if not multiprocessing.active_children():
        for module, name in _HELPERS:
            stop = getattr(getattr(sys.modules.get(module), name, None), "_stop", None)
            if stop is not None:
                # It waits for the helper's end, which whoever got a copy of its pipe can hold up.
                stopping = threading.Thread(target=stop, daemon=True)
                stopping.start()
                stopping.join(patience_seconds)


def in_forks(method: Callable[[], object]) -> None:
    """Have a bound method called in every process that this one forks, while its object lives."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        method = found()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=call)


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
        _remove_files()
    finally:
        # Not sys.exit: what the parent would do on its way out is not the child's to do.
        os._exit(status)


def _remove_files() -> None:
    """Let :mod:`multiprocessing` remove its folders, as where Python exits, if it would wait for nobody."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and not multiprocessing.active_children():
        multiprocessing.util._exit_function()
