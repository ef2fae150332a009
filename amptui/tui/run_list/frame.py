"""One frame of the list of runs: counts, columns, rows, what is known of the one under the cursor, keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.base.text import one_line, printable
from amptui.diagnosis.words import long_words
from amptui.records.ranks import RankLost
from amptui.telemetry.rank_watch import judge_ranks
from amptui.telemetry.view import EMPTY_VIEW
from amptui.tui.canvas import Canvas, Rect, text_width
from amptui.tui.keys import Key
from amptui.tui.panels import footer
from amptui.tui.panels.phrases import (
    GAP,
    end_of,
    fitting,
    phrase,
    quiet,
    wrapped,
    write,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.table import draw_table
from amptui.tui.run_list.columns import STATE_STYLES, run_columns
from amptui.tui.style import Style

if TYPE_CHECKING:
    from amptui.runs.find import RunEntry
    from amptui.runs.kept_run import KeptRun

_MOVE = "move('{press}')"

KEYS = (
    Key("enter", ("enter",), "open", "open", "attach a live run, or replay"),
    Key("a", ("a",), "select", "select", "select for a comparison, or no longer"),
    Key("c", ("c",), "compare", "compare", "compare the selected runs"),
    Key("/", ("slash",), "search", "filter", "filter by what you type"),
    Key("↓ ↑", ("down", "j", "up", "k"), _MOVE, "", "next run, run before (or j, k)"),
    Key("pgdn", ("pagedown", "pageup", "home", "end"), _MOVE, "", "a page on; pgup, home and end too"),
    Key("?", ("question_mark",), "show_help", "keys", "show or close this help"),
    Key("q", ("q", "ctrl+q"), "leave", "quit", "quit; trainings continue"),
)
"""The keys of this screen, for its dispatch, footer and help; Ctrl+C quits too."""

_HINTS = tuple((key.label, key.hint) for key in KEYS if key.hint)

NO_RUNS = "no runs yet: `amptui train mnist-deep` starts one"

_FILTER_HINTS = (("enter", "keep"), ("esc", "show all runs"))

_LINES_BESIDE_ROWS = 4
"""Header, headings, the line on the run under the cursor, footer."""

_STATE_WIDTH = len("unreadable")

_MAX_NAME = 80

_WANTED_NAME = 28
"""No column is left out for a longer name, such as a path: its end tells it apart."""

_MAX_MESSAGE_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ListState:
    """What the screen of the list shows at one frame."""

    entries: "Sequence[RunEntry] | None"
    """All runs that the filter lets through; None while nothing has been read."""
    live: int = 0
    """Of all runs, as is the next."""
    ended: int = 0
    rows: Mapping[str, "KeptRun"] = field(default_factory=dict)
    """By ``RunEntry.run``, as far as they have been read."""
    cursor: int = 0
    top: int = 0
    """The first entry that is shown."""
    selected: Sequence[str] = ()
    pattern: str = ""
    is_typing: bool = False
    """Whether keys go into ``pattern``."""


def page_rows(height: int) -> int:
    """How many runs a screen of ``height`` lines shows."""
    return max(1, height - _LINES_BESIDE_ROWS)


def draw(canvas: Canvas, state: ListState, screen: ScreenState) -> None:
    """Draw the whole of ``canvas``, below an overlay."""
    if not footer.has_room(canvas):
        return
    _draw_header(canvas.rows(0, 1), state)
    body = canvas.rows(1, canvas.height - 2)
    if state.entries is None:
        quiet(body, "reading the runs")
    elif not state.entries:
        quiet(body, f"no run has {state.pattern!r} in its name" if state.pattern else NO_RUNS)
    else:
        entries = state.entries[state.top : state.top + body.height - 2]
        lines = [
            _Line(entry, state.rows.get(entry.run), place == state.cursor, entry.run in state.selected)
            for place, entry in enumerate(entries, state.top)
        ]
        table = body.part(Rect(1, 0, body.width - 2, body.height - 1))
        draw_table(table, _columns(table.width, screen.now), lines)
        _draw_detail(body.rows(body.height - 1), state, state.entries[state.cursor])
    screen = replace(screen, hints=_HINTS)
    if state.is_typing:
        typed = end_of(printable(state.pattern), canvas.width // 2)
        screen = replace(screen, hints=_FILTER_HINTS, waiting=f"/{typed}▏")
    footer.draw(canvas.rows(canvas.height - 1), EMPTY_VIEW, screen)
    if screen.message:
        above = canvas.rows(canvas.height - 1 - _MAX_MESSAGE_LINES, _MAX_MESSAGE_LINES)
        footer.draw_notice(above, screen, framed=False)


def _draw_header(canvas: Canvas, state: ListState) -> None:
    shown = []
    if state.entries is not None:
        shown = [
            phrase(f"{units.count(state.live)} live", Style.STRONG),
            phrase(f"{units.count(state.ended)} ended", rank=1),
        ]
        if state.selected:
            shown.append(phrase(f"{len(state.selected)} selected", Style.KEY, 2))
        if state.pattern and not state.is_typing:
            matching = f"{units.count(len(state.entries))} match /{printable(state.pattern)}"
            shown.append(phrase(matching, Style.KEY, 4))
    title = phrase("amptui runs", Style.DIM, 3)
    write(canvas, 1, 0, fitting([title, *shown], canvas.width - 2))


# ----------------------------------------------------------------------------------------- the table


class _Line(NamedTuple):
    """A line of the table."""

    entry: "RunEntry"
    row: "KeptRun | None"
    is_here: bool
    """Whether the cursor is."""
    is_selected: bool


def _columns(width: int, now: float) -> list[Column[_Line]]:
    """Of a table of so many cells."""
    return [
        Column(title="", cell=_marks, min_width=2, max_width=2, align="left", is_optional=False),
        Column(
            title="run",
            cell=lambda line: (printable(line.entry.name), Style.STRONG if line.is_here else Style.TEXT),
            align="left",
            cut="start",
            gap=0,
            # Beside the state, which is always there too.
            shrinks_to=min(_WANTED_NAME, width - 2 - GAP - _STATE_WIDTH),
            max_width=_MAX_NAME,
        ),
        *run_columns(lambda line: line.row, now),
    ]


def _marks(line: _Line) -> Cell:
    """Whether the cursor is here, and whether the run is selected."""
    return f"{'▸' if line.is_here else ' '}{'◆' if line.is_selected else ''}", Style.KEY


def _draw_detail(canvas: Canvas, state: ListState, entry: "RunEntry") -> None:
    """What commands call the run under the cursor, and what else there is to say of it."""
    row, room, name = state.rows.get(entry.run), canvas.width - 2, printable(entry.run)
    if row is not None and (detail := printable(one_line(detail_of(row)))):
        shown = " ".join(wrapped(detail, max(room // 2, room - text_width(name) - GAP), lines=1))
        style = STATE_STYLES.get(row.state, Style.TEXT)
        canvas.text(canvas.width - 1 - text_width(shown), 0, shown, style)
        room -= text_width(shown) + GAP
    canvas.text(1, 0, end_of(name, room), Style.DIM, width=room)


def detail_of(run: "KeptRun") -> str:
    """Why it failed, died or is silent, or where it is being trained; else its device."""
    if run.error is not None:
        return run.error
    if run.state == "died":  # why, by its own last words; empty if it was killed without any
        if isinstance(run.trouble, RankLost):
            return long_words(judge_ranks(run.trouble))
        return "" if run.trouble is None else run.trouble.text.partition("\n")[0]
    if run.silent_seconds is not None:
        return f"nothing new for {units.duration(run.silent_seconds)}"
    if run.is_live:
        place = "" if run.is_here else f" on {run.host}"
        return f"{run.device or 'starting'}{place}, pid {run.pid}" if run.pid else f"live{place}"
    return run.device_name or ""
