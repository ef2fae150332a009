"""Prints the kept runs: a table as wide as the terminal, or every run as one JSON line."""

import json as json_text
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TextIO
from unicodedata import combining, east_asian_width

from amptui import units, wire
from amptui.errors import RunFolderError
from amptui.inert import fall_silent, printable
from amptui.runs.listing import KeptRun, list_kept_runs

_GAP = "  "

_MOST_NAME_CELLS = 40
"""Of a longer name the rest is cut, so that one does not cost all others their columns."""

_AGES = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"))
"""Below so many seconds, in units of so many, called so; beyond, in days."""

_NOW_SECONDS = 5
"""A run that lives writes every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A heading, and what stands below it for a run."""

    heading: str
    cell: Callable[[KeptRun], str]
    worth: int
    """Where there is no room, the column that is worth least goes first."""


def list_runs(*, json: bool, out: TextIO) -> int:
    """Print the user's runs to ``out``, the one that was written last first; return the exit status.

    With ``json`` each is one object a line: ``type`` (Run) and the fields of `KeptRun`. Raises
    ``RunFolderError`` where the folder of runs cannot be read, or the list not be written.
    """
    runs = list_kept_runs()
    if json:
        lines = [json_text.dumps({"type": "Run", **wire.plain(asdict(run))}, allow_nan=False) for run in runs]
    elif runs:
        lines = _table(runs, shutil.get_terminal_size().columns if out.isatty() else None)
    else:
        lines = ["no run is kept yet; `amptui train mnist-deep` starts one"]
    _write(out, lines)
    return 0


def _table(runs: Sequence[KeptRun], width: int | None) -> list[str]:
    """Lines of at most ``width`` cells, the heading first; as wide as they come out without one."""
    rows = {
        column: [column.heading, *(printable(column.cell(run)) for run in runs)]
        for column in _columns(time.time())
    }
    if width is not None:
        while len(rows) > 2 and _width(rows.values()) > width:
            del rows[min(rows, key=lambda column: column.worth)]
        name = max(rows, key=lambda column: column.worth)
        room = max(map(_cells, rows[name])) - max(0, _width(rows.values()) - width)
        rows[name] = [_cut(text, room) for text in rows[name]]
    padded = (_padded(texts) for texts in rows.values())
    return [_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]


def _columns(now: float) -> tuple[_Column, ...]:
    """The table's columns, from left to right; the name is worth most."""
    return (
        _Column(heading="run", cell=lambda run: _cut(run.name, _MOST_NAME_CELLS), worth=9),
        _Column(heading="state", cell=_state, worth=8),
        _Column(heading="model", cell=lambda run: run.model or "", worth=3),
        _Column(heading="precision", cell=lambda run: run.precision or "", worth=5),
        _Column(heading="progress", cell=_progress, worth=7),
        _Column(heading="started", cell=lambda run: _clock(run.started), worth=2),
        _Column(heading="written", cell=lambda run: _age(run.written, now), worth=6),
        _Column(heading="pid", cell=lambda run: str(run.pid or ""), worth=4),
        _Column(heading="device", cell=lambda run: run.device or "", worth=1),
    )


def _state(run: KeptRun) -> str:
    return run.state if run.is_here else f"{run.state} on {run.host}"


def _progress(run: KeptRun) -> str:
    """``1,200/18,750 6%``; what goes on beyond its first goal has no share of it."""
    if run.step is None:
        return ""
    if not run.total_steps or run.step > run.total_steps:
        return f"{run.step:,}"
    return f"{run.step:,}/{run.total_steps:,} {units.percent(run.step / run.total_steps)}"


def _clock(unix_seconds: float | None) -> str:
    """``2026-11-21 15:31``, here."""
    if unix_seconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_seconds))
    except (ValueError, OverflowError, OSError):
        return ""  # no calendar has that time


def _age(unix_seconds: float | None, now: float) -> str:
    """``3 min ago``; ``now`` for a run that lives, and for what a clock that was set back dates ahead."""
    if unix_seconds is None:
        return ""
    seconds = int(now - unix_seconds)
    if seconds < _NOW_SECONDS:
        return "now"
    for limit, one, unit in _AGES:
        if seconds < limit:
            return f"{seconds // one} {unit} ago"
    return f"{seconds // 86_400} d ago"


def _width(columns: Iterable[Sequence[str]]) -> int:
    """Cells of the widest line."""
    widths = [max(map(_cells, texts)) for texts in columns]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _padded(texts: Sequence[str]) -> list[str]:
    width = max(map(_cells, texts))
    return [text + " " * (width - _cells(text)) for text in texts]


def _cut(text: str, cells: int) -> str:
    """``text`` in at most so many cells; what is cut ends in ``...``."""
    dots = "..."[: max(0, cells)]
    if _cells(text) <= cells:
        return text
    while text and _cells(text) > cells - len(dots):
        text = text[:-1]
    return f"{text}{dots}"


def _cells(text: str) -> int:
    """How many cells of a terminal ``text`` takes."""
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def _write(out: TextIO, lines: Sequence[str]) -> None:
    """In what ``out`` can encode; a reader that is gone is no trouble."""
    encoding = out.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines).encode(encoding, "replace").decode(encoding)
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        fall_silent(out)
    except OSError as error:
        fall_silent(out)
        what = f"the list cannot be written: {error.strerror or error}"
        raise RunFolderError(what, mend="make room there, or leave out the redirection") from error
