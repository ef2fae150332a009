"""The precisions of this run side by side, and what AMP gave."""

from collections.abc import Callable
from typing import TypeAlias

from amptui import units
from amptui.telemetry.aftersteps import losses_after
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.ink import BOLD, Ink, precision_glyph, precision_ink
from amptui.tui.panels import inturns
from amptui.tui.panels.phrases import Gauge, Phrase, Word, quiet, wrapped, wrapped_phrases, write
from amptui.tui.panels.state import ScreenState

_LABEL_WIDTH = 8
_NARROWEST_COLUMN, _WIDEST_COLUMN = 11, 16
"""A blank, then room for ``▲ AMP fp16``."""

NOTHING_YET = "no step counted yet"

_UNFAIR = "mid-run losses start where the other precision left off"

_Row: TypeAlias = tuple[str, int, Callable[[PrecisionStats], str]]
"""Label, rank (the highest is left out first) and cell of a line of the table."""

_ROWS: tuple[_Row, ...] = (
    ("median", 0, lambda stats: units.milliseconds(stats.median_step_seconds)),
    ("samples", 2, lambda stats: units.rate(stats.samples_per_second)),
    ("peak", 1, lambda stats: units.number_of_bytes(stats.peak_allocated_bytes)),
    ("energy", 6, lambda stats: units.joules(stats.joules_per_1000_samples, per="1k")),
    ("loss", 3, lambda stats: units.loss(stats.last_loss)),
    ("skipped", 4, lambda stats: units.count(stats.skipped)),
    ("steps", 5, lambda stats: units.count(stats.steps)),
)
"""The lines of the table; that of the energy only where a GPU counts it."""

_BARS: tuple[tuple[str, Callable[[PrecisionStats], float | None]], ...] = (
    ("median step", lambda stats: stats.median_step_seconds),
    ("peak allocated memory", lambda stats: stats.peak_allocated_bytes),
)


def headline(_view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Nothing: the verdict stands under the table that it comes from."""
    return []


def draw(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The table, the verdict or how far a comparison is, and bars where there is room for them."""
    comparison = view.comparison
    if not comparison.rows:
        quiet(canvas, NOTHING_YET)
        return
    columns = ordered(comparison)[: max(1, (canvas.width - _LABEL_WIDTH) // _NARROWEST_COLUMN)]
    spare_lines = canvas.height - _table_height(columns)
    runs = inturns.running(view)
    if runs is not None:
        height = inturns.progress_height(runs, canvas.width, spare_lines)
        y = _draw_table(canvas, columns, canvas.height - height)
        y += canvas.height > y + height
        inturns.draw_progress(canvas.part(Rect(0, y, canvas.width, height)), runs)
        _draw_bars(canvas, columns, y + height + 1)
        return
    verdict = _verdict_lines(view, canvas.width, spare_lines)
    y = _draw_table(canvas, columns, canvas.height - len(verdict))
    y += canvas.height > y + len(verdict)
    for line in verdict:
        write(canvas, 0, y, line)
        y += 1
    _draw_bars(canvas, columns, y + 1)


def ordered(comparison: Comparison) -> list[PrecisionStats]:
    """The baseline beside AMP first, then the other precisions that were used."""
    first = (comparison.baseline, comparison.amp)
    return sorted(
        comparison.rows,
        key=lambda stats: first.index(stats.precision) if stats.precision in first else len(first),
    )


def speed_words(comparison: Comparison) -> Word | None:
    """``AMP 1.94× faster (1.90 to 1.98)``, or slower, said as plainly; None while it cannot be said."""
    speedup = comparison.speedup
    if speedup is None or speedup <= 0:
        return None
    than = precision_label(comparison.baseline or "fp32")
    return inturns.speed_word(speedup, comparison.speedup_low, comparison.speedup_high, name="AMP", than=than)


def step_words(comparison: Comparison) -> tuple[Word, ...]:
    """``3.91 ms → 2.02 ms``, each in the ink of its precision; nothing while either is missing."""
    by_name = {stats.precision: stats.median_step_seconds for stats in comparison.rows}
    before, after = by_name.get(comparison.baseline or ""), by_name.get(comparison.amp or "")
    if before is None or after is None:
        return ()
    return (
        Word(units.milliseconds(before), precision_ink(comparison.baseline)),
        Word(" → ", Ink.DIM),
        Word(units.milliseconds(after), precision_ink(comparison.amp)),
    )


def memory_words(comparison: Comparison) -> Word | None:
    """``38% less peak memory``, or more, said as plainly; None while it cannot be said."""
    saving = comparison.memory_saving
    if saving is None:
        return None
    amount = units.percent(abs(saving))
    if amount == "0%":
        return Word("the same peak memory")
    if saving > 0:
        return Word(f"{amount} less peak memory", Ink.GOOD)
    return Word(f"{amount} more peak memory", Ink.WARNING)


def _rows_of(columns: list[PrecisionStats]) -> list[_Row]:
    """The lines that the table of these precisions has."""
    has_energy = any(stats.joules_per_1000_samples is not None for stats in columns)
    return [row for row in _ROWS if has_energy or row[0] != "energy"]


def _table_height(columns: list[PrecisionStats]) -> int:
    """Lines of the whole table with its head and a blank line below it."""
    return len(_rows_of(columns)) + 2


def _verdict_lines(view: SessionView, width: int, spare_lines: int) -> list[list[Phrase]]:
    """What AMP gave and why not more, or why that cannot be said; then the steps that no figure counts.

    The explanations take no more than ``spare_lines``, so that the table stays whole.
    """
    lines = inturns.card_lines(view, width)
    if not inturns.is_of_the_pair(view):
        lines += _gain_lines(view.comparison, width)
    left_out = sum(stats.settling_steps for stats in view.comparison.rows)
    uncounted = [f"settling steps left out: {units.count(left_out)}"]
    if view.unmeasured_steps:
        uncounted.append(f"steps not measured: {units.count(view.unmeasured_steps)}")
    room = spare_lines - len(uncounted)
    for text, ink in _remarks(view):
        lines += wrapped_phrases(text, ink, width, lines=room - len(lines))
    return [*lines, *([Phrase((Word(text, Ink.DIM),))] for text in uncounted)]


def _gain_lines(comparison: Comparison, width: int) -> list[list[Phrase]]:
    """Speed and memory over all steps so far, or why there is no ratio yet."""
    words = [word for word in (speed_words(comparison), memory_words(comparison)) if word is not None]
    lines = [line for word in words for line in inturns.speed_lines(word, width)]
    if comparison.speedup is None:
        lines += [[Phrase((Word(line, Ink.DIM),))] for line in wrapped(comparison.reason, width, lines=3)]
    return lines


def _remarks(view: SessionView) -> list[tuple[str, int]]:
    """Why AMP gave little, and the losses after as many steps; the first matters most."""
    remarks: list[tuple[str, int]] = [(text, Ink.TEXT) for text in view.comparison.explanations]
    losses = losses_after(view)
    if losses is not None and view.comparison.speedup is not None:
        before = f"{precision_label(view.comparison.baseline or '')} {units.loss(losses.baseline)}"
        both = f"{before}, AMP {units.loss(losses.amp)}"
        text = f"loss after {units.count(losses.steps)} steps of each: {both}; {_UNFAIR}"
        remarks.append((text, Ink.DIM))
    return remarks


def _draw_table(canvas: Canvas, columns: list[PrecisionStats], lines: int) -> int:
    """At most ``lines`` lines of table, its head included; return the line after it."""
    width = min(_WIDEST_COLUMN, (canvas.width - _LABEL_WIDTH) // len(columns))
    places = [(_LABEL_WIDTH + i * width, stats) for i, stats in enumerate(columns)]
    for x, stats in places:
        head = f"{precision_glyph(stats.precision)} {precision_label(stats.precision)}"
        canvas.text(x + 1, 0, head, precision_ink(stats.precision) | BOLD, width=width - 1, align="right")
    rows = [row for row in _rows_of(columns) if row[1] < lines - 1]
    for y, (label, _rank, cell) in enumerate(rows, 1):
        canvas.text(0, y, label, Ink.DIM)
        for x, stats in places:
            canvas.text(x + 1, y, cell(stats), width=width - 1, align="right")
    return 1 + len(rows)


def _draw_bars(canvas: Canvas, columns: list[PrecisionStats], y: int) -> None:
    """The same figures as lengths, for the eye: a shorter bar is a smaller cost."""
    for title, measure in _BARS:
        known = [(stats.precision, value) for stats in columns if (value := measure(stats)) is not None]
        if len(known) < 2 or y + 1 + len(known) > canvas.height:
            continue
        canvas.text(0, y, title, Ink.DIM)
        longest = max(value for _, value in known) or 1
        for line, (precision, value) in enumerate(known, y + 1):
            ink = precision_ink(precision)
            bar = Gauge(canvas.width - 2, value / longest, ink, "full")
            write(canvas, 0, line, [Phrase((Word(f"{precision_glyph(precision)} ", ink), bar))])
        y += len(known) + 2
