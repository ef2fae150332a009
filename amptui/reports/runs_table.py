"""Prints the newest runs: a table that fits the terminal, or one JSON line for each run."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from amptui.base import strictjson, units
from amptui.base.prompt import complain, put, say
from amptui.base.table import Column, table_lines
from amptui.base.text import printable
from amptui.recipe.request import PAGE_RUNS
from amptui.runs.find import kept_names
from amptui.runs.kept_run import KeptRun, look_at
from amptui.runs.rundir import RunDir, default_base, run_argument

_MAX_NAME_CELLS = 40
"""Longer names are cut, so that one does not push columns off the screen for all others."""

_LINES_BESIDE_RUNS = 3
"""Lines of a terminal that the heading, the line about older runs and the prompt take."""


def list_runs(*, json: bool, out: TextIO, limit: int | None = None) -> int:
    """Print the newest of the user's runs to ``out``, the one written last first; return the exit status.

    At most ``limit`` runs; if it is None, as many as a terminal has lines for, or `PAGE_RUNS` in JSON and
    where ``out`` is no terminal. Of older runs no file is opened; how many there are is told below the table,
    or on standard error. With ``json`` each run is one object a line: ``type`` (Run), the fields of `KeptRun`
    and of its losses the newest. Raises ``RunFolderError`` if the folder of runs cannot be read,
    ``OutputError`` if the list cannot be written.
    """
    names, size = kept_names(), shutil.get_terminal_size() if out.isatty() and not json else None
    room = PAGE_RUNS if size is None else max(1, size.lines - _LINES_BESIDE_RUNS)
    runs = [look_at(RunDir(default_base() / name)) for name in names[: room if limit is None else limit]]
    if json:
        for run in runs:
            facts = {"type": "Run", **asdict(run), "loss": run.loss}
            del facts["losses"]  # there may be hundreds
            put(strictjson.line(facts), out)
    elif runs:
        say(*_table(runs, None if size is None else size.columns), out=out)
    else:
        say("no runs yet; `amptui train mnist-deep` starts one", out=out)
    if limit is None and len(names) > len(runs):
        older = f"{units.counted(len(names) - len(runs), 'older run')}: use `--all` or `--limit N`"
        if size is None:
            complain(older)
        else:
            say(set_cell_size(older, min(cell_len(older), size.columns)), out=out)
    return 0


def _table(runs: Sequence[KeptRun], width: int | None) -> list[str]:
    now = time.time()

    def column(title: str, cell: Callable[[KeptRun], str], priority: int = 0) -> Column[KeptRun]:
        return Column(title=title, cell=lambda run: printable(cell(run)), priority=priority, align="left")

    columns = (
        replace(column("run", lambda run: run_argument(run.folder)), max_width=_MAX_NAME_CELLS),
        column("state", lambda run: run.state if run.is_here else f"{run.state} on {run.host}"),
        column("model", lambda run: run.model or "", 5),
        column("precision", lambda run: run.precision or "", 3),
        column("progress", _progress, 1),
        column("written", lambda run: _age(run.written, now), 2),
        column("pid", lambda run: str(run.pid or ""), 4),
        column("device", lambda run: run.device or "", 6),
    )
    return table_lines(columns, runs, width)


def _progress(run: KeptRun) -> str:
    """``1,200/18,750 6%``; only the step for a run beyond its original goal."""
    if run.step is None:
        return ""
    if not run.total_steps or run.step > run.total_steps:
        return f"{run.step:,}"
    return f"{run.step:,}/{run.total_steps:,} {units.percent(run.step / run.total_steps)}"


def _age(unix_seconds: float | None, now: float) -> str:
    """``3 min ago``; ``now`` for a live run, and for times in the future after the clock was set back."""
    if unix_seconds is None:
        return ""
    seconds = now - unix_seconds
    return "now" if seconds < units.NOW_SECONDS else f"{units.in_one_unit(seconds)} ago"
