"""Prints the newest runs: a table that fits the terminal, or one JSON line for each run."""

import json as json_text
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from amptui.base import strictjson, units
from amptui.base.prompt import complain, put
from amptui.base.text import inert_line, printable
from amptui.recipe.request import PAGE_RUNS
from amptui.runs.find import kept_names
from amptui.runs.kept_run import KeptRun, look_at
from amptui.runs.remote import Remote
from amptui.runs.rundir import RunDir, default_base, run_argument_here

_GAP = "  "

_MAX_NAME_CELLS = 40
"""Longer names are cut, so that one does not push columns off the screen for all others. A path is not: its
beginning would name nothing."""

_AGES = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"))
"""Limit in seconds, seconds of the unit, and its name; anything longer is in days."""

_NOW_SECONDS = 5
"""A live run writes every second."""


_END_LINE = f"{json_text.dumps({'type': 'End'})}\n"
"""It proves that amptui has listed all: a shell that exits instead prints no runs either."""

_LINES_BESIDE_RUNS = 3
"""Lines of a terminal that the heading, the line about older runs and the prompt take."""


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    worth: int
    """If the table is too wide, the column that is worth least is dropped first."""
    cell: Callable[[KeptRun], str]


def list_runs(*, json: bool, out: TextIO, limit: int | None = None, with_end: bool = False) -> int:
    """Print the newest of the user's runs to ``out``, the one written last first; return the exit status.

    At most ``limit`` runs; if it is None, as many as a terminal has lines for, or `PAGE_RUNS` in JSON and
    where ``out`` is no terminal. Of older runs no file is opened; how many there are is told below the table,
    or on standard error. With ``json`` each run is one object a line: ``type`` (Run) and the fields of
    `KeptRun`; ``with_end`` adds a line of the type End. Raises ``RunFolderError`` if the folder of runs
    cannot be read, ``OutputError`` if the list cannot be written.
    """
    names = kept_names()
    size = shutil.get_terminal_size() if out.isatty() and not json else None
    width = size.columns if size is not None else None
    page = _page(len(names), size) if limit is None else limit
    runs = [look_at(RunDir(default_base() / name)) for name in names[:page]]
    older = len(names) - len(runs)
    if json:
        put("".join((*(f"{_json_line(run)}\n" for run in runs), *([_END_LINE] if with_end else []))), out)
    elif runs:
        below = [_older(older, width)] if older and width is not None else []
        put("".join(inert_line(out, line) for line in (*_table(runs, width), *below)), out)
    else:
        put(inert_line(out, "no runs yet; `amptui train mnist-deep` starts one"), out)
    if older and width is None and limit is None:
        complain(_older(older, None))
    return 0


def list_remote_runs(remote: Remote, *, json: bool, out: TextIO, limit: int | None = None) -> int:
    """Print the newest runs of another machine as :func:`list_runs` prints those of this one.

    Raises ``RemoteError`` if they cannot be listed.
    """
    from amptui.runs.remote import remote_argument, remote_runs

    listed = remote_runs(remote, limit)
    size = shutil.get_terminal_size() if out.isatty() and not json else None
    width = size.columns if size is not None else None
    page = len(listed.runs) if size is None or limit is not None else _page(len(listed.runs), size)
    if json:
        put("".join(f"{_json_line(run)}\n" for run in listed.runs), out)
    elif listed.runs:
        lines = _table(listed.runs[:page], width, remote_argument)
        put("".join(inert_line(out, line) for line in lines), out)
    else:
        put(inert_line(out, f"no runs on {remote.host} yet"), out)
    if page < len(listed.runs):
        put(inert_line(out, _cut("older runs not listed: use `--all` or `--limit N`", width)), out)
    elif listed.older and limit is None:
        complain(listed.older)
    return 0


def _page(runs: int, size: os.terminal_size | None) -> int:
    """How many of so many ``runs`` to show on a terminal of that ``size``, or elsewhere if it is None."""
    if size is None:
        return PAGE_RUNS
    room = size.lines - _LINES_BESIDE_RUNS
    return runs if runs <= room + 1 else max(1, room)


def _older(runs: int, width: int | None) -> str:
    """How many older runs there are and how to list them; shorter if it would not fit."""
    plural = "s" if runs > 1 else ""
    line = f"{units.count(runs)} older run{plural} not listed: use `amptui runs --all` or `--limit N`"
    return line if width is None or len(line) <= width else _cut(f"{units.count(runs)} older: --all", width)


def _json_line(run: KeptRun) -> str:
    return json_text.dumps({"type": "Run", **strictjson.plain(asdict(run))}, allow_nan=False)


def _table(
    runs: Sequence[KeptRun], width: int | None, argument: Callable[[Path], str] = run_argument_here
) -> Iterator[str]:
    """Lines of at most ``width`` cells, the heading first; of any width if it is None.

    ``argument`` is what a command calls the run in a folder.
    """
    columns = _columns(time.time(), argument)
    rows = [[column.heading for column in columns]]
    rows += [[printable(column.cell(run)) for column in columns] for run in runs]
    widths = [max(map(cell_len, texts)) for texts in zip(*rows, strict=True)]
    visible = list(range(len(columns)))
    while width is not None and len(visible) > 2 and sum(widths[at] + len(_GAP) for at in visible) > width:
        visible.remove(min(visible, key=lambda at: columns[at].worth))
    for row in rows:
        line = _GAP.join(set_cell_size(row[at], widths[at]) for at in visible).rstrip()
        yield _cut(line, width)


def _cut(line: str, width: int | None) -> str:
    return line if width is None or cell_len(line) <= width else set_cell_size(line, width)


def _columns(now: float, argument: Callable[[Path], str]) -> tuple[_Column, ...]:
    """The table's columns, from left to right; the name is worth most."""
    return (
        _Column("run", 9, lambda run: _name(argument(run.folder))),
        _Column("state", 8, lambda run: run.state if run.is_here else f"{run.state} on {run.host}"),
        _Column("model", 3, lambda run: run.model or ""),
        _Column("precision", 5, lambda run: run.precision or ""),
        _Column("progress", 7, _progress),
        _Column("started", 2, lambda run: _clock(run.started)),
        _Column("written", 6, lambda run: _age(run.written, now)),
        _Column("pid", 4, lambda run: str(run.pid or "")),
        _Column("device", 1, lambda run: run.device or ""),
    )


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
    seconds = int(now - unix_seconds)
    if seconds < _NOW_SECONDS:
        return "now"
    for limit, one, unit in _AGES:
        if seconds < limit:
            return f"{seconds // one} {unit} ago"
    return f"{seconds // 86_400} d ago"
