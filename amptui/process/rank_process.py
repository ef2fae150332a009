"""One rank's process: rank 0 is a run as any other, the others train beside it and say nothing.

``python -P -m amptui.process.rank_process`` is what the launcher starts once for each rank.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from amptui.base.errors import AmptuiError, UsageError
from amptui.base.notify_url import take_url
from amptui.base.prompt import complain
from amptui.process.plan import RANK_VARIABLE, Plan
from amptui.process.stop_signals import blocked_stop_signals
from amptui.process.training import leave_at_once, redirect_output, run_training
from amptui.ranks.launchers import world_of
from amptui.ranks.world import World, refuse_unsupported
from amptui.records.keeping import UNSAVED_STATUS

IMPORT_PATH_VARIABLE = "AMPTUI_RANK_IMPORT_PATH"
"""The environment's variable with the launcher's ``sys.path``."""

_SIGNALLED = 128
"""An exit status from here on tells the number of the signal that asked the run to stop."""


def run_rank(plan: Plan, world: World) -> int:
    """Train as one rank; return its exit status.

    Ranks that were started again go on where the earlier ones were, or begin if those had not.
    """
    if world.restart:
        from amptui.ranks.store.launcher_store import LauncherStore

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
        from amptui.ranks.store.launcher_store import LauncherStore

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
    from amptui.ranks.store.launcher_store import LauncherStore, meet_at_start

    world = meet_at_start(world)
    plan = LauncherStore(world).share_plan(lambda: make_plan(world).text(), resumes=resumes)
    return plan if isinstance(plan, int) else run_rank(Plan.parse(plan), world)


def _quiet_torch() -> None:
    """Before torch is imported, which says in two hundred lines that a launcher's store has ended."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _main(environment: Mapping[str, str]) -> int:
    world = world_of(environment)
    if world is None or RANK_VARIABLE not in environment:
        raise UsageError("this is a rank of `amptui train --nproc N`", hint="start it so")
    _quiet_torch()
    sys.path[:] = json.loads(environment[IMPORT_PATH_VARIABLE])
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
