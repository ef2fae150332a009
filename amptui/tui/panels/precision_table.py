"""The precisions of this run side by side, and what AMP gained."""

from collections.abc import Callable
from typing import TypeAlias

from amptui.base import units
from amptui.diagnosis.labels import precision_glyph, precision_label
from amptui.diagnosis.speed import (
    PROVISIONAL,
    explanations,
    less_memory,
    result_of_the_pair,
    speed_of,
    uncounted,
    why_no_ratio,
)
from amptui.records.run import AMP_PRECISIONS
from amptui.telemetry.comparison import LITTLE_SPEED, MIN_PROVISIONAL_STEPS, MIN_STEPS, losses_after, ordered
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.panels import ab_comparison
from amptui.tui.panels.phrases import Gauge, Phrase, Word, quiet, wrapped_phrases, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style, precision_style

_LABEL_WIDTH = 8
_NARROWEST_COLUMN, _WIDEST_COLUMN = 11, 16
"""A blank, then room for ``▲ AMP fp16``."""

NOTHING_YET = "no steps counted yet"

_UNFAIR = "mid-run losses start where the other precision left off"

_Row: TypeAlias = tuple[str, int, Callable[[PrecisionStats], str]]
"""Label, rank (the highest is dropped first) and cell of a line of the table."""


def is_provisional(stats: PrecisionStats) -> bool:
    """Whether its figures come from warm-up steps."""
    return stats.provisional_steps > 0


def _of_steps(stats: PrecisionStats, figure: str) -> str:
    """A figure from measured steps; none from a single warm-up step, which loads kernels."""
    if not is_provisional(stats):
        return figure
    if stats.provisional_steps < MIN_PROVISIONAL_STEPS:
        return units.NOT_AVAILABLE
    return f"{PROVISIONAL}{figure}"


def _steps_cell(stats: PrecisionStats) -> str:
    """``580``, or ``12/20`` while there are too few for a ratio."""
    counted = units.count(stats.steps)
    return counted if stats.steps >= MIN_STEPS else f"{counted}/{MIN_STEPS}"


_ROWS: tuple[_Row, ...] = (
    ("median", 0, lambda stats: _of_steps(stats, units.milliseconds(stats.median_step_seconds))),
    ("samples", 2, lambda stats: _of_steps(stats, units.rate(stats.samples_per_second))),
    ("peak", 1, lambda stats: units.number_of_bytes(stats.peak_allocated_bytes)),
    ("energy", 6, lambda stats: units.joules(stats.joules_per_1000_samples, per="1k")),
    ("last loss", 3, lambda stats: units.loss(stats.last_loss)),
    ("skipped", 4, lambda stats: units.count(stats.skipped)),
    ("steps", 5, _steps_cell),
)
"""The lines of the table; energy only if a GPU measures it."""

_UNCERTAIN = ("median", "samples", "steps")
"""The lines that are dim while provisional."""

_BARS: tuple[tuple[str, Callable[[PrecisionStats], float | None]], ...] = (
    ("median step", lambda stats: None if is_provisional(stats) else stats.median_step_seconds),
    ("peak allocated memory", lambda stats: stats.peak_allocated_bytes),
)


def headline(_view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Nothing: the verdict is below its table."""
    return []


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The table, the verdict or a comparison's progress, and bars if there is room."""
    comparison = view.comparison
    if not comparison.rows:
        quiet(canvas, NOTHING_YET)
        return
    columns = ordered(comparison)[: max(1, (canvas.width - _LABEL_WIDTH) // _NARROWEST_COLUMN)]
    spare_lines = canvas.height - _table_height(columns)
    runs = ab_comparison.running(view)
    if runs is not None:
        height = ab_comparison.progress_height(runs, canvas.width, spare_lines)
        y = _draw_table(canvas, columns, canvas.height - height)
        y += canvas.height > y + height
        ab_comparison.draw_progress(canvas.part(Rect(0, y, canvas.width, height)), runs)
        _draw_bars(canvas, columns, y + height + 1)
        return
    verdict = _verdict_lines(view, screen, canvas.width, spare_lines)
    y = _draw_table(canvas, columns, canvas.height - len(verdict))
    y += canvas.height > y + len(verdict)
    for line in verdict:
        write(canvas, 0, y, line)
        y += 1
    _draw_bars(canvas, columns, y + 1)


def speed_words(comparison: Comparison) -> Word | None:
    """``AMP 1.94× the speed of FP32``; None while unknown.

    Without an interval, a difference that may be chance is not coloured.
    """
    speedup = comparison.speedup
    if speedup is None or speedup <= 0:
        return None
    speed = speed_of(speedup, None, None, precision_label(comparison.baseline or "fp32"))
    known = max(speedup, 1 / speedup) >= 1 + LITTLE_SPEED
    return Word(
        f"{_amp_label(comparison)} {speed.words}", ab_comparison.GAIN_STYLES[speed.gain if known else 0]
    )


def interval_hint(view: SessionView, screen: ScreenState) -> str:
    """How to get an interval for the running tally's ratio; empty without a ratio or a run that takes it."""
    known = view.comparison.speedup is not None
    return "press c for an interval" if known and "comparison" in screen.accepts else ""


def provisional_words(comparison: Comparison) -> Word | None:
    """``AMP ~1.94× the speed of FP32``, dim, while it is only a first impression; None otherwise."""
    speedup = comparison.provisional_speedup
    if speedup is None or speedup <= 0:
        return None
    words = (
        f"{PROVISIONAL}{units.ratio(speedup)} the speed of {precision_label(comparison.baseline or 'fp32')}"
    )
    return Word(f"{_amp_label(comparison)} {words}", Style.DIM)


def _amp_label(comparison: Comparison) -> str:
    """``AMP``, or which of several."""
    several = sum(row.precision in AMP_PRECISIONS for row in comparison.rows) > 1
    return precision_label(comparison.amp or "") if several else "AMP"


def step_words(comparison: Comparison) -> tuple[Word, ...]:
    """``3.91 ms → 2.02 ms``, each in the style of its precision; empty while either is missing."""
    by_name = {stats.precision: stats for stats in comparison.rows}
    before, after = by_name.get(comparison.baseline or ""), by_name.get(comparison.amp or "")
    if before is None or after is None or None in (before.median_step_seconds, after.median_step_seconds):
        return ()
    return (_step_word(before), Word(" → ", Style.DIM), _step_word(after))


def _step_word(stats: PrecisionStats) -> Word:
    style = Style.DIM if is_provisional(stats) else precision_style(stats.precision)
    return Word(_of_steps(stats, units.milliseconds(stats.median_step_seconds)), style)


def memory_words(comparison: Comparison) -> Word | None:
    """``38% less peak memory``, or more; None while unknown."""
    saving = comparison.memory_saving
    if saving is None:
        return None
    same = units.percent(saving) == "0%"
    return Word(less_memory(saving), Style.TEXT if same else Style.GOOD if saving > 0 else Style.WARNING)


def _rows_of(columns: list[PrecisionStats]) -> list[_Row]:
    """The lines of a table of these precisions."""
    has_energy = any(stats.joules_per_1000_samples is not None for stats in columns)
    return [row for row in _ROWS if has_energy or row[0] != "energy"]


def _table_height(columns: list[PrecisionStats]) -> int:
    """The number of lines of the whole table, with its head and a blank line below it."""
    return len(_rows_of(columns)) + 2


def _verdict_lines(
    view: SessionView, screen: ScreenState, width: int, spare_lines: int
) -> list[list[Phrase]]:
    """What AMP gained and why not more, or why that is unknown; then the steps that no figure counts.

    The explanations take no more than ``spare_lines``, so that the table stays whole.
    """
    lines, hint = ab_comparison.card_lines(view, width), ""
    if result_of_the_pair(view) is None:
        lines += _gain_lines(view, screen, width)
        hint = interval_hint(view, screen)
    shown = sum(stats.provisional_steps for stats in view.comparison.rows)
    notes = [f"{PROVISIONAL} from {units.count(shown)} warm-up steps"] if shown else []
    notes += uncounted(view)
    room = spare_lines - len(notes)
    for text, style in ((hint, int(Style.DIM)), *_remarks(view, screen)):
        lines += wrapped_phrases(text, style, width, lines=room - len(lines))
    return [*lines, *([Phrase((Word(text, Style.DIM),))] for text in notes)]


def _gain_lines(view: SessionView, screen: ScreenState, width: int) -> list[list[Phrase]]:
    """Speed and memory over all steps, or why there is no ratio yet."""
    comparison = view.comparison
    speed = speed_words(comparison) or provisional_words(comparison)
    words = [word for word in (speed, memory_words(comparison)) if word is not None]
    if comparison.speedup is None:
        words.append(Word(why_no_ratio(comparison, screen.accepts), Style.DIM))
    return [line for word in words for line in wrapped_phrases(word.text, word.style, width, lines=3)]


def _remarks(view: SessionView, screen: ScreenState) -> list[tuple[str, int]]:
    """Why AMP gained little, and the losses after as many steps; the first matters most."""
    told = explanations(view, screen.accepts)
    remarks: list[tuple[str, int]] = [(text, Style.TEXT) for text in told]
    losses = losses_after(view)
    if losses is not None and view.comparison.speedup is not None:
        before = f"{precision_label(view.comparison.baseline or '')} {units.loss(losses.baseline)}"
        both = f"{before}, AMP {units.loss(losses.amp)}"
        text = f"loss after {units.count(losses.steps)} steps of each: {both}; {_UNFAIR}"
        remarks.append((text, Style.DIM))
    return remarks


def _draw_table(canvas: Canvas, columns: list[PrecisionStats], lines: int) -> int:
    """At most ``lines`` lines of table, its head included; return the line after it."""
    width = min(_WIDEST_COLUMN, (canvas.width - _LABEL_WIDTH) // len(columns))
    places = [(_LABEL_WIDTH + i * width, stats) for i, stats in enumerate(columns)]
    for x, stats in places:
        head = f"{precision_glyph(stats.precision)} {precision_label(stats.precision)}"
        canvas.text(x + 1, 0, head, precision_style(stats.precision) | BOLD, width=width - 1, align="right")
    rows = [row for row in _rows_of(columns) if row[1] < lines - 1]
    for y, (label, _rank, cell) in enumerate(rows, 1):
        canvas.text(0, y, label, Style.DIM)
        for x, stats in places:
            dim = label in _UNCERTAIN and is_provisional(stats)
            canvas.text(
                x + 1, y, cell(stats), Style.DIM if dim else Style.TEXT, width=width - 1, align="right"
            )
    return 1 + len(rows)


def _draw_bars(canvas: Canvas, columns: list[PrecisionStats], y: int) -> None:
    """The same figures as bars: a shorter bar is a smaller cost."""
    for title, measure in _BARS:
        known = [(stats.precision, value) for stats in columns if (value := measure(stats)) is not None]
        if len(known) < 2 or y + 1 + len(known) > canvas.height:
            continue
        canvas.text(0, y, title, Style.DIM)
        longest = max(value for _, value in known) or 1
        for line, (precision, value) in enumerate(known, y + 1):
            style = precision_style(precision)
            bar = Gauge(canvas.width - 2, value / longest, style, "full")
            write(canvas, 0, line, [Phrase((Word(f"{precision_glyph(precision)} ", style), bar))])
        y += len(known) + 2
