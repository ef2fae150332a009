"""Prints the newest runs: a table that fits the terminal, or one JSON line for each run."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
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
"""Longer names are cut, so that one does not push columns off the screen for all others. A path is not: its
beginning would name nothing."""

_LINES_BESIDE_RUNS = 3
"""Lines of a terminal that the heading, the line about older runs and the prompt take."""


def list_runs(*, json: bool, out: TextIO, limit: int | None = None) -> int:
    """Print the newest of the user's runs to ``out``, the one written last first; return the exit status.

    At most ``limit`` runs; if it is None, as many as a terminal has lines for, or `PAGE_RUNS` in JSON and
    where ``out`` is no terminal. Of older runs no file is opened; how many there are is told below the table,
    or on standard error. With ``json`` each run is one object a line: ``type`` (Run) and the fields of
    `KeptRun`. Raises ``RunFolderError`` if the folder of runs cannot be read, ``OutputError`` if the list
    cannot be written.
    """
    names, size = kept_names(), _size(out, json=json)
    runs = [look_at(RunDir(default_base() / name)) for name in names[: _page(len(names), size, limit)]]
    older, older_words = len(names) - len(runs), ""
    if older and (size is not None or limit is None):
        runs_words = f"{units.count(older)} older run{'s' if older > 1 else ''}"
        older_words = f"{runs_words}: use `--all` or `--limit N`"
    _show(runs, size, out, json=json, older=older_words)
    return 0


def _size(out: TextIO, *, json: bool) -> os.terminal_size | None:
    """Of the terminal that gets a table; None if none does."""
    return shutil.get_terminal_size() if out.isatty() and not json else None


def _page(runs: int, size: os.terminal_size | None, limit: int | None) -> int:
    """How many of so many ``runs`` to show."""
    if limit is not None:
        return limit
    if size is None:
        return PAGE_RUNS
    room = size.lines - _LINES_BESIDE_RUNS
    return runs if runs <= room + 1 else max(1, room)


def _show(
    runs: Sequence[KeptRun],
    size: os.terminal_size | None,
    out: TextIO,
    *,
    json: bool,
    older: str,
) -> None:
    """Print the runs, and what is said of ``older`` ones."""
    if json:
        put("".join(strictjson.line({"type": "Run", **asdict(run)}) for run in runs), out)
    elif runs:
        say(*_table(runs, size), out=out)
    else:
        say("no runs yet; `amptui train mnist-deep` starts one", out=out)
    if older and size is None:
        complain(older)
    elif older and size is not None:
        say(older if cell_len(older) <= size.columns else set_cell_size(older, size.columns), out=out)


def _table(runs: Sequence[KeptRun], size: os.terminal_size | None) -> list[str]:
    now = time.time()

    def column(title: str, cell: Callable[[KeptRun], str], priority: int = 0) -> Column[KeptRun]:
        return Column(title=title, cell=lambda run: printable(cell(run)), priority=priority, align="left")

    columns = (
        column("run", lambda run: _name(run_argument(run.folder))),
        column("state", lambda run: run.state if run.is_here else f"{run.state} on {run.host}"),
        column("model", lambda run: run.model or "", 5),
        column("precision", lambda run: run.precision or "", 3),
        column("progress", _progress, 1),
        column("started", lambda run: _clock(run.started), 6),
        column("written", lambda run: _age(run.written, now), 2),
        column("pid", lambda run: str(run.pid or ""), 4),
        column("device", lambda run: run.device or "", 7),
    )
    return table_lines(columns, runs, None if size is None else size.columns)


def _name(argument: str) -> str:
    name = printable(argument)
    if os.sep in argument or cell_len(name) <= _MAX_NAME_CELLS:
        return name
    return set_cell_size(name, _MAX_NAME_CELLS - 3) + "..."


def _progress(run: KeptRun) -> str:
    """``1,200/18,750 6%``; only the step for a run beyond its original goal."""
    if run.step is None:
        return ""
    if not run.total_steps or run.step > run.total_steps:
        return f"{run.step:,}"
    return f"{run.step:,}/{run.total_steps:,} {units.percent(run.step / run.total_steps)}"


def _clock(unix_seconds: float | None) -> str:
    """``2026-11-21 15:31`` in local time."""
    if unix_seconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_seconds))
    except (ValueError, OverflowError, OSError):
        return ""  # out of range for the calendar


def _age(unix_seconds: float | None, now: float) -> str:
    """``3 min ago``; ``now`` for a live run, and for times in the future after the clock was set back."""
    if unix_seconds is None:
        return ""
    seconds = now - unix_seconds
    return "now" if seconds < units.NOW_SECONDS else f"{units.in_one_unit(seconds)} ago"
