"""Where a step's time goes in each precision: stacked bars, the bottleneck, and what AMP can gain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from amptui.base import units
from amptui.diagnosis.bottleneck import bound_words, evidence, limit_beside
from amptui.diagnosis.labels import precision_glyph, precision_label, signed_label
from amptui.diagnosis.speed import result_of_the_pair
from amptui.diagnosis.tensor_cores import flops_hints, flops_line
from amptui.telemetry.view import PrecisionTiming, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import (
    Block,
    Line,
    Phrase,
    Word,
    fitting_lines,
    phrase,
    wrapped_phrases,
    write_lines,
)
from amptui.tui.renderables.gauges import draw_stack
from amptui.tui.style import BOLD, NO_VERDICT, VERDICT_SIGNS, Style, precision_style

_LABEL_WIDTH = 9
"""A precision's glyph and ``device``, and a blank."""

_TOTAL_WIDTH = 9
"""A blank and ``3.91 ms``, right-aligned."""

_COLUMN_GAP = 4
"""Blanks before each column of the legend and the table."""

_INDENT = 2

_MAX_LINES = 3
"""Lines of one sentence."""

_BOUND_SIGNS = {
    "compute": VERDICT_SIGNS["info"],
    "input": VERDICT_SIGNS["warning"],
    "launch": VERDICT_SIGNS["warning"],
}


class _Part(NamedTuple):
    """How one part of a step is drawn."""

    name: str
    cell: str
    ascii_cell: str

    def sign(self, ascii_only: bool) -> str:
        """What its cells are filled with."""
        return self.ascii_cell if ascii_only else self.cell


_PARTS = (
    _Part("input", "░", "i"),
    _Part("forward", "█", "F"),
    _Part("backward", "▓", "B"),
    _Part("clip", "▞", "c"),
    _Part("optimizer", "▒", "o"),
)
"""All have the precision's style and differ by how much of the cell is filled."""


class _Row(NamedTuple):
    """One bar: a precision's parts on one clock."""

    precision: str
    clock: str
    """``host`` or ``device``."""
    seconds: Mapping[str, float]

    @property
    def whole(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())


def draw(canvas: Canvas, view: SessionView) -> int:
    """Draw what fits at the bottom of ``canvas``; return the number of lines.

    Bars and legend matter most, then the verdicts on the current precision and on those compared, then the
    table.
    """
    rows = [row for timing in view.timings for row in _rows(timing)]
    labels: list[Line] = [[Phrase(_row_label(row))] for row in rows]
    picture = [_title(view.timings), *labels, _legend(ascii_only=canvas.ascii_only)]
    table = [_table_line(row) for row in rows]
    blocks = [
        Block(picture, 0, len(picture)),
        Block(table, 9, len(table)),
        Block([[]], 8),
        *(_verdict(timing, view, canvas.width) for timing in view.timings),
        *_achieved(view, canvas.width),
    ]
    lines = fitting_lines(blocks, canvas.height)
    top = canvas.height - len(lines)
    write_lines(canvas, top, lines)
    if len(picture) <= canvas.height:
        _draw_bars(canvas.rows(top + 1, len(rows)), rows)
    return len(lines)


def _achieved(view: SessionView, width: int) -> list[Block]:
    """What each precision's operations come to, and what holds AMP's back."""
    rates = [(line, Style.TEXT, 5) for flops in view.flops if (line := flops_line(flops))]
    hints = [(line, Style.DIM, 6) for line in flops_hints(view.flops)]
    blocks = []
    for text, style, rank in (*rates, *hints):
        lines = wrapped_phrases(text, style, width, lines=_MAX_LINES)
        blocks.append(Block(lines, rank, len(lines)))
    return blocks


def _rank(precision: str, view: SessionView) -> int:
    first = (view.precision, view.comparison.baseline, view.comparison.low)
    return first.index(precision) if precision in first else len(first)


def _rows(timing: PrecisionTiming) -> list[_Row]:
    """The host's clock and below it the device's, if there is one."""
    on_host: dict[str, float] = {phase.name: phase.host_seconds for phase in timing.phases}
    on_device: dict[str, float] = {
        phase.name: phase.device_seconds for phase in timing.phases if phase.device_seconds is not None
    }
    clocks = (("host", on_host), ("device", on_device))
    return [_Row(timing.precision, clock, seconds) for clock, seconds in clocks if seconds]


def _title(timings: Sequence[PrecisionTiming]) -> Line:
    steps = ", ".join(
        f"{units.count(timing.steps)} {precision_label(timing.precision)}" for timing in timings
    )
    return [phrase("where a step's time goes"), phrase(f"medians of {steps} steps", Style.DIM, 1)]


def _draw_bars(canvas: Canvas, rows: Sequence[_Row]) -> None:
    """A line each, followed by its sum. The longest step fills the width: faster ones are shorter."""
    longest = max(row.whole for row in rows)
    room = max(0, canvas.width - _LABEL_WIDTH - _TOTAL_WIDTH)
    for y, row in enumerate(rows):
        parts = [part for part in _PARTS if part.name in row.seconds]
        cells = segments([row.seconds[part.name] for part in parts], longest, room)
        signs = (part.sign(canvas.ascii_only) for part in parts)
        style = precision_style(row.precision)
        stack = ((count, sign, style) for count, sign in zip(cells, signs, strict=True))
        draw_stack(canvas, _LABEL_WIDTH, y, stack)
        total = units.milliseconds(row.whole)
        canvas.text(_LABEL_WIDTH + room, y, total, width=_TOTAL_WIDTH, align="right")


def segments(parts: Sequence[float], whole: float, width: int) -> list[int]:
    """The cells of each of ``parts`` in a bar of which ``whole`` fills ``width`` cells.

    Their edges are rounded, not their lengths, so that the bar is as long as their sum.
    """
    if whole <= 0 or width <= 0:
        return [0] * len(parts)
    edges = [0, *(min(width, round(end / whole * width)) for end in accumulate(parts))]
    return [stop - start for start, stop in pairwise(edges)]


def _legend(*, ascii_only: bool) -> Line:
    """What each fill means; the columns of the table are below it."""
    columns = [f"{' ' * _COLUMN_GAP}{part.sign(ascii_only)} {part.name}" for part in _PARTS]
    return [phrase(" " * _LABEL_WIDTH + "".join(columns))]


def _table_line(row: _Row) -> Line:
    """The same in numbers, each below its part's name."""
    cells = []
    for part in _PARTS:
        seconds = row.seconds.get(part.name)
        text = "–" if seconds is None else units.milliseconds(seconds)
        cells.append(f"{text:>{_COLUMN_GAP + 2 + len(part.name)}}")
    return [Phrase((*_row_label(row), Word("".join(cells))))]


def _row_label(row: _Row) -> tuple[Word, Word]:
    """The label left of a bar."""
    return (
        Word(f"{precision_glyph(row.precision)} ", precision_style(row.precision)),
        Word(f"{row.clock:<{_LABEL_WIDTH - 2}}", Style.DIM),
    )


def _verdict(timing: PrecisionTiming, view: SessionView, width: int) -> Block:
    """``▲ AMP fp16  ✔ compute-bound: ...``, and what another precision can gain."""
    sign, style = _BOUND_SIGNS.get(timing.bound, NO_VERDICT)
    bound = bound_words(timing, ranks=view.world_size)
    head = (
        Word(signed_label(timing.precision), precision_style(timing.precision) | BOLD),
        Word(f"  {sign}", style | BOLD),
    )
    why = evidence(timing) or "too few steps timed yet"
    text = f" {bound}: {why}" if bound else f" {why}"
    width -= _INDENT
    first, *others = wrapped_phrases(text, Style.TEXT, width, lines=_MAX_LINES, head=head)
    pair, comparison = result_of_the_pair(view), view.comparison
    if pair is not None:  # the measured ratio in place of the running one
        comparison = replace(comparison, speedup=pair.speedup)
    gain = limit_beside(timing, view.timings, comparison, ranks=view.world_size)
    limit = wrapped_phrases(gain, Style.DIM, width, lines=_MAX_LINES)
    lines = [first, *([Phrase((Word(" " * _INDENT), *text.words))] for (text,) in [*others, *limit])]
    return Block(lines, 1 + _rank(timing.precision, view), len(lines))
