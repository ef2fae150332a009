"""Prints the kept runs: a table as wide as the terminal, or every run as one JSON line."""

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
from amptui.inert import fall_silent, printable
from amptui.runs.listing import KeptRun, look_at
from amptui.runs.rundir import RunDir, kept_runs

_GAP = "  "

_ROWS_AT_ONCE = 20
"""Read and written before the next are: a screen's worth."""

_CLOCK_CELLS, _AGE_CELLS, _PID_CELLS = len("2026-11-21 15:31"), len("59 min ago"), len("4194304")

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
    least_cells: int = 0
    """What the cells of rows that were not read yet may need."""


def list_runs(*, json: bool, out: TextIO) -> int:
    """Print the user's runs to ``out``, the one that was written last first; return the exit status.

    Each is read when its turn comes: the first lines of thousands stand at once. With ``json`` each is one
    object a line: ``type`` (Run) and the fields of `KeptRun`. Raises ``RunFolderError`` where the folder of
    runs cannot be read, or the list not be written.
    """
    runs = kept_runs()
    lines: Iterator[str]
    if json:
        lines = map(_json_line, map(look_at, runs))
    elif runs:
        lines = _table(runs, shutil.get_terminal_size().columns if out.isatty() else None)
    else:
        lines = iter(["no run is kept yet; `amptui train mnist-deep` starts one"])
    while chunk := list(islice(lines, _ROWS_AT_ONCE)):
        if not _write(out, chunk):
            break
    return 0


def _json_line(run: KeptRun) -> str:
    return json_text.dumps({"type": "Run", **strictjson.plain(asdict(run))}, allow_nan=False)


def _table(runs: Sequence[RunDir], width: int | None) -> Iterator[str]:
    """Lines of at most ``width`` cells, the heading first; as wide as they come out without one.

    How wide the columns are is settled by the first rows, and by all names. What is wider further down is
    cut where there is a ``width``, and else stands out.
    """
    columns = _columns(time.time())
    rows = ([printable(column.cell(run)) for column in columns] for run in map(look_at, runs))
    first = list(islice(rows, _ROWS_AT_ONCE))
    headings = [column.heading for column in columns]
    widths = [
        max(column.least_cells, *map(_cells, texts))
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
    """The places of the columns that have room; the name and one more always do."""
    shown = list(range(len(columns)))
    while width is not None and len(shown) > 2 and _width(widths[place] for place in shown) > width:
        shown.remove(min(shown, key=lambda place: columns[place].worth))
    return shown


def _columns(now: float) -> tuple[_Column, ...]:
    """The table's columns, from left to right; the name is worth most."""
    return (
        _Column(heading="run", cell=lambda run: _name(run.name), worth=9),
        _Column(heading="state", cell=_state, worth=8, least_cells=len("finished")),
        _Column(heading="model", cell=lambda run: run.model or "", worth=3),
        _Column(heading="precision", cell=lambda run: run.precision or "", worth=5),
        _Column(heading="progress", cell=_progress, worth=7, least_cells=len("2,340/2,340 100%")),
        _Column(heading="started", cell=lambda run: _clock(run.started), worth=2, least_cells=_CLOCK_CELLS),
        _Column(heading="written", cell=lambda run: _age(run.written, now), worth=6, least_cells=_AGE_CELLS),
        _Column(heading="pid", cell=lambda run: str(run.pid or ""), worth=4, least_cells=_PID_CELLS),
        _Column(heading="device", cell=lambda run: run.device or "", worth=1),
    )


def _name(name: str) -> str:
    return _cut(printable(name), _MOST_NAME_CELLS)


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


def _width(widths: Iterable[int]) -> int:
    """Cells of a line."""
    return sum(width + len(_GAP) for width in widths) - len(_GAP)


def _padded(text: str, cells: int, *, cuts: bool) -> str:
    text = _cut(text, cells) if cuts else text
    return text + " " * (cells - _cells(text))


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
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def _write(out: TextIO, lines: Sequence[str]) -> bool:
    """Write ``lines`` in what ``out`` can encode; false where nobody reads any more, which is no trouble."""
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
        what = f"the list cannot be written: {error.strerror or error}"
        raise RunFolderError(what, mend="make room there, or leave out the redirection") from error
    return True
