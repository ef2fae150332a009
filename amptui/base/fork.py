"""Runs a function in a child process without a terminal, and reports how it ended."""

import os
import signal
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable

_LOOK_INTERVAL_SECONDS = 0.02

_HELPERS = (
    ("multiprocessing.forkserver", "_forkserver"),
    ("multiprocessing.resource_tracker", "_resource_tracker"),
)
"""multiprocessing's helper processes; Python's own tests stop them with the method called here."""


class ChildProcess:
    """The child process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal as in :mod:`subprocess`; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, timeout_seconds: float) -> int | None:
        """Wait for at most so long; return the exit status, or None if it is still running."""
        limit = time.monotonic() + timeout_seconds
        while self.status is None and time.monotonic() < limit:
            time.sleep(_LOOK_INTERVAL_SECONDS)
        return self.status


def how_ended(status: int) -> str:
    """How a process ended, by a signal if negative: ``exited with status 3``, ``was killed by SIGSEGV``."""
    if status >= 0:
        return f"exited with status {status}"
    if -status == signal.SIGKILL:  # which leaves no word of its own
        return "was killed by SIGKILL (out of memory, a scheduler, or `kill -9`)"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def end_workers(patience_seconds: float = 1.0) -> None:
    """Terminate the daemons that :mod:`multiprocessing` started here, and its two helpers if unused.

    DataLoader workers started by a fork server would outlive this process, and the helpers hold copies of its
    standard output.
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
                # It waits for the helper's end, which any process with a copy of its pipe can delay.
                stopping = threading.Thread(target=stop, daemon=True)
                stopping.start()
                stopping.join(patience_seconds)


def in_forks(method: Callable[[], object]) -> None:
    """Call a bound method in every process that this one forks, as long as its object lives."""
    method_reference = weakref.WeakMethod(method)

    def call() -> None:
        method = method_reference()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=call)


def fork(work: Callable[[], int]) -> ChildProcess:
    """Call ``work`` in a child that leads a session without a terminal; its return value is the exit status.

    Call it while there is only one thread. The child's standard input is empty. Its standard output, and its
    standard error unless that is a file, are discarded until they are captured: a terminal or the reader of a
    pipe may close before the child ends, and would otherwise wait for it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # If SIGCHLD was ignored by our parent, the kernel discards how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1) if stat.S_ISREG(os.fstat(2).st_mode) else (0, 1, 2):
                os.dup2(nothing, descriptor)
            os.close(nothing)
            status = work()
            # multiprocessing removes its folders, as at Python's exit, if that waits for nothing.
            multiprocessing = sys.modules.get("multiprocessing")
            if multiprocessing is not None and not multiprocessing.active_children():
                multiprocessing.util._exit_function()
        finally:
            # Not sys.exit: the parent's exit handlers must not run in the child.
            os._exit(status)
    return ChildProcess(pid)
