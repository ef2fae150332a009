"""Prints the newest runs: a table that fits the terminal, or one JSON line for each run."""

import shutil
import time
from collections.abc import Sequence
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
from amptui.tui.run_list.columns import run_columns

_MAX_NAME_CELLS = 40
"""Longer names are cut, so that one does not push columns off the screen for all others."""

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
    names, size = kept_names(), shutil.get_terminal_size() if out.isatty() and not json else None
    room = PAGE_RUNS if size is None else max(1, size.lines - _LINES_BESIDE_RUNS)
    runs = [look_at(RunDir(default_base() / name)) for name in names[: room if limit is None else limit]]
    if json:
        for run in runs:
            put(strictjson.line({"type": "Run", **asdict(run)}), out)
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
    shared: list[Column[KeptRun]] = run_columns(lambda run: run, time.time())
    columns = [
        Column(
            title="run",
            cell=lambda run: printable(run_argument(run.folder)),
            align="left",
            max_width=_MAX_NAME_CELLS,
        ),
        *shared,
        Column(title="pid", cell=lambda run: str(run.pid or ""), priority=6),
        Column(title="device", cell=lambda run: printable(run.device or ""), priority=8, align="left"),
    ]
    return table_lines(columns, runs, width)
