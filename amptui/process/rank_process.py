"""One rank's process: rank 0 is a run as any other, the others train beside it and say nothing.

``python -P -m amptui.process.rank_process`` is what the launcher starts once for each rank.
"""

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from amptui.base.errors import AmptuiError, RunFolderError, UsageError
from amptui.base.fork import end_workers
from amptui.base.notify_url import take_url
from amptui.base.prompt import complain, show_traceback
from amptui.base.stacks import print_stacks_if_killed, stacks_if_killed
from amptui.device.sampler import watch_gpu
from amptui.process.stop_signals import StopSignals, blocked_stop_signals
from amptui.process.training import Stopping, leave_at_once, redirect_output, run_for_viewers, run_plainly
from amptui.ranks.launchers import world_of
from amptui.ranks.world import World, refuse_unsupported
from amptui.recipe.request import ModelSpec, TrainRequest, parse_model
from amptui.records.control import tell_nobody
from amptui.records.keeping import UNSAVED_STATUS
from amptui.records.run import Record, RunFailed
from amptui.runs.journal import Journal
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir
from amptui.runs.trust import resume_command

RANK_VARIABLE = "AMPTUI_RANK"
"""The environment's variable in which a rank's process is told what to train."""

IMPORT_PATH_VARIABLE = "AMPTUI_RANK_IMPORT_PATH"
"""The environment's variable with the launcher's ``sys.path``."""

_LOOK_INTERVAL_SECONDS = 0.5

_DYING_SECONDS = 8.0
"""How long a killed process may hold its files: the kernel frees its memory first."""

_SIGNALLED = 128
"""An exit status from here on tells the number of the signal that asked the run to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What the launcher tells each rank."""

    request: TrainRequest
    run_dir: RunDir
    shown: bool
    """Whether screens show the run; else rank 0 writes lines."""
    json: bool
    quiet: bool

    def text(self) -> str:
        """As JSON, for :data:`RANK_VARIABLE`."""
        return json.dumps(
            {
                "asked": self.request.as_json(),
                "resume": self.request.resume,
                "run_dir": str(self.run_dir.path.absolute()),
                "shown": self.shown,
                "json": self.json,
                "quiet": self.quiet,
            }
        )

    @classmethod
    def parse(cls, text: str) -> "RankPlan":
        """Inverse of :meth:`text`."""
        fields: dict[str, Any] = json.loads(text)
        run_dir = RunDir(Path(fields.pop("run_dir")))
        request = TrainRequest.from_json(fields.pop("asked"))
        request = replace(
            request,
            checkpoint_dir=run_dir.checkpoints_path,
            resume=bool(fields.pop("resume")),
            interactive=False,
        )
        return cls(request=request, run_dir=run_dir, **fields)


def run_rank(plan: RankPlan, world: World) -> int:
    """Train as one rank; return its exit status.

    Ranks that were started again go on where the earlier ones were, or begin if those had not.
    """
    if world.restart:
        from amptui.ranks.store.launcher_store import LauncherStore

        if (final_status := LauncherStore(world).final_status) is not None:
            return final_status
    if world.leads and world.restart and not plan.run_dir.path.is_dir():
        _end_for_good(world, RunFolderError.exit_status)
        what = f"{socket.gethostname()}, where rank 0 runs now, does not see {plan.run_dir.path}"
        raise RunFolderError(what, hint="use a folder that all machines share")
    request = replace(plan.request, resume=plan.request.resume or world.restart > 0, nproc=world.size)
    spec = parse_model(request.model)
    with blocked_stop_signals():
        if not world.leads:
            take_url()  # rank 0 sends the news
            if plan.shown:
                redirect_output(plan.run_dir.output_path, (1, 2))
            else:  # what another rank's model prints
                os.dup2(2, 1)
            print_stacks_if_killed()
            return _follow(request, spec, world, plan)
        if plan.shown:
            with stacks_if_killed(plan.run_dir.output_path):
                status = run_for_viewers(request, spec, plan.run_dir, None, world=world)
        else:
            print_stacks_if_killed()
            status = run_plainly(request, spec, plan.run_dir, json=plan.json, quiet=plan.quiet, world=world)
    # To the launcher everything but 0 is a failure: a run that was asked to stop would be started again.
    if world.starts_again and status >= _SIGNALLED:
        return 0
    if world.starts_again and status == UNSAVED_STATUS:
        _end_for_good(world, status)
    return status


def _end_for_good(world: World, status: int) -> None:
    """Let ranks that are started again end with ``status`` at once: the training is done."""
    from amptui.ranks.store.launcher_store import LauncherStore

    with suppress(RuntimeError):  # the launcher is gone: nobody is started again
        LauncherStore(world).refuse(status)


def run_under_launcher(world: World, make_plan: Callable[[World], RankPlan], *, resumes: bool) -> int:
    """Train as one of the ranks that torchrun or another launcher started; return the exit status.

    ``make_plan`` is called at rank 0 only, and not again after a restart, unless the store has ended with the
    ranks: then it has to know the run, as it does if it ``resumes`` one. What it raises passes through.
    """
    _quiet_torch()
    from amptui.ranks.store.launcher_store import LauncherStore, meet_at_start

    world = meet_at_start(world)
    plan = LauncherStore(world).share_plan(lambda: make_plan(world).text(), resumes=resumes)
    return plan if isinstance(plan, int) else run_rank(RankPlan.parse(plan), world)


def _follow(request: TrainRequest, spec: ModelSpec, world: World, plan: RankPlan) -> int:
    """Train as a rank other than 0, which records what all ranks do; return the exit status."""
    from amptui.ranks.thread import RankThread

    way_on = partial(resume_command, plan.run_dir.path)  # this rank may write the end for rank 0
    thread = RankThread(request, spec, tell_nobody, world, watch_gpu=watch_gpu, resume_command=way_on)
    control = thread.control
    stopping = Stopping(thread, control, timeout_seconds=request.stop_timeout)
    with StopSignals(control.ask, hung_up=lambda: None, busy=lambda: stopping.waits, closes=True):
        gc.enable()
        thread.start()
        while not thread.ended.wait(_LOOK_INTERVAL_SECONDS) and not control.stop_reason:
            pass
        if not stopping.wait():
            complain(f"rank {world.rank}: {stopping.why_given_up()}")
            os._exit(1)
        show_traceback(thread.traceback, prefix=f"[rank{world.rank}]: ")
        thread.close()
        end_workers()
        if thread.last_records:
            _write_for_rank_0(plan, thread.last_records)
    return 0 if thread.error is None else thread.error.exit_status  # rank 0 tells why the run failed


def _write_for_rank_0(plan: RankPlan, records: Sequence[Record]) -> None:
    """Close the journal of a rank 0 that did not answer, once it is dead, and say why on the terminal."""
    for record in records:
        if isinstance(record, RunFailed) and RANK_VARIABLE not in os.environ:  # else the launcher says so
            complain(record.error)
    limit = time.monotonic() + _DYING_SECONDS
    while True:
        try:
            with RunLock.take(plan.run_dir.path):
                journal = Journal(plan.run_dir.journal_path)
                journal.append(records)
                journal.close()
        except RunFolderError as error:
            if time.monotonic() < limit:
                continue  # the lock, which waits a moment, is released when the process is gone
            complain(str(error))
        return


def _quiet_torch() -> None:
    """Before torch is imported, which says in two hundred lines that a launcher's store has ended."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _main(environment: Mapping[str, str]) -> int:
    world = world_of(environment)
    if world is None or RANK_VARIABLE not in environment:
        raise UsageError("this is a rank of `amptui train --nproc N`", hint="start it so")
    _quiet_torch()
    sys.path[:] = json.loads(environment[IMPORT_PATH_VARIABLE])
    plan = RankPlan.parse(environment[RANK_VARIABLE])
    refuse_unsupported(plan.request, world.size)
    return run_rank(plan, world)


if __name__ == "__main__":
    try:
        ended = _main(os.environ)
    except AmptuiError as error:
        complain(str(error))
        ended = error.exit_status
    leave_at_once(ended)
