"""Prints the list of runs: a table that fits the terminal, or one JSON line for each run."""

import json as json_text
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import TextIO
from unicodedata import combining, east_asian_width

from amptui import strictjson, units
from amptui.errors import RunFolderError
from amptui.runs.kept_run import KeptRun, look_at
from amptui.runs.rundir import RunDir, kept_runs
from amptui.text import fall_silent, printable

_GAP = "  "

_ROWS_AT_ONCE = 20
"""Rows that are read and written together: a screenful."""

_CLOCK_CELLS, _AGE_CELLS, _PID_CELLS = len("2026-11-21 15:31"), len("59 min ago"), len("4194304")

_MAX_NAME_CELLS = 40
"""Longer names are cut, so that one does not push columns off the screen for all others."""

_AGES = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"))
"""Limit in seconds, seconds of the unit, and its name; anything longer is in days."""

_NOW_SECONDS = 5
"""A live run writes every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A heading, and the cell below it for a run."""

    heading: str
    cell: Callable[[KeptRun], str]
    worth: int
    """If the table is too wide, the column that is worth least is dropped first."""
    min_cells: int = 0
    """Width that rows not read yet may need."""


def list_runs(*, json: bool, out: TextIO) -> int:
    """Print the user's runs to ``out``, the one written last first; return the exit status.

    Reads each run as it prints it, so that the first of thousands appear at once. With ``json`` each run is
    one object a line: ``type`` (Run) and the fields of `KeptRun`. Raises ``RunFolderError`` if the folder of
    runs cannot be read or the list cannot be written.
    """
    runs = kept_runs()
    lines: Iterator[str]
    if json:
        lines = map(_json_line, map(look_at, runs))
    elif runs:
        lines = _table(runs, shutil.get_terminal_size().columns if out.isatty() else None)
    else:
        lines = iter(["no runs yet; `amptui train mnist-deep` starts one"])
    while chunk := list(islice(lines, _ROWS_AT_ONCE)):
        if not _write(out, chunk):
            break
    return 0


def _json_line(run: KeptRun) -> str:
    return json_text.dumps({"type": "Run", **strictjson.plain(asdict(run))}, allow_nan=False)


def _table(runs: Sequence[RunDir], width: int | None) -> Iterator[str]:
    """Lines of at most ``width`` cells, the heading first; of any width if it is None.

    All names and the first rows set the column widths. Wider cells further down are cut if there is a
    ``width``.
    """
    columns = _columns(time.time())
    rows = ([printable(column.cell(run)) for column in columns] for run in map(look_at, runs))
    first = list(islice(rows, _ROWS_AT_ONCE))
    headings = [column.heading for column in columns]
    widths = [
        max(column.min_cells, *map(_cells, texts))
        for column, texts in zip(columns, zip(headings, *first, strict=True), strict=True)
    ]
    widths[0] = max(len(headings[0]), *(_cells(_name(run.path.name)) for run in runs))
    shown = _fitting(columns, widths, width)
    if width is not None:
        widths[0] = max(0, min(widths[0], width - _width(widths[place] for place in shown[1:]) - len(_GAP)))
    for row in chain([headings], first, rows):
        cells = (_padded(row[place], widths[place], cuts=width is not None) for place in shown)
        yield _GAP.join(cells).rstrip()


def _fitting(columns: Sequence[_Column], widths: Sequence[int], width: int | None) -> list[int]:
    """The indices of the columns that fit; the name and one more always stay."""
    shown = list(range(len(columns)))
    while width is not None and len(shown) > 2 and _width(widths[place] for place in shown) > width:
        shown.remove(min(shown, key=lambda place: columns[place].worth))
    return shown


def _columns(now: float) -> tuple[_Column, ...]:
    """The table's columns, from left to right; the name is worth most."""
    return (
        _Column(heading="run", cell=lambda run: _name(run.name), worth=9),
        _Column(heading="state", cell=_state, worth=8, min_cells=len("finished")),
        _Column(heading="model", cell=lambda run: run.model or "", worth=3),
        _Column(heading="precision", cell=lambda run: run.precision or "", worth=5),
        _Column(heading="progress", cell=_progress, worth=7, min_cells=len("2,340/2,340 100%")),
        _Column(heading="started", cell=lambda run: _clock(run.started), worth=2, min_cells=_CLOCK_CELLS),
        _Column(heading="written", cell=lambda run: _age(run.written, now), worth=6, min_cells=_AGE_CELLS),
        _Column(heading="pid", cell=lambda run: str(run.pid or ""), worth=4, min_cells=_PID_CELLS),
        _Column(heading="device", cell=lambda run: run.device or "", worth=1),
    )


def _name(name: str) -> str:
    return _cut(printable(name), _MAX_NAME_CELLS)


def _state(run: KeptRun) -> str:
    return run.state if run.is_here else f"{run.state} on {run.host}"


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


def _width(widths: Iterable[int]) -> int:
    """Cells in a line."""
    return sum(width + len(_GAP) for width in widths) - len(_GAP)


def _padded(text: str, cells: int, *, cuts: bool) -> str:
    text = _cut(text, cells) if cuts else text
    return text + " " * (cells - _cells(text))


def _cut(text: str, cells: int) -> str:
    """``text`` in at most so many cells; ends in ``...`` if it was cut."""
    dots = "..."[: max(0, cells)]
    if _cells(text) <= cells:
        return text
    while text and _cells(text) > cells - len(dots):
        text = text[:-1]
    return f"{text}{dots}"


def _cells(text: str) -> int:
    """How many terminal cells ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def _write(out: TextIO, lines: Sequence[str]) -> bool:
    """Write ``lines`` in the encoding of ``out``; return False if nobody reads them any more."""
    encoding = out.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines).encode(encoding, "replace").decode(encoding)
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        fall_silent(out)
        return False
    except OSError as error:
        fall_silent(out)
        what = f"cannot write the list of runs: {error.strerror or error}"
        raise RunFolderError(what, hint="free some space, or do not redirect the output there") from error
    return True
