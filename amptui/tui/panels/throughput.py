"""The speed of training: samples a second over the run, the time of a step, and where it goes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.diagnosis.labels import precision_label, precision_letter, signed_label
from amptui.diagnosis.speed import NO_STEPS, result_of_the_pair
from amptui.diagnosis.tensor_cores import flops_hints, flops_line, mfu_words, rate_words
from amptui.diagnosis.words import explanation, long_words
from amptui.telemetry.timing import judge_gain
from amptui.telemetry.view import PrecisionTiming, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.curve import draw_panel
from amptui.tui.panels.phrases import (
    Block,
    Phrase,
    Word,
    fitting_lines,
    phrase,
    quiet,
    wrapped_phrases,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.step_window import visible_window
from amptui.tui.renderables.table import bar_column, draw_table
from amptui.tui.style import BOLD, NO_VERDICT, VERDICT_SIGNS, Style, precision_style

_LARGE = (74, 16)
"""With fewer columns or lines there is no room for the time breakdown below the curve."""

_MIN_CURVE = 8
"""At least so many lines for the curve, with ribbon, axis and the line of its cursor."""


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Samples a second and the time of a step over the last measured steps; what its operations come to."""
    phrases = list[Phrase]()
    flops = next((flops for flops in view.flops if flops.counted.precision == view.precision), None)
    if flops is not None and flops.flops_per_second is not None:
        words = [Word(rate_words(flops))]
        if flops.mfu is not None:
            words += [Word(f" {mfu_words(flops)}"), Word(" MFU", Style.DIM)]
        phrases.append(Phrase(tuple(words), 2))
    if view.samples_per_second is not None:
        samples = units.rate(view.samples_per_second, "samples")
        phrases.append(phrase(f"{samples:>16}", Style.STRONG))
    if view.step_seconds is not None:
        step = Word(f"{units.milliseconds(view.step_seconds):>7}"), Word("/step", Style.DIM)
        phrases.append(Phrase(step, 1))
    return phrases


def draw(canvas: Canvas, view: SessionView, screen: ScreenState, *, plot: CurvePlot) -> None:
    """Samples a second over the run, coloured by precision; in a large panel, the time breakdown too."""
    if not view.samples_rate.count:
        quiet(canvas, NO_STEPS)
        return
    area = canvas.rows(0, canvas.height - _draw_timing(canvas, view))
    if screen.focus == "throughput":
        draw_panel(area, plot, view, screen, "throughput")
        return
    window = visible_window(view.samples_rate, screen.zoom, ahead=screen.steps_ahead)
    plot.draw(area, view.samples_rate, window=window, switches=view.switches)


# ------------------------------------------------------------------------ where a step's time goes

_MIN_BAR, _MAX_BAR = 24, 200

_INDENT = 2

_MAX_LINES = 3
"""Lines of one sentence."""

_BOUND_SIGNS = {
    "compute": VERDICT_SIGNS["info"],
    "input": VERDICT_SIGNS["warning"],
    "launch": VERDICT_SIGNS["warning"],
}


_FILLS = {"input": "░", "forward": "█", "backward": "▓", "clip": "▞", "optimizer": "▒"}
"""What fills the cells of each part of a step: all have the precision's style."""


class _Row(NamedTuple):
    """One bar: a precision's parts on one clock."""

    precision: str
    clock: str
    """``host`` or ``device``."""
    seconds: Mapping[str, float]


def _draw_timing(canvas: Canvas, view: SessionView) -> int:
    """Draw where a step's time goes below the curve; return the lines taken, with a blank one above them.

    The table matters most, then the verdicts on the current precision and on those compared.
    """
    if canvas.width < _LARGE[0] or canvas.height < _LARGE[1] or not view.timings:
        return 0
    room, rows = canvas.height - _MIN_CURVE - 1, [row for timing in view.timings for row in _rows(timing)]
    verdicts = (_verdict(timing, view, canvas.width) for timing in view.timings)
    blocks = [Block([[]], 8), *verdicts, *_rates(view, canvas.width)]
    lines = fitting_lines(blocks, max(0, room - 1 - len(rows)))
    taken = 2 + len(rows) + len(lines)
    if taken > room + 1:
        return 0
    table = canvas.rows(canvas.height - taken + 1)
    write_lines(table, draw_table(table, _columns(view, rows), rows), lines)
    return taken


def _columns(view: SessionView, rows: Sequence[_Row]) -> list[Column[_Row]]:
    """The clock of each precision, a bar of its parts, and their times."""
    longest = max(sum(row.seconds.values()) for row in rows)
    title = "where a step's time goes"
    steps = ", ".join(f"{units.count(it.steps)} {precision_label(it.precision)}" for it in view.timings)
    long, shorter = f"{title}: medians of {steps} steps", (f"{title} (medians)", title, "time")

    def clock(row: _Row) -> Cell:
        return f"{precision_letter(row.precision)} {row.clock}", precision_style(row.precision)

    def bar(row: _Row) -> list[tuple[float, str, int]]:
        style = precision_style(row.precision)
        return [(row.seconds.get(part, 0.0), fill, style) for part, fill in _FILLS.items()]

    def seconds(part: str, row: _Row) -> str:
        return "–" if part not in row.seconds else units.milliseconds(row.seconds[part])

    return [
        Column(title="", cell=clock, align="left"),
        bar_column(long, bar, longest, short_titles=shorter, gap=1, min_width=_MIN_BAR, max_width=_MAX_BAR),
        *(
            Column(title=f"{fill} {part}", cell=partial(seconds, part), priority=priority)
            for priority, (part, fill) in enumerate(_FILLS.items(), 1)
        ),
        Column(title="", cell=lambda row: units.milliseconds(sum(row.seconds.values()))),
    ]


def _rates(view: SessionView, width: int) -> list[Block]:
    """What each precision's operations come to, and what holds AMP's back."""
    rates = [(line, Style.TEXT, 5) for flops in view.flops if (line := flops_line(flops))]
    hints = [(line, Style.DIM, 6) for line in flops_hints(view.flops)]
    blocks = []
    for text, style, rank in (*rates, *hints):
        lines = wrapped_phrases(text, style, width, lines=_MAX_LINES)
        blocks.append(Block(lines, rank, len(lines)))
    return blocks


def _rows(timing: PrecisionTiming) -> list[_Row]:
    """The host's clock and below it the device's, if there is one."""
    on_host: dict[str, float] = {phase.name: phase.host_seconds for phase in timing.phases}
    on_device: dict[str, float] = {
        phase.name: phase.device_seconds for phase in timing.phases if phase.device_seconds is not None
    }
    clocks = (("host", on_host), ("device", on_device))
    return [_Row(timing.precision, clock, seconds) for clock, seconds in clocks if seconds]


def _verdict(timing: PrecisionTiming, view: SessionView, width: int) -> Block:
    """``H AMP fp16  ✔ compute-bound: ...``, what another precision can gain, and what that follows from."""
    pair, comparison = result_of_the_pair(view), view.comparison
    if pair is not None:  # the measured ratio in place of the running one
        comparison = replace(comparison, speedup=pair.speedup)
    limit = judge_gain(timing, comparison, ranks=view.world_size)
    sign, style = _BOUND_SIGNS.get(limit.state, NO_VERDICT)
    head = (
        Word(signed_label(timing.precision), precision_style(timing.precision) | BOLD),
        Word(f"  {sign}", style | BOLD),
    )
    width -= _INDENT
    first, *others = wrapped_phrases(f" {long_words(limit)}", Style.TEXT, width, lines=_MAX_LINES, head=head)
    why = wrapped_phrases(explanation(limit), Style.DIM, width, lines=_MAX_LINES)
    lines = [first, *([Phrase((Word(" " * _INDENT), *text.words))] for (text,) in [*others, *why])]
    order = (view.precision, view.comparison.baseline, view.comparison.low)
    rank = 1 + (order.index(timing.precision) if timing.precision in order else len(order))
    return Block(lines, rank, len(lines))
