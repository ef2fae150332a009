"""The runs of this machine for the list on the screen: their entries, their rows, and their removal."""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from amptui.base import units
from amptui.base.text import one_line
from amptui.runs import removal
from amptui.runs.kept_run import KeptRun, look_at
from amptui.runs.newest_steps import NewestSteps, newest_steps, silent_seconds
from amptui.runs.recent import listed_runs
from amptui.runs.rundir import RunDir, default_base, run_argument_here
from amptui.tui.run_list.entry import RemovalPlan, RunEntry, RunRow, RunSource


def runs_here() -> RunSource:
    """All runs of this user on this machine."""
    return RunSource(entries=_entries, plan_removal=_plan_removal, remove=_remove)


def _entries() -> Sequence[RunEntry]:
    """Raises ``RunFolderError`` if the folder of all runs cannot be read."""
    saved = f"{default_base()}{os.sep}"
    return [
        RunEntry(
            run=run.folder,
            name=_name(run.folder, saved),
            is_live=run.is_live,
            written=run.written,
            read=partial(read_row, run.folder),
        )
        for run in listed_runs()
    ]


def _name(folder: str, saved: str) -> str:
    """The name of a run that is ``saved``, else its path."""
    return folder.removeprefix(saved) if folder.startswith(saved) else run_argument_here(Path(folder))


def read_row(folder: str) -> RunRow:
    """The row of the run in ``folder``, read from both ends of its journal. Never raises."""
    run_dir, now = RunDir(Path(folder)), time.time()
    run = look_at(run_dir)
    newest = newest_steps(run_dir.journal_path)
    silent = silent_seconds(run, newest, now)
    return RunRow(
        state="stalled" if silent is not None else run.state,
        model=run.model,
        precision=run.precision,
        step=run.step,
        total_steps=run.total_steps,
        losses=newest.losses,
        seconds=_seconds(run, newest, now),
        written=run.written,
        detail=_detail(run, silent),
    )


def _seconds(run: KeptRun, newest: NewestSteps, now: float) -> float | None:
    if run.started is None:
        return None
    if run.is_live:
        return max(0.0, now - run.started)
    return None if newest.last_time is None else max(0.0, newest.last_time - run.started)


def _detail(run: KeptRun, silent: float | None) -> str:
    if run.error is not None:
        return one_line(run.error)
    if silent is not None:
        return f"nothing new for {units.duration(silent)}"
    if run.is_live:
        place = "" if run.is_here else f" on {run.host}"
        return one_line(f"{run.device or 'starting'}{place}, pid {run.pid}" if run.pid else f"live{place}")
    return one_line(run.device_name or "")


def _plan_removal(folder: str) -> RemovalPlan:
    return _plan(removal.plan_removal(Path(folder)))


def _remove(folder: str) -> RemovalPlan:
    return _plan(removal.remove(Path(folder)))


def _plan(result: removal.Removal) -> RemovalPlan:
    return RemovalPlan(
        folder=str(result.folder),
        journals=result.journals,
        checkpoints=result.checkpoints,
        other_files=result.other_files,
        size_bytes=result.size_bytes,
        left=result.left,
    )
