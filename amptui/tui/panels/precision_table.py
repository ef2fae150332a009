"""The precisions of this run side by side, what AMP or FP8 gained, and the A/B test: progress and result."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.diagnosis import speed
from amptui.diagnosis.labels import compared_label, family_label, precision_glyph, precision_label
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records.run import AMP_PRECISIONS, is_emulated, reference_precision
from amptui.telemetry.comparison import MIN_STEPS, ordered
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.phrases import (
    Gauge,
    Line,
    Phrase,
    Word,
    folded_room,
    phrase,
    precision_word,
    quiet,
    wrapped,
    wrapped_phrases,
    write,
    write_folded,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.gauges import INTERVAL_LINES, draw_interval
from amptui.tui.renderables.table import draw_table
from amptui.tui.style import BOLD, Style, precision_style

_LABEL_WIDTH = len("last loss")
_NARROWEST_COLUMN, _WIDEST_COLUMN = 10, 15
"""Room for ``▲ AMP fp16``."""

NOTHING_YET = "no steps counted yet"

_MAX_CARD_LINES = 8
"""Lines of one result: what a narrow panel needs."""

_NO_BREAK = "\N{NO-BREAK SPACE}"

_BAR_WIDTH = 61
"""As wide as the widest axis of an interval."""

_GAIN_STYLES = {1: Style.GOOD | BOLD, 0: int(Style.TEXT), -1: Style.WARNING | BOLD}
"""The style of a precision that is faster, as fast, or slower."""


class _Row(NamedTuple):
    """A line of the table."""

    label: str
    rank: int
    """The highest is dropped first."""
    cell: Callable[[PrecisionStats], str]
    is_cost: bool = False
    """Whether emulated steps have no figure in it: that they are emulated stands above it."""
    is_uncertain: bool = False
    """Whether it is dim while provisional."""


def is_provisional(stats: PrecisionStats) -> bool:
    """Whether its figures come from warm-up steps."""
    return stats.provisional_steps > 0


def _mean(stats: PrecisionStats) -> str:
    return speed.of_steps(stats, units.milliseconds(stats.mean_step_seconds), units.NOT_AVAILABLE)


def _samples(stats: PrecisionStats) -> str:
    return speed.of_steps(stats, units.rate(stats.samples_per_second), units.NOT_AVAILABLE)


def _steps(stats: PrecisionStats) -> str:
    return units.count(stats.steps) + ("" if stats.steps >= MIN_STEPS else f"/{MIN_STEPS}")


_ROWS = (
    _Row("mean", 0, _mean, is_uncertain=True),
    _Row("samples", 2, _samples, is_cost=True, is_uncertain=True),
    _Row("peak", 1, lambda stats: units.number_of_bytes(stats.peak_allocated_bytes), is_cost=True),
    _Row("energy", 6, lambda stats: units.joules(stats.joules_per_1000_samples, per="1k"), is_cost=True),
    _Row("last loss", 3, lambda stats: units.loss(stats.last_loss)),
    _Row("skipped", 4, lambda stats: units.count(stats.skipped)),
    _Row("steps", 5, _steps, is_uncertain=True),
)
"""The lines of the table; energy only if a GPU measures it, steps as ``12/20`` while too few for a ratio."""

_BARS: tuple[tuple[str, Callable[[PrecisionStats], float | None]], ...] = (
    ("mean step", lambda stats: None if is_provisional(stats) else stats.mean_step_seconds),
    ("peak allocated memory", lambda stats: stats.peak_allocated_bytes),
)
"""Not of emulated steps."""


def headline(_view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Nothing: the verdict is below its table."""
    return []


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The table, the verdict or a comparison's progress, and bars if there is room."""
    if not view.comparison.rows:
        quiet(canvas, NOTHING_YET)
        return
    columns = ordered(view.comparison)[: max(1, (canvas.width - _LABEL_WIDTH + 1) // (_NARROWEST_COLUMN + 1))]
    spare_lines = canvas.height - len(_rows_of(columns)) - 2  # the head, and a blank line below
    test = speed.running(view)
    verdict: list[Line] = []
    if test is not None:
        height = _progress_height(test, canvas.width, spare_lines)
    else:
        verdict = _verdict_lines(view, screen, canvas.width, spare_lines)
        height = len(verdict)
    y = _draw_table(canvas, columns, canvas.height - height)
    y += canvas.height > y + height
    below = canvas.rows(y, height)
    if test is not None:
        _draw_progress(below, test)
    for line_y, line in enumerate(verdict):
        write(below, 0, line_y, line)
    _draw_bars(canvas, columns, y + height + 1)


def draw_line(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """What AMP or FP8 gained, an A/B test's progress, or why there is no result yet."""
    test = speed.running(view)
    if test is not None:
        phrases = [phrase(speed.round_words(test), Style.STRONG)]
        phrases += _measured_phrases(test, folded_room(canvas))
    elif view.compared is not None and speed.result_of_the_pair(view) is not None:
        phrases = _measured_phrases(view.compared, folded_room(canvas))
        blocks = min(row.blocks for row in view.compared.rows)
        phrases.append(phrase(speed.blocks_words(blocks, view.compared), Style.DIM, 3))
    else:
        phrases = _gain_phrases(view, screen, folded_room(canvas))
    write_folded(canvas, "comparison", phrases)


def _gain_phrases(view: SessionView, screen: ScreenState, room: int) -> list[Phrase]:
    """The mean steps and the memory, or why there is no ratio; the speed is in the answer's line."""
    comparison, phrases = view.comparison, list[Phrase]()
    by_name = {stats.precision: stats for stats in comparison.rows}
    pair = [by_name.get(name or "") for name in (comparison.baseline, comparison.low)]
    timed = [stats for stats in pair if stats is not None and stats.mean_step_seconds is not None]
    if len(timed) == 2 and comparison.missing != "emulated":
        before, after = map(_step_word, timed)
        phrases.append(Phrase((before, Word(" → ", Style.DIM), after)))
    if (memory := memory_words(comparison)) is not None:
        phrases.append(Phrase((memory,), 1))
    if comparison.speedup is None:
        reason = speed.why_no_ratio(comparison, screen.accepts) or NOTHING_YET
        phrases.append(Phrase(tuple(Word(line, Style.DIM) for line in wrapped(reason, room, lines=1)), 3))
    if hint := _interval_hint(view, screen):
        phrases.append(phrase(hint, Style.DIM, 3))
    return phrases


def speed_words(comparison: Comparison) -> Word | None:
    """``AMP about 1.9× the speed of FP32``, dim: it has no interval; None while unknown."""
    several = sum(row.precision in AMP_PRECISIONS for row in comparison.rows) > 1
    low = precision_label(comparison.low or "") if several else family_label(comparison.low)
    than = precision_label(comparison.baseline or reference_precision(comparison.low or ""))
    speedup, provisional = comparison.speedup, comparison.provisional_speedup
    if speedup is not None and speedup > 0:
        return Word(f"{low} {speed.about_speed(speedup, than)}", Style.DIM)
    if provisional is not None and provisional > 0:
        return Word(f"{low} {speed.about_speed(provisional, than)}, provisional", Style.DIM)
    return None


def _interval_hint(view: SessionView, screen: ScreenState) -> str:
    """How to get an interval for the running tally's ratio; empty without a ratio or a run that takes it."""
    has_ratio = view.comparison.speedup is not None
    return "press c for an interval" if has_ratio and "comparison" in screen.accepts else ""


def _step_word(stats: PrecisionStats) -> Word:
    """``3.91 ms`` in the style of its precision."""
    style = Style.DIM if is_provisional(stats) else precision_style(stats.precision)
    return Word(_mean(stats), style)


def memory_words(comparison: Comparison) -> Word | None:
    """``38% less peak memory``, or more; None while unknown."""
    saving = comparison.memory_saving
    if saving is None:
        return None
    style = Style.GOOD if saving > 0 else Style.WARNING
    return Word(speed.less_memory(saving), Style.TEXT if units.percent(saving) == "0%" else style)


def _rows_of(columns: list[PrecisionStats]) -> list[_Row]:
    """The lines of a table of these precisions."""
    has_energy = any(stats.joules_per_1000_samples is not None for stats in columns)
    return [row for row in _ROWS if has_energy or row.label != "energy"]


def _verdict_lines(view: SessionView, screen: ScreenState, width: int, spare_lines: int) -> list[Line]:
    """What AMP or FP8 gained and why not more, or why that is unknown; then the steps that no figure counts.

    The explanations take no more than ``spare_lines``, so that the table stays whole.
    """
    lines, hint = list[Line](), ""
    # The result of the last finished comparison, a sentence for each precision.
    cards = speed.result_cards(view.compared, view.run) if view.compared is not None else ()
    for card in cards:
        lines += wrapped_phrases(card, Style.STRONG, width, lines=_MAX_CARD_LINES)
    if speed.result_of_the_pair(view) is None:
        # Speed and memory over all steps, or why there is no ratio yet.
        comparison = view.comparison
        words = [word for word in (speed_words(comparison), memory_words(comparison)) if word is not None]
        if comparison.speedup is None:
            words.append(Word(speed.why_no_ratio(comparison, screen.accepts), Style.DIM))
        lines += [line for word in words for line in wrapped_phrases(word.text, word.style, width, lines=3)]
        hint = _interval_hint(view, screen)
    texts = speed.provisional_lines(view.comparison) + speed.uncounted(view)
    notes = [line for text in texts for line in wrapped_phrases(text, Style.DIM, width)]
    room = spare_lines - len(notes)
    lines += wrapped_phrases(hint, Style.DIM, width, lines=room - len(lines))
    for text in speed.explanations(view, screen.accepts):
        lines += wrapped_phrases(text, Style.TEXT, width, lines=room - len(lines))
    if view.comparison.speedup is not None or view.comparison.missing == "emulated":
        room -= len(lines)
        losses = speed.unfair_losses(view)
        forms = (wrapped_phrases(text, Style.DIM, width, lines=room + 1) for text in losses)
        lines += next((form for form in forms if len(form) <= room), [])  # none is cut
    return lines + notes


def _draw_table(canvas: Canvas, columns: list[PrecisionStats], lines: int) -> int:
    """At most ``lines`` lines of table, its head included; return the line after it."""
    width = min(_WIDEST_COLUMN, (canvas.width - _LABEL_WIDTH + 1) // len(columns) - 1)
    labels: Column[_Row] = Column(
        title="", cell=lambda row: (row.label, Style.DIM), align="left", width=_LABEL_WIDTH
    )
    figures: list[Column[_Row]] = [
        Column(
            title=precision_word(stats.precision, width),
            cell=partial(_figure, stats),
            width=width,
            gap=min(place, 1),
            is_optional=False,
        )
        for place, stats in enumerate(columns)
    ]
    return draw_table(canvas, [labels, *figures], [row for row in _rows_of(columns) if row.rank < lines - 1])


def _figure(stats: PrecisionStats, row: _Row) -> Cell:
    emulated = is_emulated(stats.precision)
    text = "–" if emulated and row.is_cost else row.cell(stats)
    is_dim = (row.is_uncertain and is_provisional(stats)) or (emulated and text in ("–", speed.EMULATED))
    return text, Style.DIM if is_dim else Style.TEXT


def _draw_bars(canvas: Canvas, columns: list[PrecisionStats], y: int) -> None:
    """The same figures as bars: a shorter bar is a smaller cost."""
    for title, measure in _BARS:
        measured = [stats for stats in columns if not is_emulated(stats.precision)]
        costs = [(stats.precision, cost) for stats in measured if (cost := measure(stats)) is not None]
        if len(costs) < 2 or y + 1 + len(costs) > canvas.height:
            continue
        canvas.text(0, y, title, Style.DIM)
        largest = max(cost for _, cost in costs) or 1
        for line_y, (precision, cost) in enumerate(costs, y + 1):
            style = precision_style(precision)
            bar = Gauge(canvas.width - 2, cost / largest, style, "full")
            write(canvas, 0, line_y, [Phrase((Word(f"{precision_glyph(precision)} ", style), bar))])
        y += len(costs) + 2


# ------------------------------------------------------------------------------------ the A/B test


def steady_style(view: SessionView) -> int:
    """The style of the current precision; plain during a comparison, where it would flicker."""
    return precision_style(view.precision) if speed.running(view) is None else Style.TEXT


def names(comparison: PrecisionsCompared) -> list[Word]:
    """``■ FP32 ▲ AMP fp16``, each in its style; if more than two, only their number."""
    if len(comparison.rows) > 2:
        return [Word(f"{len(comparison.rows)} precisions", Style.STRONG)]
    words: list[Word] = []
    for row in comparison.rows:
        name = f"{precision_glyph(row.precision)} {compared_label(row.precision, comparison)}"
        words += [Word(" " if words else ""), Word(name, precision_style(row.precision) | BOLD)]
    return words


def _measured_phrases(comparison: PrecisionsCompared, room: int) -> list[Phrase]:
    """The speed of every precision relative to the baseline, and its interval where that fits.

    The only precision is not named if that takes more than ``room`` cells.
    """
    phrases, rows = [], _measured_rows(comparison)
    for row in rows:
        gain, interval = _speed_words(row, comparison)
        if len(rows) == 1 and text_width(gain.text) > room:
            gain, interval = _speed_words(row, comparison, named=False)
        phrases.append(Phrase((gain,), 1))
        if interval:
            phrases.append(phrase(interval, Style.DIM, 2))
    return phrases


def _speed_words(
    row: PrecisionMeasured, comparison: PrecisionsCompared, *, named: bool = True
) -> tuple[Word, str]:
    """``AMP fp16 1.94× the speed of FP32`` and ``(1.90 to 1.98)``; no interval from too few blocks."""
    than = compared_label(comparison.baseline, comparison)
    gain = speed.speed_of(row.speedup or 0, row.speedup_low, row.speedup_high, than)
    words = f"{compared_label(row.precision, comparison)} {gain.words}" if named else gain.words
    return Word(words, _GAIN_STYLES[gain.gain] if gain.interval else Style.DIM), gain.interval


def _progress_height(comparison: PrecisionsCompared, width: int, most: int) -> int:
    """How many of ``most`` lines ``_draw_progress`` takes."""
    lines = sum(map(len, _speed_lines(comparison, width)))
    with_intervals = 2 + lines + INTERVAL_LINES * len(_measured_rows(comparison))
    return with_intervals if with_intervals <= most else 1 + lines


def _draw_progress(canvas: Canvas, comparison: PrecisionsCompared) -> None:
    """The round and the ratios so far; with more room, a progress bar and the intervals."""
    rows: list[PrecisionMeasured | None] = [*_measured_rows(comparison)]
    speeds = _speed_lines(comparison, canvas.width)
    roomy = canvas.height >= 2 + sum(map(len, speeds)) + INTERVAL_LINES * len(rows)
    progress = Word(speed.round_words(comparison), Style.STRONG)
    title = Phrase((Word("A/B test: ", Style.DIM), progress))
    write(canvas, 0, 0, [title if title.width <= canvas.width else Phrase((progress,))])
    y = 1
    if roomy:
        fraction = comparison.rounds / comparison.most_rounds
        write(canvas, 0, 1, [Phrase((Gauge(min(canvas.width, _BAR_WIDTH), fraction, Style.TEXT),))])
        y = 2
    for row, lines in zip(rows or [None], speeds, strict=True):
        for line in lines:
            write(canvas, 0, y, line)
            y += 1
        if roomy and row is not None and row.speedup:
            style = precision_style(row.precision) | BOLD
            interval = canvas.rows(y, INTERVAL_LINES)
            draw_interval(interval, row.speedup, row.speedup_low, row.speedup_high, style=style)
            y += INTERVAL_LINES


def _speed_lines(comparison: PrecisionsCompared, width: int) -> list[list[Line]]:
    """The speed of every precision, wrapped, with its interval on one line if that fits."""
    words = [Word("running the first two blocks", Style.DIM)]
    if rows := _measured_rows(comparison):
        pairs = [_speed_words(row, comparison) for row in rows]
        words = [
            Word(f"{gain.text} {interval.replace(' ', _NO_BREAK)}".rstrip(), gain.style)
            for gain, interval in pairs
        ]
    return [
        [[phrase(line.replace(_NO_BREAK, " "), word.style)] for line in wrapped(word.text, width, lines=3)]
        for word in words
    ]


def _measured_rows(comparison: PrecisionsCompared) -> list[PrecisionMeasured]:
    return [row for row in comparison.rows[1:] if row.speedup]
