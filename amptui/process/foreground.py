"""Runs parts of a command one after the other in children that have its terminal.

A screen must be alone in its process: it forks a guard of the terminal before numpy and Textual start
threads. So a process that shows one screen after another shows none itself, and starts no thread.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from amptui.base.errors import AmptuiError
from amptui.base.fork import Offspring
from amptui.base.prompt import complain
from amptui.process.stop_signals import received_within

_POLL_SECONDS = 0.5

_PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
"""Signals that end a screen. A terminal sends its own to all processes; others are meant for the screen."""


class Part(NamedTuple):
    """How a part ended."""

    status: int
    """As a shell has it: 128 + N after signal N."""
    said: str
    """What ``work`` returned besides, or the error that ended it."""


def in_foreground(work: Callable[[], tuple[int, str]]) -> Part:
    """Call ``work`` in a child with this terminal; it returns its exit status and what to say here.

    Call it while there is only one thread. An ``AmptuiError`` is printed as it is for a command of its own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # If SIGCHLD was ignored by our parent, the kernel discards how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    said = _memory_file()  # holds any amount before it is read, unlike a pipe
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    try:
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _work_and_exit(work, said)
        status = _status_of(Offspring(pid))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with os.fdopen(said, "rb") as file:
        file.seek(0)
        return Part(status, file.read().decode("utf-8", "surrogateescape"))


def _memory_file() -> int:
    """A file without a name; on macOS, which has none in memory, on the disk."""
    if sys.platform != "darwin":
        return os.memfd_create("amptui-said")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _status_of(offspring: Offspring) -> int:
    while offspring.status is None:
        arrival = received_within(_POLL_SECONDS, {*_PASSED_ON, signal.SIGCHLD})
        if arrival is not None and arrival.number in _PASSED_ON and not arrival.is_from_kernel:
            os.kill(offspring.pid, arrival.number)
    return offspring.status if offspring.status >= 0 else 128 - offspring.status


def _work_and_exit(work: Callable[[], tuple[int, str]], file: int) -> NoReturn:
    status, said = 1, ""
    try:
        status, said = work()
    except AmptuiError as error:
        complain(str(error))
        status, said = error.exit_status, str(error)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - the process ends with it, as any program does
        traceback.print_exc()
    finally:
        try:
            os.write(file, said.encode("utf-8", "surrogateescape"))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Not sys.exit: the parent's exit handlers must not run in the child.
            os._exit(status)
