"""The runs of this machine for the list on the screen: their entries and their rows."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from amptui.base import units
from amptui.base.text import one_line
from amptui.diagnosis.words import long_words
from amptui.records.ranks import RankLost
from amptui.runs.find import listed_runs
from amptui.runs.kept_run import KeptRun, NewestSteps, look_at, newest_steps, silent_seconds
from amptui.runs.rundir import RunDir
from amptui.telemetry.rank_watch import judge_ranks
from amptui.tui.run_list.reader import RunEntry, RunRow


def runs_here() -> Sequence[RunEntry]:
    """All saved runs of this user on this machine.

    Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    return [
        RunEntry(
            run=folder,
            name=Path(folder).name,
            is_live=is_live,
            written=written,
            read=partial(read_row, folder),
        )
        for folder, is_live, written in listed_runs()
    ]


def read_row(folder: str) -> RunRow:
    """The row of the run in ``folder``, read from both ends of its journal. Never raises."""
    run_dir, now = RunDir(Path(folder)), time.time()
    run = look_at(run_dir)
    newest = newest_steps(run_dir.journal_path)
    return _row(run, newest, silent_seconds(run, newest, now), now)


def _row(run: KeptRun, newest: NewestSteps, silent: float | None, now: float) -> RunRow:
    seconds, until = None, now if run.is_live else newest.last_time
    if run.started is not None and until is not None:
        seconds = max(0.0, until - run.started)
    return RunRow(
        state="stalled" if silent is not None else run.state,
        model=run.model,
        precision=run.precision,
        step=run.step,
        total_steps=run.total_steps,
        losses=newest.losses,
        seconds=seconds,
        written=run.written,
        detail=_detail(run, newest, silent),
    )


def _detail(run: KeptRun, newest: NewestSteps, silent: float | None) -> str:
    if run.error is not None:
        return one_line(run.error)
    if run.state == "died":  # why, by its own last words; empty if it was killed without any
        if isinstance(newest.trouble, RankLost):
            return one_line(long_words(judge_ranks(newest.trouble)))
        return "" if newest.trouble is None else one_line(newest.trouble.text.partition("\n")[0])
    if silent is not None:
        return f"nothing new for {units.duration(silent)}"
    if run.is_live:
        place = "" if run.is_here else f" on {run.host}"
        return one_line(f"{run.device or 'starting'}{place}, pid {run.pid}" if run.pid else f"live{place}")
    return one_line(run.device_name or "")
