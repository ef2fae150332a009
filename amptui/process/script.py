"""The command `run`: starts a script of the user's in a fresh process and shows the run that it opens.

On a terminal, the script leads a session of its own, its output goes to a file, and the screen opens once the
script calls ``amptui.observe()``. Without a screen, the script has this process's streams and terminal.
"""

import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from amptui.errors import RunFolderError, TerminalClosedError
from amptui.fork import Offspring
from amptui.process.launch import left_running, tell, watch_run
from amptui.process.stop_signals import BY_SCHEDULER, HEEDED, blocked_stop_signals
from amptui.prompt import complain
from amptui.records import RunFailed
from amptui.runfiles import open_file
from amptui.runs.rundir import RUN_DIR_VARIABLE, RunDir, create_run_dir, folder_name
from amptui.runs.socket_place import connect
from amptui.text import write_line

_POLL_SECONDS = 0.05

_PIECE_BYTES = 65536

_PASSED_ON = (signal.SIGHUP, signal.SIGTERM, *BY_SCHEDULER)
"""Signals to this process that are meant for the script; Ctrl+C reaches both by itself."""

NEVER_CALLED = "the script never called amptui, so nothing was recorded; see amptui.observe()"


def run_script(
    command: Sequence[str],
    *,
    run_dir: Path | None,
    screen: bool,
    frames_per_second: float | None,
    quiet: bool,
) -> int:
    """Run ``python command``, on the ``screen`` or passed through; return the exit status.

    That of the script if this process stays to its end; 128 + N where signal N ended it. Raises
    RunFolderError.
    """
    folder = create_run_dir(run_dir, script_name(command))
    if not screen:
        return _pass_through(command, folder)
    # A signal without a handler would end this process and leave the script unattended.
    with blocked_stop_signals():
        return _show(command, folder, frames_per_second, quiet=quiet)


def script_name(command: Sequence[str]) -> str:
    """What the run is called: the script's file without its suffix, or the last part of a module's name."""
    if command[0] == "-m":
        return folder_name(command[1].rpartition(".")[2])
    return folder_name(Path(command[0]).stem)


def _pass_through(command: Sequence[str], folder: RunDir) -> int:
    """Run the script with the streams, terminal and session of this process."""
    complain(f"recording {folder.path}")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_PASSED_ON)}
    offspring = Offspring(_spawn(command, folder))
    try:
        for number in (number for number, handler in before.items() if handler is not signal.SIG_IGN):
            # A terminal sends Ctrl+C to both.
            passes_on = number != signal.SIGINT
            signal.signal(number, partial(_pass_on, offspring.pid) if passes_on else lambda *_: None)
        status = offspring.wait(math.inf)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _report(folder)
    return _exit_status(status)


def _pass_on(pid: int, number: int, _frame: FrameType | None) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _show(command: Sequence[str], folder: RunDir, frames_per_second: float | None, *, quiet: bool) -> int:
    """Run the script behind the screen; until it opens, and once it is closed, show the script's output."""
    log = folder.path / "output.log"
    output = open_file(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        offspring = Offspring(_spawn(command, folder, output=output))
    finally:
        os.close(output)
    with log.open("rb") as written:
        connection = _follow_output(offspring, written, folder.path)
        if connection is None:
            _report(folder)
            return _exit_status(offspring.status)
        watched = watch_run(connection, folder.path, frames_per_second, attached=False, quiet=quiet)
        status = left_running(watched, folder.path)
        if status is not None:
            return status
        if not watched.over:
            tell("", f"the script is still running (pid {offspring.pid}), although it was asked to stop")
            return 128 + (watched.signal or signal.SIGINT)
        from amptui.summary import summary_lines

        if watched.view.run is None:  # it was over before the screen could ask
            _report(folder)
        else:
            tell("", *summary_lines(watched.view))
        if isinstance(watched.view.outcome, RunFailed):
            complain(f"{watched.view.outcome.error} (all output: {log})")
        written.seek(0, os.SEEK_END)
        _follow_output(offspring, written, None)
        return _exit_status(offspring.status)


def _spawn(command: Sequence[str], folder: RunDir, *, output: int | None = None) -> int:
    """Start ``python command``; with ``output`` in a session of its own, reading nothing. Returns its pid."""
    environment = {**os.environ, RUN_DIR_VARIABLE: str(folder.path.absolute())}
    files: list[Any] = []
    if output is not None:
        environment |= {"PYTHONUNBUFFERED": "1"}  # a file gets lines in blocks otherwise
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            *((os.POSIX_SPAWN_DUP2, output, descriptor) for descriptor in (1, 2)),
        ]
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the kernel would discard how the script ended
    return os.posix_spawn(
        sys.executable,
        [sys.executable, *command],
        environment,
        file_actions=files,
        setsid=output is not None,
        setsigmask=(),
    )


def _follow_output(offspring: Offspring, written: BinaryIO, folder: Path | None) -> socket.socket | None:
    """Copy the script's output to the terminal until it ends, or until its run in ``folder`` can be watched.

    Returns the connection to that run. Stop signals, which are blocked, go to the script; a closed terminal
    raises TerminalClosedError.
    """
    while offspring.status is None:
        _copy(written)
        if folder is not None:
            with suppress(RunFolderError):
                return connect(folder)
        received = signal.sigtimedwait(HEEDED, _POLL_SECONDS)
        if received is not None and received.si_signo == signal.SIGHUP:
            raise TerminalClosedError("the terminal was closed; the script goes on")
        if received is not None:
            _pass_on(offspring.pid, received.si_signo, None)
    _copy(written)
    return None


def _copy(written: BinaryIO) -> None:
    with suppress(OSError):
        while data := written.read(_PIECE_BYTES):
            sys.stdout.buffer.write(data)
        sys.stdout.flush()


def _report(folder: RunDir) -> None:
    """After the script's own output: what was recorded, on standard error, or that nothing was."""
    if not folder.journal_path.exists():
        complain(NEVER_CALLED)
        with suppress(OSError):
            (folder.path / "output.log").unlink(missing_ok=True)  # all of it was shown
            folder.path.rmdir()
        return
    from amptui.runs.journal import read
    from amptui.summary import summary_lines
    from amptui.telemetry.session import Session

    session = Session(str(folder.path))
    session.fold(list(read(folder.journal_path)))
    for line in summary_lines(session.view()):
        write_line(sys.stderr, line)


def _exit_status(status: int | None) -> int:
    """As a shell gives it."""
    return 1 if status is None else status if status >= 0 else 128 - status
