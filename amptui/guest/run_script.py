"""The command `run`: starts a script of the user's in a fresh process and shows the run that it opens.

On a terminal, the script leads a session of its own, and its output goes to a file, which is copied to the
terminal until the script calls ``amptui.observe()`` or, with ``--observe``, makes its first step: then the
screen opens. Without a screen, the script has this process's streams and terminal.
"""

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from amptui.base.errors import RunFolderError, TerminalClosedError, UsageError
from amptui.base.fork import ChildProcess, how_ended
from amptui.base.prompt import complain
from amptui.base.runfiles import open_file
from amptui.base.text import write_line
from amptui.guest.handover import UNSAVED_FILE, environment
from amptui.process.launch import left_running, tell
from amptui.process.stop_signals import (
    BY_SCHEDULER,
    blocked_stop_signals,
    received_now,
    received_within,
)
from amptui.records.keeping import UNSAVED_STATUS
from amptui.records.run import Note, Record, RunFailed, RunFinished
from amptui.runs.rundir import RunDir, create_run_dir, folder_name
from amptui.runs.socket_place import connect

if TYPE_CHECKING:
    from amptui.telemetry.view import SessionView

_POLL_SECONDS = 0.05

_PASSED_ON = (signal.SIGHUP, signal.SIGTERM, *BY_SCHEDULER)
"""Signals to this process that are meant for the script, as SIGINT is unless it is a terminal's Ctrl+C."""

_TORCHRUN = "torch.distributed.run"
"""The module that ``torchrun`` runs."""

NEVER_CALLED = "the script opened no amptui run, so nothing was recorded; see amptui.observe() or --observe"

_ENDING_SECONDS = 1.0
"""How long a process may take to end after its connections."""

NO_STEP = "the script's process made no step with an optimizer of torch.optim, so nothing was recorded"


@dataclass(frozen=True, slots=True)
class Script:
    """What is run, and where its run is kept."""

    interpreter_options: Sequence[str]
    command: Sequence[str]
    folder: RunDir
    observe: bool
    """Whether the script itself says nothing of amptui."""
    launches: bool
    """Whether it is torchrun, which starts the script."""


def run_script(
    command: Sequence[str],
    *,
    run_dir: Path | None,
    observe: bool,
    screen: bool,
    quiet: bool,
) -> int:
    """Run ``python command``, on the ``screen`` or passed through; return the exit status.

    ``observe``: also if it never calls amptui. A command that begins with ``torchrun`` starts its ranks.

    That of the script if this process stays to its end; 128 + N where signal N ended it; instead of 0
    ``UNSAVED_STATUS`` if not all records are saved. Raises UsageError and RunFolderError.
    """
    script = plan_script(command, run_dir, observe=observe)
    if not screen:
        return _pass_through(script)
    # A signal without a handler would end this process and leave the script unattended.
    with blocked_stop_signals():
        return _show(script, quiet=quiet)


def plan_script(command: Sequence[str], run_dir: Path | None, *, observe: bool) -> Script:
    """What ``python command`` runs, with the folder of its run. Raises UsageError and RunFolderError."""
    options: tuple[str, ...] = ()
    if command[0] == "torchrun" and not os.path.exists("torchrun"):  # noqa: PTH110 - as below
        # The program torchrun imports nothing from the current folder, as `python -m` alone would.
        options, command = ("-P",), ("-m", _TORCHRUN, *command[1:])
    if command[0] not in ("-m", "-") and not os.path.exists(command[0]):  # noqa: PTH110 - a path may be too long
        raise UsageError(f"no script {command[0]!r}", hint="check the path, or use -m MODULE")
    folder = create_run_dir(run_dir, script_name(command))
    return Script(options, command, folder, observe, launches=_launched(command) is not None)


def script_name(command: Sequence[str]) -> str:
    """What the run is called: the script's file without its suffix, or the last part of a module's name."""
    if launched := _launched(command):
        command = launched
    if command[0] == "-m":
        return folder_name(command[1].rpartition(".")[2])
    return folder_name(Path(command[0]).stem)


def _launched(command: Sequence[str]) -> Sequence[str] | None:
    """What torchrun starts, from the script on, as far as a look at its options tells; else None."""
    if command[0] == "-m" and command[1] == _TORCHRUN:
        arguments = command[2:]
    elif Path(command[0]).name == "torchrun":
        arguments = command[1:]
    else:
        return None
    for index, argument in enumerate(arguments):
        if argument.endswith(".py"):
            return arguments[index:]
        if argument in ("-m", "--module") and index + 1 < len(arguments):
            return "-m", *arguments[index + 1 :]
    return "torchrun", *arguments


def _pass_through(script: Script) -> int:
    """Run the script with the streams, terminal and session of this process."""
    complain(f"recording {script.folder.path}")
    passed_signals = {n for n in (signal.SIGINT, *_PASSED_ON) if signal.getsignal(n) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_signals, signal.SIGCHLD})
    try:
        child = spawn(script)
        while child.status is None:
            arrival = received_within(_POLL_SECONDS, {*passed_signals, signal.SIGCHLD})
            if arrival is None or arrival.number not in passed_signals:
                continue
            # A terminal's Ctrl+C the script has too: it is in the same process group.
            if not (arrival.number == signal.SIGINT and arrival.is_from_kernel):
                _pass_on(child.pid, arrival.number)
        while received_now(passed_signals):  # what came too late for the script would end this process
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _report(script, child, log_is_own=False)
    return _exit_status(child.status, script.folder)


def _pass_on(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _show(script: Script, *, quiet: bool) -> int:
    """Run the script behind the screen; once that is closed, show the rest of the script's output."""
    path, log = script.folder.path, script.folder.output_path
    log_is_own = not os.path.lexists(log)  # a folder of the user's may hold a log of theirs
    child = spawn(script, to_log=True)
    awaited = "makes its first step" if script.observe else "calls amptui.watch() or observe()"
    complain(f"the screen opens when the script {awaited}; Ctrl+C interrupts the script")
    with log.open("rb") as output_file:
        connection = _follow_output(child, output_file, opens=path)
        if connection is None:
            _report(script, child, log_is_own=log_is_own)
            return _exit_status(child.status, script.folder)
        from amptui.process.followers import LocalFollower
        from amptui.process.viewer import watch_run

        run = LocalFollower(connection, path, lambda: _end_words(script, child.wait(_ENDING_SECONDS)))
        viewing = watch_run(run, attached=False, quiet=quiet)
        stands = f"the script is still running (pid {child.pid}), although it was asked to stop"
        view, status = viewing.view, left_running(viewing, run, stands)
        if status is not None:
            return status
        output_file.seek(0, os.SEEK_END)
        is_known = view.run is not None  # not if it was over before the screen could ask
        if not is_known or _has_ended(view.outcome):
            _follow_output(child, output_file)
        unsaved_status = _report(script, child, view if is_known else None, log_is_own=log_is_own)
        _follow_output(child, output_file)
        return _exit_status(child.status, script.folder) or unsaved_status


def spawn(script: Script, *, to_log: bool = False) -> ChildProcess:
    """Start it; ``to_log`` in a session of its own, reading nothing, with its output in the folder's file."""
    how = {"observe": script.observe, "launches": script.launches}
    variables = environment(os.environ, str(script.folder.path.absolute()), **how)
    files: list[Any] = []
    if to_log:
        variables |= {"PYTHONUNBUFFERED": "1"}  # a file gets lines in blocks otherwise
        log = str(script.folder.output_path)
        os.close(open_file(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))  # raises for what is no file
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the kernel would discard how the script ended
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, *script.interpreter_options, *script.command],
        variables,
        file_actions=files,
        setsid=to_log,
        setsigmask=(),
    )
    return ChildProcess(pid)


def _follow_output(
    child: ChildProcess, output_file: BinaryIO, *, opens: Path | None = None
) -> socket.socket | None:
    """Copy the script's output to the terminal until it ends. For signals see :func:`_pass_signals`.

    If it ``opens`` a run in that folder, return the connection to that.
    """
    while child.status is None:
        _copy(output_file)
        if opens is not None:
            with suppress(RunFolderError):
                return connect(opens)
        _pass_signals(child)
    _copy(output_file)
    return None


def _pass_signals(child: ChildProcess) -> None:
    """Wait a moment for stop signals, which are blocked, and send them to the script.

    A closed terminal raises TerminalClosedError.
    """
    arrival = received_within(_POLL_SECONDS)
    if arrival is not None and arrival.number == signal.SIGHUP:
        raise TerminalClosedError("the terminal was closed; the script goes on")
    if arrival is not None:
        _pass_on(child.pid, arrival.number)


def _copy(output_file: BinaryIO) -> None:
    with suppress(OSError):
        shutil.copyfileobj(output_file, sys.stdout.buffer)
        sys.stdout.flush()


def _report(
    script: Script, child: ChildProcess, view: "SessionView | None" = None, *, log_is_own: bool
) -> int:
    """Tell what was recorded, or that nothing was, and return the status of a run that is not all saved.

    After a screen, whose last ``view`` this is, or on standard error after the script's own output.
    ``log_is_own``: the file of the output is this process's, and is not needed any more if nothing was.
    """
    folder, is_shown = script.folder, view is not None
    if view is None and not folder.journal_path.exists():
        if (folder.path / UNSAVED_FILE).exists():  # by a fault, which was told
            complain("nothing was recorded")
        else:
            complain(NO_STEP if script.observe else NEVER_CALLED)
        with suppress(OSError):
            if log_is_own:
                folder.output_path.unlink(missing_ok=True)  # all of it was shown
            folder.path.rmdir()
        return 0
    from amptui.diagnosis.event_words import run_ended
    from amptui.diagnosis.summary import summary_lines, tell_unsaved
    from amptui.runs.journal import JournalReader
    from amptui.telemetry.session import Session

    if view is None:
        session = Session(str(folder.path))
        session.fold(JournalReader(folder.journal_path))
        view = session.view()
    if child.status is not None and _has_ended(view.outcome):
        view = _with_last_record(script, child.status, view)
    if is_shown:
        tell("", *summary_lines(view))
    for line in () if is_shown else summary_lines(view):
        write_line(sys.stderr, line)
    if isinstance(view.outcome, RunFailed):
        log = f" (all output: {folder.output_path})" if is_shown else ""
        complain(f"{run_ended(view.outcome)}{log}")
    return tell_unsaved(view.not_kept) if is_shown else 0  # else the script has said so


def _has_ended(outcome: RunFinished | RunFailed | None) -> bool:
    """Whether the run ended with its script, whose exit status says how."""
    return outcome is None or (isinstance(outcome, RunFinished) and outcome.reason == "ended")


def _with_last_record(script: Script, status: int, view: "SessionView") -> "SessionView":
    """``view`` with the journal's last record, by the exit status: 0 is done, any other a failure.

    The script itself cannot write it: Python tells it nothing of a ``sys.exit(1)``, and one that is killed,
    or leaves by ``os._exit``, has no time for it.
    """
    now, ended, step = time.time(), view.outcome, view.step
    records: list[Record] = []
    last: RunFinished | RunFailed
    if status:
        error = _end_words(script, status)
        last = RunFailed(time=now, step=step, error=error, traceback="")
    elif isinstance(ended, RunFinished):
        last = ended if ended.unwatched else replace(ended, reason="done")
    else:
        text = f"{_end_words(script, status)}: its last steps may be missing"
        records.append(Note(time=now, severity="warning", text=text))
        last = RunFinished(time=now, steps=step, seconds=view.elapsed_seconds or 0.0, reason="done")
    from amptui.runs.journal import Journal

    try:
        journal = Journal(script.folder.journal_path)
        journal.append([*records, last])
        journal.close()
    except RunFolderError as trouble:
        complain(str(trouble))
    return replace(view, outcome=last)


def _end_words(script: Script, status: int | None) -> str:
    """How the script ended; empty if it goes on."""
    return "" if status is None else f"{'torchrun' if script.launches else 'the script'} {how_ended(status)}"


def _exit_status(status: int | None, folder: RunDir) -> int:
    """The script's as a shell gives it; of one that ended well but whose run is not all saved, that."""
    is_unsaved = False
    with suppress(OSError):
        (folder.path / UNSAVED_FILE).unlink()
        is_unsaved = True
        folder.path.rmdir()  # if nothing was recorded
    if status == 0:
        return UNSAVED_STATUS if is_unsaved else 0
    return 1 if status is None else status if status > 0 else 128 - status
