"""One screen of a comparison: curves, the table of groups, the verdict and what limits it, the keys."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from amptui.base import units
from amptui.base.table import Cell, Column, Row, text_of
from amptui.diagnosis.words import long_words
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.grid import grid
from amptui.reports.compare.groups import Group
from amptui.reports.compare.overlay_plot import MAX_GROUPS, STYLES, OverlayPlot, dot_columns
from amptui.reports.compare.tables import group_columns, members, run_columns
from amptui.tui.canvas import Canvas, Rect, text_width
from amptui.tui.keys import Key
from amptui.tui.layout import draw_box
from amptui.tui.panels import footer
from amptui.tui.panels.phrases import (
    GAP,
    Phrase,
    Word,
    fitting,
    line_width,
    phrase,
    quiet,
    whole_words,
    wrapped,
    write_right,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.table import draw_table
from amptui.tui.style import BOLD, NO_VERDICT, VERDICT_SIGNS, Style

KEYS = (
    Key("← →", ("left", "right"), "move_axis('{press}')", "axis", "curves by step, samples or training time"),
    Key("v", ("v",), "toggle_validation", "validation", "draw the losses of validations, or of training"),
    Key("l", ("l",), "toggle_log", "log", "switch the loss axis between logarithmic and linear"),
    Key("tab", ("tab",), "next_panel", "runs", "show a row for each run, or for each group"),
    Key("↓ ↑", ("down", "j", "up", "k"), "move('{press}')", "", "scroll the verdict (or j, k)"),
    Key("?", ("question_mark",), "show_help", "keys", "show or close this help"),
    Key("q", ("q", "ctrl+q", "escape"), "leave", "quit", "quit; running trainings continue"),
)
"""The keys of this screen, for its dispatch, footer and help; Ctrl+C quits too."""

_HINTS = tuple((key.label, key.hint) for key in KEYS if key.hint)

_MIN_PLOT = 6
"""Lines of the plot with its frame, below which text gives way."""

_MIN_PLOT_SHARE = 0.4
"""The fraction of a high screen that belongs to the plot in any case."""

_BOTH_FROM = 34
"""Lines from which on there is room for the rows of runs below those of groups."""

_MAX_LINES_OF_ONE = 4
"""Lines of one sentence at most."""


_Table: TypeAlias = tuple[Sequence[Column[Any]], Sequence[Any]]
"""Columns and rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the user chose to look at."""

    axis: str = "steps"
    validation: bool = False
    by_run: bool = False


class _Line(NamedTuple):
    text: str
    style: int
    starts: bool
    """Whether a sentence begins with it."""


class CompareFrame:
    """Draws each frame; in between it keeps the limits of the plot."""

    def __init__(self) -> None:
        self.top = 0
        """How many lines of the verdict are scrolled out of sight; a frame limits it to those there are."""
        self._plots = {validation: OverlayPlot() for validation in (False, True)}

    def draw(self, canvas: Canvas, comparison: Compared | None, choice: Choice, screen: ScreenState) -> None:
        """Draw what is below an overlay; ``comparison`` is None while nothing has been read."""
        if not footer.has_room(canvas):
            return
        if comparison is None:
            quiet(canvas, "reading the journals")
        else:
            self._draw(canvas, comparison, choice, log_y=screen.log_y)
        footer.draw_below(canvas, replace(screen, hints=_HINTS), framed=True)

    def _draw(self, canvas: Canvas, comparison: Compared, choice: Choice, *, log_y: bool) -> None:
        _draw_header(canvas.rows(0, 1), comparison)
        height = canvas.height - 2
        is_low = height < _BOTH_FROM
        tables = _tables(comparison, choice, height)
        rows = sum(1 + len(rows) for _, rows in tables)
        # A low screen has no lines for a frame between the table and the verdict.
        frames = 2 if is_low else 4
        room = height - max(_MIN_PLOT, int(_MIN_PLOT_SHARE * height)) - frames
        rows = min(rows, max(2, room - 3))
        verdicts = _lines(_paragraphs(comparison), canvas.width - 4)
        how = _lines(
            ((" ", line, Style.DIM) for line in sentences.how_measured(comparison)), canvas.width - 4
        )
        # How figures are measured is worth no line of a low screen's curves; it can be scrolled to.
        room = min(room - rows, len(verdicts) + 1) if is_low else room - rows
        text = [*verdicts, *how]
        self.top = max(0, min(self.top, len(text) - room))
        text = _cut(text[self.top :], room)
        plot = height - frames - rows - len(text)
        self._draw_plot(canvas.rows(1, plot), comparison, choice, log_y=log_y)
        below = canvas.rows(1 + plot, height - plot)
        draw_box(below if is_low else below.rows(0, rows + 2))
        below.text(1, 0, f" {' and '.join(f'{columns[0].title}s' for columns, _ in tables)} ")
        # As many rows of each table as fit below the one before.
        inner, y = _within(below.rows(0, rows + 2)), 0
        for columns, shown in tables:
            lines = inner.height - y - 1
            count = len(shown) if len(shown) <= lines else max(0, lines - 1)
            y = draw_table(inner, columns, shown, y=y, shown=slice(count))
            if count < len(shown):
                inner.text(
                    0, y, f"{units.counted(len(shown) - count, 'more row')}: --plain shows all", Style.WARNING
                )
                y += 1
        if not is_low:
            draw_box(below.rows(rows + 2))
            below.text(1, rows + 2, " verdict ")
        inner = _within(below.rows(rows + frames - 2, len(text) + 2))
        for y, line in enumerate(text):
            inner.text(0, y, line.text, line.style)

    def _draw_plot(self, canvas: Canvas, comparison: Compared, choice: Choice, *, log_y: bool) -> None:
        draw_box(canvas)
        legend = [
            Phrase((Word(group.name, STYLES[group.colour] | BOLD),), place)
            for place, group in enumerate(comparison.groups[:MAX_GROUPS])
        ]
        titles = sentences.curve_titles(choice.axis, validation=choice.validation)
        room = canvas.width - 8 - (legend[0].width if legend else 0)
        title = f" {next((title for title in titles if text_width(title) <= room), titles[-1])} "
        canvas.text(1, 0, title)
        legend = fitting(legend, canvas.width - len(title) - 6)
        legend_width = line_width(legend)
        canvas.text(canvas.width - 4 - legend_width, 0, " " * (legend_width + 2))
        write_right(canvas, 0, legend, margin=3)
        inner = canvas.part(Rect(2, 1, canvas.width - 4, canvas.height - 2))
        columns = dot_columns(inner.width, ascii_only=canvas.ascii_only)
        curves = grid(comparison, choice.axis, columns, validation=choice.validation)
        if not self._plots[choice.validation].draw(inner, curves, comparison.groups, log_y=log_y):
            is_untimed = choice.axis == "seconds" and all(run.seconds is None for run in comparison.runs)
            quiet(inner, "no training time: the steps have no times" if is_untimed else "no loss yet")


def _draw_header(canvas: Canvas, comparison: Compared) -> None:
    live = sum(run.is_live for run in comparison.runs)
    running = [phrase(f"{live} running", Style.STRONG)] if live else []
    start = write_right(canvas, 0, running, margin=1)
    end = canvas.text(1, 0, "amptui compare", Style.DIM) + GAP
    room = max(0, start - end - (GAP if live else 0))
    canvas.text(end, 0, whole_words(sentences.heading(comparison), room), width=room)


def _tables(comparison: Compared, choice: Choice, height: int) -> list[_Table]:
    groups = _coloured(group_columns(comparison, brief=True), lambda group: group), comparison.groups
    runs = _coloured(run_columns(comparison), lambda member: member[0]), members(comparison)
    if choice.by_run:
        return [runs]
    several = len(comparison.runs) > len(comparison.groups)
    if height >= _BOTH_FROM and several and len(comparison.groups) + len(comparison.runs) + 2 <= height // 3:
        return [groups, runs]
    return [groups]


def _coloured(columns: Sequence[Column[Row]], group_of: Callable[[Row], Group]) -> list[Column[Row]]:
    """The first column, which names a row, in the colour of its group."""
    first, *others = columns

    def name(row: Row) -> Cell:
        colour = group_of(row).colour
        return text_of(first.cell(row)), STYLES[colour] | BOLD if colour else Style.TEXT

    return [replace(first, cell=name), *others]


def _within(canvas: Canvas) -> Canvas:
    """What is inside of a frame, of which only the left and the right edge need be there."""
    return canvas.part(Rect(2, 1, max(0, canvas.width - 4), max(0, canvas.height - 2)))


def _lines(paragraphs: Iterable[tuple[str, str, int]], width: int) -> list[_Line]:
    """``paragraphs`` in lines of ``width`` cells."""
    lines: list[_Line] = []
    for sign, text, style in paragraphs:
        for i, line in enumerate(wrapped(text, width - 2, lines=_MAX_LINES_OF_ONE)):
            lines.append(_Line(f"{' ' if i else sign} {line}", style, starts=i == 0))
    return lines


def _paragraphs(comparison: Compared) -> Iterator[tuple[str, str, int]]:
    """The verdicts, what limits them and what differs, each with its sign and style."""
    plain, (alert, alerted) = NO_VERDICT[0], VERDICT_SIGNS["warning"]
    if len(comparison.groups) > MAX_GROUPS:
        names = ", ".join(group.name for group in comparison.groups[MAX_GROUPS:])
        yield alert, f"no curves for {names}: the screen has no room for them", alerted
    for contrast in comparison.contrasts:
        finding = contrast.finding
        sign, style = NO_VERDICT if finding.grade == "unknown" else VERDICT_SIGNS[finding.severity]
        yield sign, long_words(contrast.finding), style
    if not comparison.contrasts:
        yield plain, sentences.ONE_GROUP, Style.TEXT
    for sentence in filter(None, map(sentences.speed, comparison.contrasts)):
        yield plain, sentence, Style.TEXT
    yield from ((alert, check.words, alerted) for check in comparison.checks)
    yield from ((plain, f"differs in {line}", Style.DIM) for line in sentences.difference_lines(comparison))


def _cut(text: list[_Line], height: int) -> list[_Line]:
    """The first lines: as many whole sentences as fit in ``height``, and how many are left."""
    if len(text) <= height:
        return text
    count = max(0, height - 1)
    while count > 0 and not text[count].starts:
        count -= 1
    count = count or max(0, height - 1)  # a part of the first is better than none of it
    more = f"… {units.counted(len(text) - count, 'more line')}: ↓"
    return [*text[:count], _Line(more, Style.DIM, starts=True)][:height]
