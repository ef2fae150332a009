"""The precisions of this run, what AMP or FP8 changes, an A/B test, and what needs attention."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.diagnosis import speed
from amptui.diagnosis.amp_answer import amp_answer, interval_words
from amptui.diagnosis.finding_fields import interval_ends
from amptui.diagnosis.labels import precision_label, precision_letter
from amptui.diagnosis.words import SIGNS, explained_words, long_words, short_words
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.telemetry.comparison import MIN_STEPS, judge_speed, ordered
from amptui.telemetry.finding import Finding, Grade
from amptui.telemetry.view import PrecisionStats, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.answer_panel import finding_blocks
from amptui.tui.panels.phrases import (
    Block,
    Gauge,
    Line,
    Phrase,
    Word,
    fitting_lines,
    flowed,
    labelled,
    phrase,
    quiet,
    wrapped_phrases,
    write_folded,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.table import draw_table
from amptui.tui.style import BOLD, GRADE_STYLES, Style, precision_style

_LABEL_WIDTH, _COLUMN_WIDTH, _WIDEST_COLUMN = 7, 9, 15
"""``samples``; ``~12.3 k/s`` and, where there is room, ``H AMP fp16``."""

_WIDE = 60
"""With so many cells columns have the room of the widest."""

NOTHING_YET = "no steps counted yet"

_MAX_LINES = 8
"""Lines of one sentence: what a narrow panel needs."""

_BAR_WIDTH = 61
"""Cells of the progress of an A/B test, at most."""

_LIMITS = ("input", "launch", "unknown")
"""What something can be done about."""

_GAIN_STYLES: Mapping[Grade, int] = {"good": Style.GOOD, "warning": Style.WARNING}
"""The style of a precision that is faster, as fast, or slower."""


class _Row(NamedTuple):
    """A line of the table."""

    label: str
    rank: int
    """The highest is dropped first."""
    cell: Callable[[PrecisionStats], str] = lambda _: ""
    is_uncertain: bool = False
    """Whether it is dim while provisional."""
    difference: Cell = ""


def _mean(stats: PrecisionStats) -> str:
    return speed.of_steps(stats, units.milliseconds(stats.mean_step_seconds), units.NOT_AVAILABLE)


def _samples(stats: PrecisionStats) -> str:
    return speed.of_steps(stats, units.rate(stats.samples_per_second), units.NOT_AVAILABLE)


def _steps(stats: PrecisionStats) -> str:
    return units.count(stats.steps) + ("" if stats.steps >= MIN_STEPS else f"/{MIN_STEPS}")


def _table_rows(view: SessionView, stats: list[PrecisionStats], *, is_enlarged: bool) -> list[_Row]:
    """The lines of the table: those in which something was measured, steps as ``12/20`` while too few."""
    faster, memory, interval = _differences(view)
    # Of the last step in each precision: no race.
    others: Cell = ("other steps", Style.DIM) if sum(it.last_loss is not None for it in stats) > 1 else ""
    rows = [
        _Row("step", 0, _mean, is_uncertain=True, difference=faster),
        _Row("", 1, difference=interval),
        _Row("samples", 3, _samples, is_uncertain=True),
        _Row("memory", 2, lambda it: units.number_of_bytes(it.peak_allocated_bytes), True, difference=memory),
        _Row("energy", 7, lambda it: units.joules(it.joules_per_1000_samples, per="1k")),
        _Row("loss", 4, lambda it: units.loss(it.last_loss), difference=others),
        _Row("skipped", 5, lambda it: units.count(it.skipped) if it.skipped else ""),
    ]
    if is_enlarged or any(it.steps < MIN_STEPS for it in stats):
        rows.append(_Row("steps", 6, _steps, is_uncertain=True))
    return [row for row in rows if row.difference or any(row.cell(it) not in units.EMPTY for it in stats)]


def _differences(view: SessionView) -> tuple[Cell, Cell, Cell]:
    """What AMP or FP8 changes: speed, peak memory, and the interval of the speed; empty while unknown."""
    answer = amp_answer(view)
    if answer.precision is None:
        return "", "", ""
    gain, memory = answer.of("speed"), answer.of("memory")
    interval = interval_words(gain)
    style = _GAIN_STYLES.get(gain.grade, Style.TEXT) | BOLD if interval else Style.DIM
    faster = (short_words(gain), style) if gain.numbers.get("ratio") else ""
    saved = (short_words(memory), _GAIN_STYLES.get(memory.grade, Style.TEXT))
    return faster, saved if memory.freshness == "fresh" else "", (interval, Style.DIM) if interval else ""


_DIFFERENCE = Column[_Row](
    title="difference", cell=lambda row: row.difference, width=12, gap=1, is_optional=False
)
"""As wide as ``1.61 to 1.69``."""


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The table, then an A/B test's progress or what needs attention; enlarged, each finding has a row."""
    if not view.comparison.rows:
        quiet(canvas, NOTHING_YET)
        return
    is_enlarged, test, answer = screen.focus == "comparison", speed.running(view), amp_answer(view)
    stats, columns = _columns(view, canvas.width)
    rows = _table_rows(view, stats, is_enlarged=is_enlarged)
    if test is not None:
        lines = _progress(test, canvas.width)
    else:
        texts = _sentences(view) if is_enlarged else _attention(view)
        lines = [line for text in texts for line in wrapped_phrases(*text, canvas.width, lines=_MAX_LINES)]
    room = max(1, canvas.height - len(rows) - 2)  # below the titles and a blank line
    lines = lines[:room]
    if is_enlarged:
        gap = [Block([[]], 9)] if lines else []
        lines += fitting_lines([*gap, *finding_blocks(answer, screen, canvas.width)], room - len(lines))
    y = draw_table(canvas, columns, [row for row in rows if row.rank < canvas.height - len(lines) - 1])
    y += canvas.height > y + len(lines)
    write_lines(canvas, y, lines)


def _columns(view: SessionView, width: int) -> tuple[list[PrecisionStats], list[Column[_Row]]]:
    """The precisions that have room, those compared first, and a column for each; then their difference."""
    room = _COLUMN_WIDTH if width < _WIDE else _WIDEST_COLUMN
    count = (width - _LABEL_WIDTH - (_DIFFERENCE.width or 0) - 1) // (room + 1)
    stats = [_as_compared(one, view) for one in ordered(view.comparison)[: max(1, count)]]
    columns: list[Column[_Row]] = [
        Column(title="", cell=lambda row: (row.label, Style.DIM), align="left", width=_LABEL_WIDTH)
    ]
    for one in stats:
        letter, cell = precision_letter(one.precision), partial(_figure, one)
        title = f"{letter} {_title(one)}", precision_style(one.precision) | BOLD
        short = (f"{letter} {one.precision.split()[0]}",)
        column = Column(title=title, short_titles=short, cell=cell, width=room, gap=1, is_optional=False)
        columns.append(column)
    return stats, [*columns, _DIFFERENCE] if len(stats) > 1 else columns


def _as_compared(stats: PrecisionStats, view: SessionView) -> PrecisionStats:
    """With the figures of an A/B test that compared it, from which the difference beside them is."""
    rows = () if view.compared is None else view.compared.rows
    row = next((row for row in rows if row.precision == stats.precision), None)
    if row is None or row.step_seconds is None or not any(one.speedup for one in rows):
        return stats
    return replace(
        stats,
        mean_step_seconds=row.step_seconds,
        samples_per_second=row.samples_per_second,
        peak_allocated_bytes=row.peak_allocated_bytes or stats.peak_allocated_bytes,
        provisional_steps=0,
    )


def _title(stats: PrecisionStats) -> str:
    """``FP32`` and ``fp16``: beside each other, they need no AMP."""
    name = stats.precision
    label = name if name in ("mixed", "unknown") else precision_label(name)
    return label.removeprefix("AMP ")


def _figure(stats: PrecisionStats, row: _Row) -> Cell:
    return row.cell(stats), Style.DIM if row.is_uncertain and stats.provisional_steps else Style.TEXT


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """``FP32 3.91 ms → fp16 2.02 ms  38% less peak memory``; while an A/B test runs, its progress."""
    test = speed.running(view)
    if test is not None:
        progress = phrase(speed.round_words(test), Style.STRONG)
        gains = [Phrase((_gain(row, test, short_words),), 1) for row in _measured_rows(test)]
        write_folded(canvas, "comparison", [progress, *gains])
        return
    comparison, phrases = view.comparison, list[Phrase]()
    for stats in (_as_compared(one, view) for one in ordered(comparison)[: 2 if comparison.low else 1]):
        style = Style.DIM if stats.provisional_steps else precision_style(stats.precision)
        label = Word(f"{'→ ' if phrases else ''}{_title(stats)} ", Style.DIM)
        phrases.append(Phrase((label, Word(_mean(stats), style)), len(phrases)))
    _, memory, _ = _differences(view)
    saved = [phrase(f"{memory[0]} peak memory", memory[1], 2)] if isinstance(memory, tuple) else []
    write_folded(canvas, "comparison", [*phrases, *saved] or [phrase(NOTHING_YET, Style.DIM)])


def _attention(view: SessionView) -> Iterator[tuple[str, int]]:
    """Trouble beside that of the verdict, what limits speed or memory, what ``~`` means; with styles."""
    answer = amp_answer(view)
    for finding in answer.findings:
        if finding.is_trouble and finding is not answer.trouble:
            yield f"{SIGNS[finding.grade]} {long_words(finding)}", GRADE_STYLES[finding.grade]
    limits = [one for one in answer.findings if one.subject == "limit" and one.state in _LIMITS]
    for finding in (*limits, *speed.little_memory(view)):
        yield long_words(finding), Style.TEXT
    for text in speed.provisional_lines(view.comparison):
        yield text, Style.DIM


def _sentences(view: SessionView) -> Iterator[tuple[str, int]]:
    """The result of the last A/B test, why there is little gain, and which steps no figure counts."""
    for card in () if view.compared is None else speed.result_cards(view.compared, view.run):
        yield card, Style.STRONG
    for finding in speed.little_memory(view):
        yield explained_words(finding), Style.TEXT
    for text in speed.provisional_lines(view.comparison) + speed.uncounted(view):
        yield text, Style.DIM


# ------------------------------------------------------------------------------------ the A/B test


def _gain(row: PrecisionMeasured, test: PrecisionsCompared, words_of: Callable[[Finding], str]) -> Word:
    """``AMP fp16 1.94× the speed of FP32 (1.90 to 1.98)``; dim and no interval from too few blocks."""
    finding = judge_speed(row.speedup or 0, row.speedup_low, row.speedup_high, than=test.baseline)
    interval = interval_ends(row.speedup_low, row.speedup_high)
    style = _GAIN_STYLES.get(finding.grade, Style.TEXT) | (0 if finding.grade == "neutral" else BOLD)
    text = f"{precision_label(row.precision)} {words_of(finding)}"
    return Word(f"{text} ({interval})", style) if interval else Word(text, Style.DIM)


def _progress(test: PrecisionsCompared, width: int) -> list[Line]:
    """The round, its bar, and where the table has no room for their differences the ratios so far."""
    bar = Gauge(min(width, _BAR_WIDTH), test.rounds / test.most_rounds, Style.TEXT)
    rows = _measured_rows(test)
    gains = [flowed([Phrase((_gain(row, test, long_words),))], width) for row in rows if len(rows) > 1]
    first = [] if rows else [[phrase("running the first two blocks", Style.DIM)]]
    title = labelled("A/B test:", speed.round_words(test), style=Style.STRONG)
    return [[title], [Phrase((bar,))], *chain.from_iterable(gains), *first]


def _measured_rows(comparison: PrecisionsCompared) -> list[PrecisionMeasured]:
    return [row for row in comparison.rows[1:] if row.speedup]
