"""One frame of the list of runs: counts, columns, rows, what is known of the one under the cursor, keys."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from amptui.base import units
from amptui.base.runfiles import Removal
from amptui.base.text import printable
from amptui.diagnosis.labels import precision_glyph
from amptui.records.run import Severity
from amptui.telemetry.view import EMPTY_VIEW
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.keys import Key
from amptui.tui.overlays.overlay import open_box
from amptui.tui.panels import footer
from amptui.tui.panels.phrases import (
    Phrase,
    Word,
    end_of,
    fitting,
    phrase,
    quiet,
    wrapped,
    write,
    write_right,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.gauges import draw_sparkline
from amptui.tui.run_list.entry import RowState, RunEntry, RunRow
from amptui.tui.style import BOLD, Style, precision_style

MOVE = "move"
"""The action of keys that go to another run: they are told apart by the press."""

KEYS = (
    Key("enter", ("enter",), "open", "open", "attach a live run, or replay"),
    Key("space", ("space",), "select", "select", "select for a comparison"),
    Key("c", ("c",), "compare", "compare", "compare the selected runs"),
    Key("x", ("x",), "remove", "remove", "remove a run that has ended"),
    Key("/", ("slash",), "filter", "filter", "filter by what you type"),
    Key("↓ ↑", ("down", "j", "up", "k"), MOVE, "", "next run, run before (or j, k)"),
    Key("pgdn", ("pagedown", "pageup"), MOVE, "", "a page on; pgup: a page back"),
    Key("home", ("home", "g", "end", "G", "upper_g"), MOVE, "", "first run; end: last run"),
    Key("?", ("question_mark",), "show_help", "help", "show or close this help"),
    Key("q", ("q", "ctrl+q"), "leave", "quit", "quit; trainings continue"),
)
"""The keys of this screen, for its dispatch, footer and help; Ctrl+C quits too."""

_HINTS = tuple((key.label, key.hint) for key in KEYS if key.hint)

_REMOTE_HINTS = tuple(
    (key.label, key.hint) for key in KEYS if key.hint and key.action not in ("select", "compare", "remove")
)
"""Runs of another machine are compared and removed there."""

NO_RUNS = "no runs yet: `amptui train mnist-deep` starts one"

_LABEL_WIDTH = max(text_width(key.label) for key in KEYS)

_FILTER_HINTS = (("enter", "keep"), ("esc", "show all runs"))

_REMOVAL_CHOICES = (("y", "remove"), ("esc", "go back"))

_LINES_BESIDE_ROWS = 4
"""Header, headings, the line on the run under the cursor, footer."""

_MIN_WIDTH, _MIN_HEIGHT = 40, 12

_GAP = 2
"""Blanks between two columns."""

_MARKS = 2
"""Cells before the name: the cursor, and whether the run is selected."""

_MIN_NAME, _MAX_NAME = 20, 80

_WANTED_NAME = 28
"""No column is left out for a longer name, such as a path: its end tells it apart."""

_MAX_SPARKLINE = 24

_MAX_HOST = 40

_MAX_MESSAGE_LINES = 6

_NOW_SECONDS = 5
"""A live run writes every second."""

_SPANS = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"))
"""Limit in seconds, seconds of the unit, and its name; anything longer is in days."""

_STATE_STYLES: Mapping[RowState, int] = {
    "starting": Style.GOOD,
    "running": Style.GOOD | BOLD,
    "paused": Style.WARNING,
    "stalled": Style.WARNING | BOLD,
    "removing": Style.WARNING,
    "failed": Style.ERROR,
    "died": Style.ERROR,
    "unreadable": Style.ERROR,
}
"""Those of the others are plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListState:
    """What the screen of the list shows at one frame."""

    entries: Sequence[RunEntry] | None
    """All runs that the filter lets through; None while nothing has been read."""
    live: int = 0
    """Of all runs, as is the next."""
    ended: int = 0
    rows: Mapping[str, RunRow] = field(default_factory=dict)
    """By ``RunEntry.run``, as far as they have been read."""
    cursor: int = 0
    top: int = 0
    """The first entry that is shown."""
    selected: Sequence[str] = ()
    pattern: str = ""
    is_typing: bool = False
    """Whether keys go into ``pattern``."""
    removal: Removal | None = None
    """What is asked about."""
    removing: Collection[str] = ()
    """The runs that are being deleted."""
    shows_help: bool = False
    message: str = ""
    severity: Severity = "info"
    now: float = 0.0
    """Unix seconds."""
    host: str = ""
    """The machine of the runs as ssh knows it; empty for this one."""

    def row(self, entry: RunEntry) -> RunRow | None:
        """What is known of a run; None if that has not been read yet."""
        row = self.rows.get(entry.run)
        if entry.run not in self.removing:
            return row
        return replace(row or RunRow(state="removing"), state="removing", detail="")


def page_rows(height: int) -> int:
    """How many runs a screen of ``height`` lines shows."""
    return max(1, height - _LINES_BESIDE_ROWS)


def draw(canvas: Canvas, state: ListState) -> None:
    """Draw the whole of ``canvas``."""
    if canvas.width < _MIN_WIDTH or canvas.height < _MIN_HEIGHT:
        quiet(canvas, f"amptui: the terminal is too small ({canvas.width}x{canvas.height})")
        return
    _draw_header(canvas.rows(0, 1), state)
    body = canvas.rows(1, canvas.height - 2)
    if state.entries is None:
        quiet(body, "reading the runs")
    elif not state.entries:
        quiet(body, f"no run has {state.pattern!r} in its name" if state.pattern else NO_RUNS)
    else:
        _draw_runs(body.rows(0, body.height - 1), state, state.entries)
        _draw_detail(body.rows(body.height - 1), state, state.entries)
    _draw_footer(canvas.rows(canvas.height - 1), state)
    if state.message and not state.is_typing:
        _draw_message(canvas, state)
    if state.removal is not None:
        _draw_question(canvas, state.removal)
    elif state.shows_help:
        _draw_help(canvas)


def _draw_header(canvas: Canvas, state: ListState) -> None:
    shown = []
    if state.entries is not None:
        shown = [
            phrase(f"{units.count(state.live)} live", Style.STRONG),
            phrase(f"{units.count(state.ended)} ended", rank=1),
        ]
        if state.selected:
            shown.append(phrase(f"{len(state.selected)} selected", Style.KEY, 2))
    host = [Word(" on ", Style.DIM), Word(end_of(printable(state.host), _MAX_HOST))] if state.host else []
    title = Phrase((Word("amptui runs", Style.DIM), *host), 3)
    write(canvas, 1, 0, fitting([title, *shown], canvas.width - 2))
    if state.pattern and not state.is_typing:
        room = canvas.width - 3 - sum(part.width + _GAP for part in [title, *shown])
        matching = f"{units.count(len(state.entries or ()))} match /{printable(state.pattern)}"
        if text_width(matching) <= room:
            write_right(canvas, 0, [phrase(matching, Style.KEY)], margin=1)


# ----------------------------------------------------------------------------------------- the table


class _Column(NamedTuple):
    heading: str
    worth: int
    """If the screen is too narrow, the column that is worth least is left out first."""
    text: Callable[[RunRow, float], str]
    """Of a row, at a time in Unix seconds."""
    style: Callable[[RunRow], int] = lambda _row: int(Style.TEXT)
    align: Literal["left", "right"] = "right"
    min_width: int = 0
    """So that the columns do not move while a run goes on."""
    is_local: bool = False
    """Whether it is known of the runs of this machine only."""


def _precision(row: RunRow, _now: float) -> str:
    return f"{precision_glyph(row.precision)} {printable(row.precision)}" if row.precision else ""


def _done(row: RunRow, _now: float) -> str:
    """``6%``; empty for a run without a length, and beyond its original goal."""
    if row.step is None or not row.total_steps or row.step > row.total_steps:
        return ""
    return units.percent(row.step / row.total_steps)


def _age(row: RunRow, now: float) -> str:
    """When it was last written; ``now`` also for times in the future after the clock was set back."""
    if row.written is None:
        return ""
    seconds = now - row.written
    return "now" if seconds < _NOW_SECONDS else _span(seconds)


def _span(seconds: float | None) -> str:
    """``41 s``, ``3 min``, ``26 h``, ``3 d``; empty for the times of a forged journal."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    whole = max(0, int(seconds))
    for limit, one, unit in _SPANS:
        if whole < limit:
            return f"{whole // one} {unit}"
    return f"{units.count(whole // 86_400)} d"


def _curve(_row: RunRow, _now: float) -> str:
    """Nothing: the newest losses are drawn there."""
    return ""


_COLUMNS = (
    _Column(
        "state",
        9,
        lambda row, _now: row.state,
        lambda row: _STATE_STYLES.get(row.state, Style.TEXT),
        "left",
        min_width=8,
    ),
    _Column("model", 1, lambda row, _now: printable(row.model or ""), align="left"),
    _Column("precision", 5, _precision, lambda row: int(precision_style(row.precision)), "left", min_width=9),
    _Column("step", 4, lambda row, _now: "" if row.step is None else units.count(row.step), min_width=6),
    _Column("done", 8, _done, min_width=4),
    _Column(
        "loss",
        7,
        lambda row, _now: "" if row.loss is None else units.loss(row.loss),
        min_width=7,
        is_local=True,
    ),
    _Column("recently", 6, _curve, align="left", is_local=True),
    _Column("took", 2, lambda row, _now: _span(row.seconds), min_width=6),
    _Column("age", 3, _age, min_width=6),
)
"""The columns after the name."""

_MAX_CELL = 24
"""A longer text, such as a model's name, leaves no room for others: its column is as wide at most."""


def _draw_runs(canvas: Canvas, state: ListState, entries: Sequence[RunEntry]) -> None:
    shown = entries[state.top : state.top + canvas.height - 1]
    rows = [state.row(entry) for entry in shown]
    texts = {
        column: ["" if row is None else column.text(row, state.now) for row in rows]
        for column in _COLUMNS
        if not (column.is_local and state.host)
    }
    longest_name = max(text_width(entry.name) for entry in shown)
    widths, name_width = _fitted(texts, longest_name, canvas.width - 2 - _MARKS)
    x = 1 + _MARKS
    canvas.text(x, 0, "run", Style.DIM)
    for y, entry in enumerate(shown, 1):
        here = state.top + y - 1 == state.cursor
        canvas.text(1, y, "▸" if here else " ", Style.KEY)
        canvas.text(2, y, "◆" if entry.run in state.selected else " ", Style.KEY)
        name = end_of(printable(entry.name), name_width)
        canvas.text(x, y, name, Style.STRONG if here else Style.TEXT, width=name_width)
    x += name_width
    for column, width in widths.items():
        x += _GAP
        canvas.text(x, 0, column.heading, Style.DIM, width=width, align=column.align)
        for y, (row, text) in enumerate(zip(rows, texts[column], strict=True), 1):
            if row is not None and column.text is _curve:
                draw_sparkline(canvas, x, y, width, row.losses, precision_style(row.precision))
            elif row is not None:
                canvas.text(x, y, text, column.style(row), width=width, align=column.align)
        x += width


def _fitted(
    texts: Mapping[_Column, Sequence[str]], longest_name: int, room: int
) -> tuple[dict[_Column, int], int]:
    """The columns that fit in ``room`` cells beside the names, each with its width, and the names' width.

    The curve of the loss and the names get the rest.
    """
    widths = {
        column: min(_MAX_CELL, max(len(column.heading), column.min_width, *map(text_width, cells)))
        for column, cells in texts.items()
    }
    name_width = min(max(longest_name, _MIN_NAME), _WANTED_NAME)

    def free() -> int:
        return room - name_width - sum(width + _GAP for width in widths.values())

    while free() < 0 and len(widths) > 1:
        del widths[min(widths, key=lambda column: column.worth)]
    for column, width in widths.items():
        if column.text is _curve:
            widths[column] = min(width + max(0, free()), _MAX_SPARKLINE)
    return widths, max(0, min(name_width + free(), longest_name, _MAX_NAME))


def _draw_detail(canvas: Canvas, state: ListState, entries: Sequence[RunEntry]) -> None:
    """What commands call the run under the cursor, and what else there is to say of it."""
    entry = entries[min(state.cursor, len(entries) - 1)]
    row = state.row(entry)
    detail = printable(row.detail) if row is not None else ""
    room = canvas.width - 2
    name = printable(entry.run)
    if detail:
        shown = " ".join(wrapped(detail, max(room // 2, room - text_width(name) - _GAP), lines=1))
        style = _STATE_STYLES.get(row.state, Style.TEXT) if row is not None else Style.TEXT
        canvas.text(canvas.width - 1 - text_width(shown), 0, shown, style)
        room -= text_width(shown) + _GAP
    canvas.text(1, 0, end_of(name, room), Style.DIM, width=room)


def _draw_footer(canvas: Canvas, state: ListState) -> None:
    if state.is_typing:
        typed = end_of(printable(state.pattern), canvas.width // 2)
        line = [Phrase((Word(f"/{typed}", Style.STRONG), Word("▏")))]
        for key, words in _FILTER_HINTS:
            line.append(Phrase((Word(key, Style.KEY), Word(f" {words}", Style.DIM)), 1))
        write(canvas, 1, 0, fitting(line, canvas.width - 2))
        return
    footer.draw(canvas, EMPTY_VIEW, ScreenState(hints=_REMOTE_HINTS if state.host else _HINTS))


def _draw_message(canvas: Canvas, state: ListState) -> None:
    """In place of the footer; a long one, such as an error that names a path, covers lines above it too."""
    lines = wrapped(printable(state.message), canvas.width - 2, lines=_MAX_MESSAGE_LINES)
    below = canvas.rows(canvas.height - len(lines))
    below.clear()
    for y, line in enumerate(lines):
        below.text(1, y, line, footer.NOTICE_STYLES[state.severity])


# -------------------------------------------------------------------------------- what lies over it


def _draw_question(canvas: Canvas, plan: Removal) -> None:
    width = min(76, canvas.width)
    lines = removal_lines(plan, width - 6)
    inner = open_box(canvas, "remove this run?", width=width, height=len(lines) + 4)
    for y, line in enumerate(lines):
        inner.text(1, y, line)
    choices = [Phrase((Word(key, Style.KEY | BOLD), Word(f" {words}"))) for key, words in _REMOVAL_CHOICES]
    write(inner, 1, len(lines) + 1, fitting(choices, inner.width - 1))


def removal_lines(plan: Removal, width: int) -> list[str]:
    """What would be deleted and what would stay, in lines of ``width`` cells."""
    parts = [
        units.counted(number, noun)
        for number, noun in (
            (plan.journals, "journal"),
            (plan.checkpoints, "checkpoint"),
            (plan.other_files, "other file"),
        )
        if number
    ]
    contents = f"{', '.join(parts) or 'no files'}: {units.number_of_bytes(plan.size_bytes)}"
    lines = [*wrapped(printable(str(plan.folder)), width, lines=3), *wrapped(contents, width, lines=2)]
    if plan.restart_seconds is not None:
        silence = f"its ranks have not restarted for {plan.restart_seconds:.0f} s or more"
        lines += wrapped(f"it did not end as asked; {silence}", width, lines=3)
    if plan.left:
        names = ", ".join(map(printable, plan.left[:3])) + (", …" if len(plan.left) > 3 else "")
        lines += wrapped(f"not the run's, and kept with the folder: {names}", width, lines=2)
    return lines


def _draw_help(canvas: Canvas) -> None:
    inner = open_box(canvas, "keys", width=44, height=len(KEYS) + 2)
    for y, key in enumerate(KEYS):
        inner.text(0, y, key.label, Style.KEY | BOLD, width=_LABEL_WIDTH, align="right")
        inner.text(_LABEL_WIDTH + 1, y, key.meaning, width=max(0, inner.width - _LABEL_WIDTH - 1))
