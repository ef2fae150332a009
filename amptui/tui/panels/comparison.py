"""The precisions of this run side by side, and what AMP gave."""

from collections.abc import Callable

from amptui import units
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.ink import BOLD, Ink, precision_glyph, precision_ink
from amptui.tui.panels.phrases import Gauge, Phrase, Word, quiet, wrapped, write
from amptui.tui.panels.state import ScreenState

_LABEL_WIDTH = 8
_NARROWEST_COLUMN, _WIDEST_COLUMN = 11, 16
"""A blank, then room for ``▲ AMP fp16``."""

NOTHING_YET = "no step counted yet"

_ROWS: tuple[tuple[str, int, Callable[[PrecisionStats], str]], ...] = (
    ("median", 0, lambda stats: units.milliseconds(stats.median_step_seconds)),
    ("samples", 2, lambda stats: units.rate(stats.samples_per_second)),
    ("peak", 1, lambda stats: units.number_of_bytes(stats.peak_allocated_bytes)),
    ("loss", 3, lambda stats: units.loss(stats.last_loss)),
    ("skipped", 4, lambda stats: units.count(stats.skipped)),
    ("steps", 5, lambda stats: units.count(stats.steps)),
)
"""Label, rank (the highest is left out first) and cell of each line of the table."""

_BARS: tuple[tuple[str, Callable[[PrecisionStats], float | None]], ...] = (
    ("median step", lambda stats: stats.median_step_seconds),
    ("peak allocated memory", lambda stats: stats.peak_allocated_bytes),
)


def headline(_view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Nothing: the verdict stands under the table that it comes from."""
    return []


def draw(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The table, the verdict, what was left out of both, and bars where there is room for them."""
    comparison = view.comparison
    if not comparison.rows:
        quiet(canvas, NOTHING_YET)
        return
    columns = ordered(comparison)[: max(1, (canvas.width - _LABEL_WIDTH) // _NARROWEST_COLUMN)]
    verdict = _verdict_lines(comparison, view.unmeasured_steps, canvas.width)
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
    """``AMP 1.94× faster``, or slower, said as plainly; None while it cannot be said."""
    speedup = comparison.speedup
    if speedup is None or speedup <= 0:
        return None
    if units.ratio(max(speedup, 1 / speedup)) == "1.00×":
        return Word(f"AMP as fast as {precision_label(comparison.baseline or 'fp32')}")
    if speedup > 1:
        return Word(f"AMP {units.ratio(speedup)} faster", Ink.GOOD | BOLD)
    return Word(f"AMP {units.ratio(1 / speedup)} slower", Ink.WARNING | BOLD)


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


def _verdict_lines(comparison: Comparison, unmeasured_steps: int, width: int) -> list[list[Phrase]]:
    """What AMP gave, or why that cannot be said; then the steps that no figure counts."""
    words = [word for word in (speed_words(comparison), memory_words(comparison)) if word is not None]
    if comparison.speedup is None:
        words += [Word(line, Ink.DIM) for line in wrapped(comparison.reason, width, lines=3)]
    left_out = sum(stats.settling_steps for stats in comparison.rows)
    words.append(Word(f"settling steps left out: {units.count(left_out)}", Ink.DIM))
    if unmeasured_steps:
        words.append(Word(f"steps not measured: {units.count(unmeasured_steps)}", Ink.DIM))
    return [[Phrase((word,))] for word in words]


def _draw_table(canvas: Canvas, columns: list[PrecisionStats], lines: int) -> int:
    """At most ``lines`` lines of table, its head included; return the line after it."""
    width = min(_WIDEST_COLUMN, (canvas.width - _LABEL_WIDTH) // len(columns))
    places = [(_LABEL_WIDTH + i * width, stats) for i, stats in enumerate(columns)]
    for x, stats in places:
        head = f"{precision_glyph(stats.precision)} {precision_label(stats.precision)}"
        canvas.text(x + 1, 0, head, precision_ink(stats.precision) | BOLD, width=width - 1, align="right")
    rows = [row for row in _ROWS if row[1] < lines - 1]
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
