"""The processes of a run of several ranks: torch's elastic launcher starts them, or another one has.

``python -P -m amptui.process.elastic`` is what the launcher starts once for each rank. Rank 0 is a run as any
other, the others train beside it and say nothing.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from amptui.base.cores import read_cores
from amptui.base.errors import AmptuiError
from amptui.base.fork import how_ended
from amptui.base.notify_url import take_url
from amptui.base.prompt import complain
from amptui.base.text import one_line
from amptui.process.capture import redirect_output
from amptui.process.plan import RANK_VARIABLE, Plan
from amptui.process.stop_signals import blocked_stop_signals, received_within
from amptui.process.training import leave_at_once, run_training
from amptui.ranks.world import World, refuse_unsupported, world_of
from amptui.records.keeping import UNSAVED_STATUS
from amptui.runs import protocol
from amptui.runs.lock import holder
from amptui.runs.rundir import RunDir, resume_command

_POLL_SECONDS = 0.2

_IMPORT_PATH_VARIABLE = "AMPTUI_RANK_IMPORT_PATH"
"""The environment's variable with the launcher's ``sys.path``."""

_SIGNALLED = 128
"""An exit status from here on tells the number of the signal that asked the run to stop."""


def run_ranks(plan: Plan, viewer: socket.socket | None = None) -> int:
    """Train with several ranks on this machine; return rank 0's exit status.

    ``viewer`` is a screen that is open already: it is let go once rank 0 is there, to which it then connects
    itself. Stop signals, which are blocked, are passed to rank 0 alone: all ranks then stop together. Before
    there are any, one ends this process.
    """
    launch = _Launch(plan)
    launch.start()
    folder = plan.run_dir.path
    waiting: list[int] = []  # stop signals for rank 0; one that starts after the first gets that one too
    first = 0
    leader_pid: int | None = None
    while launch.is_alive():
        received = received_within(_POLL_SECONDS)
        if received is not None and received.number != signal.SIGHUP:
            if not psutil.Process().children():
                complain("stopped before the ranks were started")  # whatever torch's launcher waits for
                leave_at_once(128 + received.number)
            first = first or received.number
            waiting.append(received.number)
        leader = holder(folder) if first or viewer is not None else None
        if leader is None or leader.pid is None:
            continue
        if viewer is not None:
            viewer.close()
            viewer = None
        if leader.pid != leader_pid and leader_pid is not None:
            waiting = [first]
        if waiting:
            leader_pid = leader.pid
            with suppress(ProcessLookupError):
                os.kill(leader.pid, waiting.pop(0))
    if viewer is not None:
        with suppress(OSError):  # the screen may have left
            why = launch.error or "rank 0 ended before it could be watched"
            viewer.sendall(protocol.encode(protocol.RunError(why)))
    return _status(launch, folder) or (128 + first if first else 0)


class _Launch(threading.Thread):
    """Torch's launcher: not in the main thread, where it would take the signals.

    It would send each to whole process groups, and kill the workers that load the data of a clean end.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(name="amptui-launcher", daemon=True)
        self._plan = plan
        self.failures: dict[int, Any] = {}
        """How each rank ended that failed, as torch tells it."""
        self.error = ""

    def run(self) -> None:
        logging.disable(logging.CRITICAL)  # the ranks tell what happened, in one line
        try:
            from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
            from torch.distributed.launcher.api import LaunchConfig, elastic_launch

            os.environ[RANK_VARIABLE] = self._plan.text()
            ranks = self._plan.request.nproc
            # Each rank would take all cores; torchrun leaves them one thread.
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, read_cores().usable // ranks)))
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=ranks,
                run_id=uuid.uuid4().hex,
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="localhost",
                max_restarts=self._plan.request.max_restarts,
                logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
            )
            # `python -m` alone would import json.py and the like from the current folder, which may not be on
            # the path of this process. The ranks get that path, and so import the model as one process would.
            path = [entry for entry in sys.path if isinstance(entry, str)]
            os.environ[_IMPORT_PATH_VARIABLE] = json.dumps(path)
            elastic_launch(config, sys.executable)("-P", "-m", "amptui.process.elastic")
        except Exception as error:  # noqa: BLE001 - whatever torch raises, a screen waits for its end
            self.failures = getattr(error, "failures", {})
            if not self.failures:
                self.error = one_line(f"{type(error).__name__}: {error}")


def _status(launch: _Launch, folder: Path) -> int:
    if launch.error:
        complain(f"the ranks could not be started: {launch.error}")
        return 1
    codes = {rank: failure.exitcode for rank, failure in launch.failures.items()}
    if codes.get(0, 0) > 0:
        return int(codes[0])
    if codes:
        first = min(launch.failures, key=lambda rank: (codes[rank] > 0, launch.failures[rank].timestamp))
        from amptui.runs.kept_run import look_at

        run_dir = RunDir(folder)
        run = look_at(run_dir) if run_dir.journal_path.exists() else None
        if 0 not in codes and run is not None and run.state == "failed" and run.error:
            return 1  # torch 2.9 knows only who failed first; rank 0 has said why
        resume_hint = f"; to resume from the last checkpoint: {resume_command(folder)}"
        ended = f"rank {first} {how_ended(codes[first])}"
        complain(f"{ended}{resume_hint}" if run_dir.holds_checkpoints else ended)
    return int(bool(codes))


def run_rank(plan: Plan, world: World) -> int:
    """Train as one rank; return its exit status.

    Ranks that were started again go on where the earlier ones were, or begin if those had not.
    """
    if world.restart:
        from amptui.ranks.launcher_store import LauncherStore

        if (final_status := LauncherStore(world).final_status) is not None:
            return final_status
    resumes = plan.request.resume or world.restart > 0
    plan = replace(plan, request=replace(plan.request, resume=resumes, nproc=world.size))
    with blocked_stop_signals():
        if not world.leads:
            take_url()  # rank 0 sends the news
            if plan.request.interactive:
                redirect_output(plan.run_dir.output_path, (1, 2))
            else:  # what another rank's model prints
                os.dup2(2, 1)
        status = run_training(plan, world=world)
    if not world.leads:
        return status
    # To the launcher everything but 0 is a failure: a run that was asked to stop would be started again.
    if world.starts_again and status >= _SIGNALLED:
        return 0
    if world.starts_again and status == UNSAVED_STATUS:
        from amptui.ranks.launcher_store import LauncherStore

        # The training is done: ranks that are started again end with that status at once.
        with suppress(RuntimeError):  # the launcher is gone: nobody is started again
            LauncherStore(world).refuse(status)
    return status


def run_under_launcher(world: World, make_plan: Callable[[World], Plan], *, resumes: bool) -> int:
    """Train as one of the ranks that torchrun or another launcher started; return the exit status.

    ``make_plan`` is called at rank 0 only, and not again after a restart, unless the store has ended with the
    ranks: then it has to know the run, as it does if it ``resumes`` one. What it raises passes through.
    """
    _quiet_torch()
    from amptui.ranks.launcher_store import LauncherStore, meet_at_start

    world = meet_at_start(world)
    plan = LauncherStore(world).share_plan(lambda: make_plan(world).text(), resumes=resumes)
    return plan if isinstance(plan, int) else run_rank(Plan.parse(plan), world)


def _quiet_torch() -> None:
    """Before torch is imported, which says in two hundred lines that a launcher's store has ended."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _main(environment: Mapping[str, str]) -> int:
    world = world_of(environment)
    assert world is not None, "the launcher starts each rank"
    _quiet_torch()
    sys.path[:] = json.loads(environment[_IMPORT_PATH_VARIABLE])
    plan = Plan.parse(environment[RANK_VARIABLE])
    refuse_unsupported(plan.request, world.size)
    return run_rank(plan, world)


if __name__ == "__main__":
    try:
        ended = _main(os.environ)
    except AmptuiError as error:
        complain(str(error))
        ended = error.exit_status
    leave_at_once(ended)
