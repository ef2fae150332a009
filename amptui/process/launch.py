"""The commands `train` and `attach`: start a run's process, show it, report how it ended.

A run forks before anything heavy is imported: its process imports torch while this one draws the screen.
"""

import os
import signal
import socket
import stat
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from amptui.base.errors import OutputError, RunFolderError, UsageError
from amptui.base.fork import ChildProcess, fork, how_ended
from amptui.base.prompt import complain, say, show_traceback
from amptui.base.terminal import can_show_a_screen
from amptui.process.plan import Plan
from amptui.process.stop_signals import blocked_stop_signals
from amptui.records.run import PhaseChanged, RunFailed
from amptui.runs.find import live_run
from amptui.runs.rundir import RunDir, resume_command

if TYPE_CHECKING:
    from amptui.process.followers import Follower
    from amptui.process.viewer import ViewerEnd

_DYING_SECONDS = 1.0
"""How long a process may take to end after its connections, which end with it."""

_ENDING_SECONDS = 20.0
"""How long a run's process may take to exit after its last record, for example to close a file."""


def train(plan: Plan, *, detach: bool) -> int:
    """Run one training, on the screen or with plain output; return the exit status."""
    # A signal without a handler would end this process and leave the run unattended.
    with blocked_stop_signals():
        if not plan.request.interactive:
            return _run(plan)
        ours, theirs = socket.socketpair()

        def work() -> int:
            ours.close()
            return _run(plan, theirs)

        child = fork(work)
        theirs.close()
        from amptui.process.followers import LocalFollower
        from amptui.process.viewer import follow_until_first_step, watch_run

        run = LocalFollower(
            ours,
            plan.run_dir.path,
            lambda: _killed_words(child, plan.run_dir),
            is_starting=plan.request.nproc > 1,
        )
        if detach:
            return _conclude(follow_until_first_step(run), run, child)
        # What the run's process does now: this one shows it before the first record arrives.
        phase = PhaseChanged(time=time.time(), phase="importing", detail="importing torch")
        watched = watch_run(run, attached=False, quiet=plan.quiet, phase=phase)
        return _conclude(watched, run, child)


def _run(plan: Plan, viewer: socket.socket | None = None) -> int:
    """Train in this process, or in one for each rank."""
    if plan.request.nproc > 1:
        from amptui.process.elastic import run_ranks

        return run_ranks(plan, viewer)
    from amptui.process.training import run_training

    return run_training(plan, viewer)


def attach(text: str, *, quiet: bool = False) -> int:
    """Watch a live run; return the exit status. Raises UsageError, RunFolderError and RemoteError.

    ``quiet``: the terminal gets no bell and no notification.
    """
    if not can_show_a_screen():
        raise UsageError("attach needs a terminal", hint="`amptui runs` lists runs without one")
    from amptui.process.followers import LocalFollower, RemoteFollower
    from amptui.process.viewer import watch_run
    from amptui.runs.remote import connect, remote_of
    from amptui.runs.socket_place import connect_to_live

    with ExitStack() as stack:
        run: Follower
        if (remote := remote_of(text)) is not None:
            ssh = stack.enter_context(closing(connect(remote)))  # it sends what the screen said last
            run = RemoteFollower(remote, ssh)
        else:
            folder = live_run(text).path
            run = LocalFollower(connect_to_live(folder), folder)
        watched = watch_run(run, attached=True, quiet=quiet)
    return _conclude(watched, run)


def left_running(watched: "ViewerEnd", run: "Follower", still_stopping: str) -> int | None:
    """Report to a user who left a run that goes on, or is ``still_stopping``; return the exit status.

    None if the run has ended.
    """
    if watched.left == "hung up":
        return 128 + (watched.signal or signal.SIGHUP)  # the terminal may be gone
    if watched.over:
        return None
    if run.stop_reason is not None:
        tell("", still_stopping)
        return 128 + (watched.signal or signal.SIGINT)
    if watched.error:
        complain(watched.error)
    stands = run.waiting or run.silence() or "training continues"
    tell("", f"detached at step {watched.view.step:,}; {stands}")
    tell(f"to watch it again: {run.attach_command}")
    return 128 + watched.signal if watched.signal is not None else int(bool(watched.error))


def _conclude(watched: "ViewerEnd", run: "Follower", child: ChildProcess | None = None) -> int:
    """Report how the run stands to a user who is back at the prompt; ``child`` trains it, if ours does."""
    stands = f"{run.waiting}: the run may not stop" if run.waiting else "the run is still stopping"
    stands = f"{stands} (step {watched.view.step:,}); `{run.list_command}` shows its status"
    status = left_running(watched, run, stands)
    if status is not None:
        return status
    ended = None if child is None else child.wait(_ENDING_SECONDS)
    from amptui.diagnosis.summary import summary_lines, tell_unsaved

    # The empty line first: without an alternate screen, the cursor may be in the middle of a line.
    tell("", *summary_lines(watched.view, resume_command(run.folder) if run.folder is not None else ""))
    outcome = watched.view.outcome
    if outcome is None:
        complain(run.lost_words(watched.error))
        return ended if ended is not None and ended > 0 else RunFolderError.exit_status
    unsaved_status = tell_unsaved(watched.view.not_kept)
    if isinstance(outcome, RunFailed):
        # Into a file the run's own process has written both.
        if child is None or not stat.S_ISREG(os.fstat(2).st_mode):
            show_traceback("" if child is None else outcome.traceback)
            complain(outcome.error)
        return ended or 1
    if watched.left == "interrupted" or watched.signal is not None:
        return 128 + (watched.signal or signal.SIGINT)
    return ended or unsaved_status


def tell(*lines: str) -> None:
    """Print it if possible; the exit status is the run's either way."""
    try:
        say(*lines)
    except OutputError as error:
        complain(str(error))


def _killed_words(child: ChildProcess, run_dir: RunDir) -> str:
    """How a run ended whose process was killed; empty if it was not."""
    status, log = child.wait(_DYING_SECONDS), run_dir.output_path
    if status is None or status >= 0:
        return ""
    what = f"the training process {how_ended(status)}"
    stacks = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
    if -status in stacks and log.exists():
        what = f"{what} (its stack: {log})"
    if not run_dir.holds_checkpoints:
        return f"{what} before its first checkpoint"
    return f"{what}; to resume from its last checkpoint: {resume_command(run_dir.path)}"
