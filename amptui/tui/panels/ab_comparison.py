"""The A/B test in words: that it is running, its progress and its result."""

from amptui.base import units
from amptui.diagnosis.labels import compared_label, precision_glyph
from amptui.diagnosis.speed import result_cards, speed_of
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.panels.phrases import Gauge, Line, Phrase, Word, wrapped, wrapped_phrases, write
from amptui.tui.renderables.gauges import INTERVAL_LINES, draw_interval
from amptui.tui.style import BOLD, Style, precision_style

_MAX_CARD_LINES = 8
"""Lines of one result: what a narrow panel needs."""

_NO_BREAK = "\N{NO-BREAK SPACE}"

_BAR_WIDTH = 61
"""As wide as the widest axis of an interval."""


def running(view: SessionView) -> PrecisionsCompared | None:
    """The comparison that is running, or None."""
    found = view.compared
    if found is None or found.over or view.state in ("finished", "failed"):
        return None
    return found


def steady_style(view: SessionView) -> int:
    """The style of the current precision; plain during a comparison, where it would flicker."""
    return precision_style(view.precision) if running(view) is None else Style.TEXT


def names(found: PrecisionsCompared) -> list[Word]:
    """``■ FP32 ▲ AMP fp16``, each in its style; if more than two, only their number."""
    if len(found.rows) > 2:
        return [Word(f"{len(found.rows)} precisions", Style.STRONG)]
    words: list[Word] = []
    for row in found.rows:
        name = f"{precision_glyph(row.precision)} {compared_label(row.precision, found)}"
        words += [Word(" " if words else ""), Word(name, precision_style(row.precision) | BOLD)]
    return words


def round_words(found: PrecisionsCompared) -> str:
    """``round  3 of at most 24``, equally wide in every round."""
    return _round_words(found, " of at most ")


def short_round_words(found: PrecisionsCompared) -> str:
    """``round  3/24``: the same for narrow places."""
    return _round_words(found, "/")


def _round_words(found: PrecisionsCompared, of: str) -> str:
    most = units.count(found.most_rounds)
    return f"round {units.count(min(found.rounds + 1, found.most_rounds)):>{len(most)}}{of}{most}"


def blocks_words(found: PrecisionsCompared) -> str:
    """``12 alternating blocks of 20 steps``: what a result is based on."""
    blocks = units.count(min(row.blocks for row in found.rows))
    return f"{blocks} alternating blocks of {found.block_steps} steps"


def cards(view: SessionView) -> list[str]:
    """The result of the last finished comparison, a sentence for each precision."""
    if view.compared is None or running(view) is not None:
        return []
    return result_cards(view.compared, view.run)


def measured_words(found: PrecisionsCompared) -> list[tuple[Word, Word]]:
    """The speed of every precision relative to the baseline, as far as known, and its interval."""
    words = [_speed_word(row, found, _NO_BREAK) for row in _measured(found)]
    pairs = [(word, *word.text.partition(" (")[::2]) for word in words]
    return [
        (Word(speed, word.style), Word(f"({end}".replace(_NO_BREAK, " ") if end else "", Style.DIM))
        for word, speed, end in pairs
    ]


def _speed_word(row: PrecisionMeasured, found: PrecisionsCompared, blank: str = " ") -> Word:
    """``AMP fp16 1.94× the speed of FP32 (1.90 to 1.98)``, with ``blank`` within the interval."""
    than = compared_label(found.baseline, found)
    speed = speed_of(row.speedup or 0, row.speedup_low, row.speedup_high, than)
    interval = speed.interval.replace(" ", blank)
    return Word(
        f"{compared_label(row.precision, found)} {speed.words} {interval}".rstrip(), GAIN_STYLES[speed.gain]
    )


GAIN_STYLES = {1: Style.GOOD | BOLD, 0: int(Style.TEXT), -1: Style.WARNING | BOLD}
"""The style of a precision that is faster, as fast, or slower."""


def progress_height(found: PrecisionsCompared, width: int, most: int) -> int:
    """How many of ``most`` lines ``draw_progress`` takes."""
    told = sum(map(len, _told(found, width)))
    drawn = 2 + told + INTERVAL_LINES * len(_measured(found))
    return drawn if drawn <= most else 1 + told


def draw_progress(canvas: Canvas, found: PrecisionsCompared) -> None:
    """The round and the ratios so far; with more room, a progress bar and the intervals."""
    told = _told(found, canvas.width)
    roomy = canvas.height >= 2 + sum(map(len, told)) + INTERVAL_LINES * len(_measured(found))
    write(canvas, 0, 0, [Phrase((Word("A/B test: ", Style.DIM), Word(round_words(found), Style.STRONG)))])
    if roomy:
        done = found.rounds / found.most_rounds
        write(canvas, 0, 1, [Phrase((Gauge(min(canvas.width, _BAR_WIDTH), done, Style.TEXT),))])
    y = 2 if roomy else 1
    rows: list[PrecisionMeasured | None] = [*_measured(found)]
    for row, lines in zip(rows or [None], told, strict=True):
        for line in lines:
            write(canvas, 0, y, line)
            y += 1
        if roomy and row is not None and row.speedup:
            part = canvas.part(Rect(0, y, canvas.width, INTERVAL_LINES))
            style = precision_style(row.precision) | BOLD
            draw_interval(part, row.speedup, row.speedup_low, row.speedup_high, style=style)
            y += INTERVAL_LINES


def _told(found: PrecisionsCompared, width: int) -> list[list[Line]]:
    """The speed of every precision, wrapped, with its interval on one line if that fits."""
    words = [_speed_word(row, found, _NO_BREAK) for row in _measured(found)]
    return [
        [
            [Phrase((Word(line.replace(_NO_BREAK, " "), word.style),))]
            for line in wrapped(word.text, width, lines=3)
        ]
        for word in words or [Word("running the first two blocks", Style.DIM)]
    ]


def card_lines(view: SessionView, width: int) -> list[Line]:
    """The result, wrapped."""
    return [
        line
        for card in cards(view)
        for line in wrapped_phrases(card, Style.STRONG, width, lines=_MAX_CARD_LINES)
    ]


def _measured(found: PrecisionsCompared) -> list[PrecisionMeasured]:
    return [row for row in found.rows[1:] if row.speedup]
