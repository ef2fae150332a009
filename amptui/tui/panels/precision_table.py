"""The precisions of this run side by side, what AMP or FP8 gained, and the A/B test: progress and result."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.diagnosis import speed
from amptui.diagnosis.amp_answer import amp_answer, no_amp_words
from amptui.diagnosis.finding_fields import interval_ends
from amptui.diagnosis.labels import compared_label, family_label, precision_glyph, precision_label
from amptui.diagnosis.words import explained_words, long_words, speed_words
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records.run import AMP_PRECISIONS, is_emulated
from amptui.telemetry.comparison import MIN_STEPS, judge_held_back, judge_speed, ordered
from amptui.telemetry.finding import Grade
from amptui.telemetry.memory import judge_memory
from amptui.telemetry.view import PrecisionStats, SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.answer_panel import key_of
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

_GAIN_STYLES: Mapping[Grade, int] = {"good": Style.GOOD, "warning": Style.WARNING}
"""The style of a precision that is faster, as fast, or slower."""

_Item: TypeAlias = Line | PrecisionMeasured
"""A line below the table, or the precision whose interval is drawn there."""


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
    ("mean step", lambda stats: None if stats.is_provisional else stats.mean_step_seconds),
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
    stats = ordered(view.comparison)[: max(1, (canvas.width - _LABEL_WIDTH + 1) // (_NARROWEST_COLUMN + 1))]
    has_energy = any(one.joules_per_1000_samples is not None for one in stats)
    rows = [row for row in _ROWS if has_energy or row.label != "energy"]
    width = min(_WIDEST_COLUMN, (canvas.width - _LABEL_WIDTH + 1) // len(stats) - 1)
    columns: list[Column[_Row]] = [
        Column(title="", cell=lambda row: (row.label, Style.DIM), align="left", width=_LABEL_WIDTH),
        *(
            Column(
                title=precision_word(one.precision, width),
                cell=partial(_figure, one),
                width=width,
                gap=min(place, 1),
                is_optional=False,
            )
            for place, one in enumerate(stats)
        ),
    ]
    spare_lines = canvas.height - len(rows) - 2  # the head, and a blank line below
    test = speed.running(view)
    items: list[_Item] = []
    if test is not None:
        items += _progress(test, canvas.width, spare_lines)
    else:
        items += _verdict_lines(view, screen, canvas.width, spare_lines)
    height = _height(items)
    y = draw_table(canvas, columns, [row for row in rows if row.rank < canvas.height - height - 1])
    y += canvas.height > y + height
    for item in items:
        if isinstance(item, PrecisionMeasured):
            style = precision_style(item.precision) | BOLD
            interval = item.speedup or 1.0, item.speedup_low, item.speedup_high
            draw_interval(canvas.rows(y, INTERVAL_LINES), *interval, style=style)
        else:
            write(canvas, 0, y, item)
        y += _height([item])
    _draw_bars(canvas, stats, y + 1)


def _height(items: list[_Item]) -> int:
    return sum(INTERVAL_LINES if isinstance(item, PrecisionMeasured) else 1 for item in items)


def _figure(stats: PrecisionStats, row: _Row) -> Cell:
    emulated = is_emulated(stats.precision)
    text = "–" if emulated and row.is_cost else row.cell(stats)
    is_dim = (row.is_uncertain and stats.is_provisional) or (emulated and text in ("–", speed.EMULATED))
    return text, Style.DIM if is_dim else Style.TEXT


def draw_line(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """What AMP or FP8 gained, an A/B test's progress, or why there is no result yet."""
    test, room = speed.running(view), folded_room(canvas)
    if test is not None:
        phrases = [phrase(speed.round_words(test), Style.STRONG), *_measured_phrases(test, room)]
    elif view.compared is not None and speed.result_of_the_pair(view) is not None:
        blocks = min(row.blocks for row in view.compared.rows)
        counted = phrase(speed.blocks_words(blocks, view.compared), Style.DIM, 3)
        phrases = [*_measured_phrases(view.compared, room), counted]
    else:
        phrases = _gain_phrases(view, screen, room)
    write_folded(canvas, "comparison", phrases)


def _gain_phrases(view: SessionView, screen: ScreenState, room: int) -> list[Phrase]:
    """The mean steps and the memory, or why there is no ratio; the speed is in the answer's line."""
    comparison, phrases = view.comparison, list[Phrase]()
    by_name = {stats.precision: stats for stats in comparison.rows}
    pair = [by_name.get(name or "") for name in (comparison.baseline, comparison.low)]
    timed = [stats for stats in pair if stats is not None and stats.mean_step_seconds is not None]
    if len(timed) == 2 and comparison.missing != "emulated":
        before, after = (
            Word(_mean(stats), Style.DIM if stats.is_provisional else precision_style(stats.precision))
            for stats in timed
        )
        phrases.append(Phrase((before, Word(" → ", Style.DIM), after)))
    phrases += [Phrase((memory,), 1) for memory in _memory_words(view)]
    text, hint = _speed_words(view, screen)
    if comparison.speedup is None:
        phrases.append(Phrase(tuple(Word(line, Style.DIM) for line in wrapped(text, room, lines=1)), 3))
    return [*phrases, phrase(hint, Style.DIM, 3)] if hint else phrases


def _speed_words(view: SessionView, screen: ScreenState) -> tuple[str, str]:
    """``AMP about 1.9× the speed of FP32``, or why that is unknown; then the key that gives an interval."""
    answer = amp_answer(view)
    if answer.precision is None:
        return no_amp_words(view.precision), ""
    finding, comparison = answer.of("speed"), view.comparison
    several = sum(row.precision in AMP_PRECISIONS for row in comparison.rows) > 1
    label = precision_label(answer.precision) if several else family_label(answer.precision)
    key = key_of(finding.measured_by, screen)
    if finding.freshness == "never measured":
        return f"{label}: {long_words(finding)}" + (f"; press {key}" if key else ""), ""
    needs_interval = comparison.speedup is not None and not finding.numbers.get("high")
    return f"{label} {speed_words(finding)}", f"press {key} for an interval" if key and needs_interval else ""


def _memory_words(view: SessionView) -> list[Word]:
    """``38% less peak memory``, or more; none while unknown."""
    saving = view.comparison.memory_saving
    if saving is None:
        return []
    memory = judge_memory(1 - saving)
    return [Word(long_words(memory), _GAIN_STYLES.get(memory.grade, Style.TEXT))]


def _verdict_lines(view: SessionView, screen: ScreenState, width: int, spare_lines: int) -> list[Line]:
    """What AMP or FP8 gained and why not more, or why that is unknown; then the steps that no figure counts.

    The explanations take no more than ``spare_lines``, so that the table stays whole.
    """
    lines, hint, comparison = list[Line](), "", view.comparison
    # The result of the last finished comparison, a sentence for each precision.
    cards = speed.result_cards(view.compared, view.run) if view.compared is not None else ()
    for card in cards:
        lines += wrapped_phrases(card, Style.STRONG, width, lines=_MAX_CARD_LINES)
    if speed.result_of_the_pair(view) is None:
        # Speed, without an interval, and memory over all steps, or why there is no ratio yet.
        text, hint = _speed_words(view, screen)
        words = [Word(text, Style.DIM), *_memory_words(view)]
        lines += [line for word in words for line in wrapped_phrases(word.text, word.style, width, lines=3)]
    texts = speed.provisional_lines(comparison) + speed.uncounted(view)
    notes = [line for text in texts for line in wrapped_phrases(text, Style.DIM, width)]
    room = spare_lines - len(notes)
    lines += wrapped_phrases(hint, Style.DIM, width, lines=room - len(lines))
    for finding in (judge_held_back(comparison), *speed.little_memory(view)):
        if finding.freshness == "fresh" or finding.subject == "memory use":
            key = key_of(finding.measured_by, screen)
            text = explained_words(finding) + (f"; press {key} for the breakdown" if key else "")
            lines += wrapped_phrases(text, Style.TEXT, width, lines=room - len(lines))
    if comparison.speedup is not None or comparison.missing == "emulated":
        room -= len(lines)
        losses = speed.unfair_losses(view)
        forms = (wrapped_phrases(text, Style.DIM, width, lines=room + 1) for text in losses)
        lines += next((form for form in forms if len(form) <= room), [])  # none is cut
    return lines + notes


def _draw_bars(canvas: Canvas, stats: list[PrecisionStats], y: int) -> None:
    """The same figures as bars: a shorter bar is a smaller cost."""
    for title, measure in _BARS:
        measured = [one for one in stats if not is_emulated(one.precision)]
        costs = [(one.precision, cost) for one in measured if (cost := measure(one)) is not None]
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


def _measured_phrases(comparison: PrecisionsCompared, room: int) -> list[Phrase]:
    """The speed of every precision relative to the baseline, and its interval where that fits.

    The only precision is not named if that takes more than ``room`` cells.
    """
    phrases, rows = [], _measured_rows(comparison)
    for row in rows:
        gain, interval = _gain(row, comparison)
        if len(rows) == 1 and text_width(gain.text) > room:
            gain, interval = _gain(row, comparison, named=False)
        phrases.append(Phrase((gain,), 1))
        if interval:
            phrases.append(phrase(interval, Style.DIM, 2))
    return phrases


def _gain(row: PrecisionMeasured, comparison: PrecisionsCompared, *, named: bool = True) -> tuple[Word, str]:
    """``AMP fp16 1.94× the speed of FP32`` and ``(1.90 to 1.98)``; no interval from too few blocks."""
    than = compared_label(comparison.baseline, comparison)
    finding = judge_speed(row.speedup or 0, row.speedup_low, row.speedup_high, than=than)
    label = f"{compared_label(row.precision, comparison)} " if named else ""
    interval = interval_ends(row.speedup_low, row.speedup_high)
    style = _GAIN_STYLES.get(finding.grade, Style.TEXT) | (0 if finding.grade == "neutral" else BOLD)
    return Word(label + long_words(finding), style if interval else Style.DIM), interval and f"({interval})"


def _progress(test: PrecisionsCompared, width: int, most: int) -> list[_Item]:
    """The round and the ratios so far; if ``most`` lines have room, a progress bar and the intervals."""
    progress = Word(speed.round_words(test), Style.STRONG)
    title = Phrase((Word("A/B test: ", Style.DIM), progress))
    brief: list[_Item] = [[title if title.width <= width else Phrase((progress,))]]
    bar = Gauge(min(width, _BAR_WIDTH), test.rounds / test.most_rounds, Style.TEXT)
    items: list[_Item] = [*brief, [Phrase((bar,))]]
    for row in _measured_rows(test):
        gain, interval = _gain(row, test)
        text = f"{gain.text} {interval.replace(' ', _NO_BREAK)}".rstrip()  # the interval on one line
        lines = [[phrase(line.replace(_NO_BREAK, " "), gain.style)] for line in wrapped(text, width, lines=3)]
        brief += lines
        items += [*lines, row]
    if len(brief) == 1:
        first = wrapped_phrases("running the first two blocks", Style.DIM, width, lines=3)
        brief, items = [*brief, *first], [*items, *first]
    return items if _height(items) <= most else brief


def _measured_rows(comparison: PrecisionsCompared) -> list[PrecisionMeasured]:
    return [row for row in comparison.rows[1:] if row.speedup]
