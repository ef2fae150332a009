"""The A/B test on the screen: that it is running, its progress and its result."""

from amptui.diagnosis import speed
from amptui.diagnosis.labels import compared_label, precision_glyph
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.phrases import Gauge, Line, Phrase, Word, phrase, wrapped, wrapped_phrases, write
from amptui.tui.renderables.gauges import INTERVAL_LINES, draw_interval
from amptui.tui.style import BOLD, Style, precision_style

_MAX_CARD_LINES = 8
"""Lines of one result: what a narrow panel needs."""

_NO_BREAK = "\N{NO-BREAK SPACE}"

_BAR_WIDTH = 61
"""As wide as the widest axis of an interval."""

_GAIN_STYLES = {1: Style.GOOD | BOLD, 0: int(Style.TEXT), -1: Style.WARNING | BOLD}
"""The style of a precision that is faster, as fast, or slower."""

running = speed.running


def steady_style(view: SessionView) -> int:
    """The style of the current precision; plain during a comparison, where it would flicker."""
    return precision_style(view.precision) if running(view) is None else Style.TEXT


def names(comparison: PrecisionsCompared) -> list[Word]:
    """``■ FP32 ▲ AMP fp16``, each in its style; if more than two, only their number."""
    if len(comparison.rows) > 2:
        return [Word(f"{len(comparison.rows)} precisions", Style.STRONG)]
    words: list[Word] = []
    for row in comparison.rows:
        name = f"{precision_glyph(row.precision)} {compared_label(row.precision, comparison)}"
        words += [Word(" " if words else ""), Word(name, precision_style(row.precision) | BOLD)]
    return words


def measured_phrases(comparison: PrecisionsCompared, room: int) -> list[Phrase]:
    """The speed of every precision relative to the baseline, and its interval where that fits.

    The only precision is not named if that takes more than ``room`` cells.
    """
    phrases, rows = [], _measured_rows(comparison)
    for row in rows:
        speed, interval = _speed_words(row, comparison)
        if len(rows) == 1 and text_width(speed.text) > room:
            speed, interval = _speed_words(row, comparison, named=False)
        phrases.append(Phrase((speed,), 1))
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


def progress_height(comparison: PrecisionsCompared, width: int, most: int) -> int:
    """How many of ``most`` lines ``draw_progress`` takes."""
    lines = sum(map(len, _speed_lines(comparison, width)))
    with_intervals = 2 + lines + INTERVAL_LINES * len(_measured_rows(comparison))
    return with_intervals if with_intervals <= most else 1 + lines


def draw_progress(canvas: Canvas, comparison: PrecisionsCompared) -> None:
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
            Word(f"{speed.text} {interval.replace(' ', _NO_BREAK)}".rstrip(), speed.style)
            for speed, interval in pairs
        ]
    return [
        [[phrase(line.replace(_NO_BREAK, " "), word.style)] for line in wrapped(word.text, width, lines=3)]
        for word in words
    ]


def card_lines(view: SessionView, width: int) -> list[Line]:
    """The result of the last finished comparison, a wrapped sentence for each precision."""
    if view.compared is None or running(view) is not None:
        return []
    return [
        line
        for card in speed.result_cards(view.compared, view.run)
        for line in wrapped_phrases(card, Style.STRONG, width, lines=_MAX_CARD_LINES)
    ]


def _measured_rows(comparison: PrecisionsCompared) -> list[PrecisionMeasured]:
    return [row for row in comparison.rows[1:] if row.speedup]
