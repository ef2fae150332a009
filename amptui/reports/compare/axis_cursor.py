"""The cursor of a comparison's plot: a position on the axis, a window around it, and what it reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from amptui.base import units
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.grid import Grid, GroupCurve, RunCurve, Span
from amptui.reports.compare.groups import Group, Spread
from amptui.reports.compare.overlay_plot import MAX_GROUPS, STYLES, curve_area
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import GAP, Line, Phrase, Word, labelled, line_width, phrase
from amptui.tui.panels.step_cursor import CHART_LEFT, MOVES, ZOOMS, draw_line
from amptui.tui.style import BOLD, Style


@dataclass(frozen=True, slots=True)
class Extent:
    """The plot that a cursor moves on."""

    grid: Grid
    columns: int
    """Columns of values, at least 1."""
    across: int
    """So many of them are in one cell."""
    lines: range
    """Of the screen, on which there are curves."""


@dataclass(frozen=True, slots=True)
class AxisCursor:
    """A position on the axis that stays where it is while runs go on."""

    position: float
    window: Span | None = None
    """What the plot shows since the cursor zoomed; None follows the runs."""

    def look(self, whole: Span, min_width: float) -> Span:
        """What the plot shows of ``whole``: with the cursor, if the axis still reaches to it."""
        if self.window is None:
            return whole
        span = self.window
        if span.width < min_width:  # the runs have gone on
            span = span.zoomed(self.position, min_width)
        return _with(self.position, span).within(whole)


def press(cursor: AxisCursor | None, key: str, extent: Extent) -> AxisCursor:
    """The cursor after a press of one of its keys.

    The first puts it at the last value. An arrow moves it a cell, or a step where these are wider.
    """
    if cursor is None:
        cursor = AxisCursor(extent.grid.measured.high)
        if key in MOVES:
            return cursor
    if key in ZOOMS or key == "0":
        return _zoomed(cursor, key, extent.grid)
    position = _moved(cursor.position, key, extent)
    window = None if cursor.window is None else _with(position, cursor.window).within(extent.grid.whole)
    return AxisCursor(position, window)


def point(cursor: AxisCursor, x: int, extent: Extent) -> AxisCursor:
    """The cursor where the mouse was clicked, so many cells from the left of the screen."""
    cell, cells = x - CHART_LEFT, extent.columns // extent.across
    if not 0 <= cell < cells:
        return cursor
    return replace(cursor, position=_near(extent.grid.shown.middle_of(cell, cells), extent.grid))


def _zoomed(cursor: AxisCursor, key: str, grid: Grid) -> AxisCursor:
    """Half or twice as much around the cursor; all of it with ``0``."""
    if key == "0":
        return AxisCursor(cursor.position)
    width = max(grid.min_width, grid.shown.width * (0.5 if ZOOMS[key] > 0 else 2.0))
    if width >= grid.whole.width:
        return AxisCursor(cursor.position)
    return AxisCursor(cursor.position, grid.shown.zoomed(cursor.position, width).within(grid.whole))


def _moved(position: float, key: str, extent: Extent) -> float:
    measured, shown = extent.grid.measured, extent.grid.shown
    if key in ("home", "end"):
        return measured.low if key == "home" else measured.high
    if key not in MOVES:
        return position
    by_steps = extent.grid.axis == "steps"
    if by_steps and shown.width < extent.columns / extent.across:
        position = round(position) + MOVES[key]
    else:
        column = shown.column_of(position, extent.columns) + MOVES[key] * extent.across
        position = shown.middle_of(column, extent.columns)
    return _near(position, extent.grid)


def _near(position: float, grid: Grid) -> float:
    """The position, or the step next to it, from the first value to the last."""
    position = float(round(position)) if grid.axis == "steps" else position
    return min(max(position, grid.measured.low), grid.measured.high)


def _with(position: float, span: Span) -> Span:
    return span if position in span else span.centred_on(position)


def draw_cursor(canvas: Canvas, cursor: AxisCursor, extent: Extent) -> None:
    """Draw a vertical line at the cursor on the canvas of an ``OverlayPlot``."""
    if cursor.position in extent.grid.shown:
        area = curve_area(canvas)
        draw_line(area, extent.grid.shown.column_of(cursor.position, extent.columns) // extent.across)


def cursor_line(
    comparison: Compared, cursor: AxisCursor, extent: Extent, *, by_run: bool, smoothed: bool, width: int
) -> Line:
    """The position and what each group's curve, or each run's, has there: in ``width`` cells.

    Of groups first the spread is left out, of runs the names; then those at the end, whose number is said.
    """
    grid = extent.grid
    words = sentences.axis_words(grid.axis)(cursor.position)
    head = labelled(sentences.AXES[grid.axis], words)
    if smoothed:
        head = Phrase((*head.words, Word(", smoothed", Style.DIM)))
    column = grid.shown.column_of(cursor.position, extent.columns)
    if cursor.position not in grid.shown:  # a resumed run has taken steps back
        return [head, phrase(units.NOT_AVAILABLE, Style.DIM)]
    groups = list(zip(comparison.groups, grid.curves[:MAX_GROUPS], strict=False))
    forms = _forms_of_runs(groups, column) if by_run else _forms_of_groups(groups, column)
    for form in forms:
        if line_width([head, *form]) <= width:
            return [head, *form]
    return [head, *_first(forms[-1], width - line_width([head]) - GAP)]


def _first(phrases: Line, width: int) -> Line:
    """As many as fit, and how many more there are."""
    for count in range(len(phrases) - 1, -1, -1):
        line = [*phrases[:count], phrase(f"… {len(phrases) - count} more", Style.DIM)]
        if line_width(line) <= width:
            return line
    return []


_Drawn: TypeAlias = Sequence[tuple[Group, GroupCurve | None]]


def _forms_of_groups(groups: _Drawn, column: int) -> tuple[Line, ...]:
    return tuple(
        [
            Phrase(
                (
                    Word(f"{group.letter} ", STYLES[group.colour] | BOLD),
                    *_of_group(curve, column, group, brief),
                )
            )
            for group, curve in groups
        ]
        for brief in (False, True)
    )


def _of_group(curve: GroupCurve | None, column: int, group: Group, brief: bool) -> tuple[Word, ...]:
    """The mean and the range of the runs; the range alone, and of how many, where some have ended."""
    if curve is None:
        return _value(math.nan, "", is_bad=False, colour=group.colour)
    mean, low, high = (float(values[column]) for values in (curve.mean, curve.low, curve.high))
    figure = Spread(mean=mean, low=low, high=high, runs=len(group.runs))
    words = sentences.spread(figure, units.loss, brief=brief)
    if not math.isfinite(mean) and math.isfinite(low):
        left = sum(run is not None and math.isfinite(run.loss[column]) for run in curve.runs)
        words = sentences.spread_of_some(figure, left, units.loss, brief=brief)
    return _value(low, words, is_bad=bool(curve.nonfinite[column]), colour=group.colour)


def _forms_of_runs(groups: _Drawn, column: int) -> tuple[Line, Line]:
    """A phrase for each run with its name, or for each group with the values in the order of its runs."""
    named: Line = []
    brief: Line = []
    for group, curve in groups:
        letter = Word(f"{group.letter} ", STYLES[group.colour] | BOLD)
        runs = curve.runs if curve is not None else (None,) * len(group.runs)
        values = [_of_run(run, column, group.colour) for run in runs]
        named += [
            Phrase((letter, Word(f"{run.name} ", Style.DIM), *words))
            for run, words in zip(group.runs, values, strict=True)
        ]
        apart = [word for words in values for word in (Word(" "), *words)]
        brief.append(Phrase((letter, *apart[1:])))
    return named, brief


def _of_run(run: RunCurve | None, column: int, colour: str) -> tuple[Word, ...]:
    loss = math.nan if run is None else float(run.loss[column])
    return _value(
        loss, units.loss(loss), is_bad=run is not None and bool(run.nonfinite[column]), colour=colour
    )


def _value(loss: float, words: str, *, is_bad: bool, colour: str) -> tuple[Word, ...]:
    """``words`` in the group's colour if there is a ``loss``; whether some or all were NaN or Inf."""
    if math.isfinite(loss):
        bad = (Word(" ×", Style.ERROR),) if is_bad else ()
        return (Word(words, STYLES[colour]), *bad)
    return (Word("NaN or Inf", Style.ERROR) if is_bad else Word(units.NOT_AVAILABLE, Style.DIM),)
