"""The ranks of a distributed run: a row for each, or the slowest."""

from collections.abc import Iterable, Mapping
from functools import partial

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.diagnosis.labels import RANK_NUMBERS, RankNumber, batch_words, size_words
from amptui.diagnosis.words import long_words, short_words
from amptui.telemetry.rank_watch import RankSummary, RanksView
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import (
    Line,
    Phrase,
    Word,
    folded_room,
    phrase,
    quiet,
    steady_style,
    whole_words,
    wrapped_phrases,
    write_folded,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.table import bar_column, draw_table
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style

NO_SAMPLE = "no numbers of the ranks yet"

MAX_ROWS = 16
"""The panel beside others has room for so many rows at most."""

_SLOWEST_LINES = 7
"""Of more ranks it shows the slowest, with their titles."""

_MAX_TROUBLES = 3
"""For more the panel does not grow: the events tell all."""

_MIN_BAR, _MAX_BAR = 16, 48

_WIDE, _WIDE_MIN_BAR = 100, 24
"""From this width on a bar has so many cells at least: its legend fits."""

_PLACE_WIDTH, _MIN_REASON = 24, 12

_FILLS = "░▆·"
"""Of waiting for data, of compute and of the rest of a step."""


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """How many ranks, and their throughput together and each."""
    if view.ranks is None:
        return []
    phrases = [phrase(size_words(view.ranks.world_size, view.run))]
    if batch := batch_words(view.run):
        phrases.append(phrase(batch, Style.DIM, 3))
    if view.samples_per_second is not None:
        samples = units.rate(view.samples_per_second, "samples")
        phrases.append(phrase(samples, steady_style(view) | BOLD, 1))
        rate = units.rate(view.rank_samples_per_second)
        phrases.append(Phrase((Word(rate), Word(" each", Style.DIM)), 2))
    return phrases


def draw(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """What is wrong, which rank is slow, and the ranks' numbers."""
    ranks = view.ranks
    if ranks is None:
        quiet(canvas, NO_SAMPLE)
        return
    sentences: list[Line] = []
    for finding in ranks.findings:
        sign, style = VERDICT_SIGNS[finding.severity]
        text, text_style = f" {long_words(finding)}", Style.TEXT if finding.subject == "rank speed" else style
        sentences += wrapped_phrases(text, text_style, canvas.width, head=(Word(sign, style | BOLD),))
    # A sentence of two lines must not cost the rows of all ranks.
    room = canvas.height - 1 - len(ranks.rows)
    sentences = sentences[: room if 1 <= room < len(sentences) else max(1, canvas.height // 3)]
    write_lines(canvas, 0, sentences)
    body = canvas.rows(len(sentences))
    if not ranks.rows:
        quiet(body, NO_SAMPLE)
        return
    if len(ranks.rows) < body.height:
        draw_table(body, _columns(body, view, ranks), ranks.rows)
    else:
        draw_table(body, _columns(body, view, ranks, "slowest"), ranks.slowest_first)


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """How many ranks, what is wrong with them, or which is slow."""
    ranks = view.ranks
    if ranks is None:
        return
    phrases = [phrase(size_words(ranks.world_size, None), rank=2)]
    if ranks.trouble is not None:
        sign, style = VERDICT_SIGNS[ranks.trouble.severity]
        words = whole_words(f"{sign} {short_words(ranks.trouble)}", folded_room(canvas))
        phrases.append(phrase(words, style))
    elif view.samples_per_second is not None:
        samples = units.rate(view.rank_samples_per_second, "samples")
        phrases.append(Phrase((Word(f"{samples:<14}"), Word(" each", Style.DIM)), 3))
    write_folded(canvas, "ranks", phrases)


def wanted_height(view: SessionView) -> int:
    """Lines that show the ranks well, with the frame: all rows or the slowest; 0 without ranks."""
    if view.ranks is None:
        return 0
    size = view.ranks.world_size
    troubles = sum(finding.subject != "rank speed" for finding in view.ranks.findings)
    return 3 + min(_MAX_TROUBLES, troubles) + (size + 1 if size <= MAX_ROWS else _SLOWEST_LINES)


def _slow_ranks(ranks: RanksView) -> tuple[int, ...]:
    return ranks.slow.ranks if ranks.slow is not None else ()


_EVIDENCE: Mapping[str, tuple[str, ...]] = {
    "data wait": ("input",),
    "compute": ("compute", "clocks"),
    "clock": ("clocks",),
}
"""What a rank is slow by, for each column that shows it."""


def _columns(
    canvas: Canvas, view: SessionView, ranks: RanksView, which: str = ""
) -> list[Column[RankSummary]]:
    """Of the rows of all ranks: those with trouble are marked, and the number that shows which is slow."""
    signs: dict[int, tuple[str, Style]] = {}
    for finding in ranks.findings:
        if finding.is_trouble:
            signs = dict.fromkeys(finding.ranks, VERDICT_SIGNS[finding.severity]) | signs
    slow, state = _slow_ranks(ranks), "" if ranks.slow is None else ranks.slow.state
    several_hosts = len({row.place.host for row in ranks.rows if row.place is not None}) > 1

    def sign(row: RankSummary) -> Cell:
        text, style = signs.get(row.rank, (" ", Style.TEXT))
        return text, style | BOLD

    def rank(row: RankSummary) -> Cell:
        return str(row.rank), signs.get(row.rank, (" ", Style.TEXT))[1]

    def place(row: RankSummary) -> Cell:
        if row.place is None:
            return ""
        return row.place.name if several_hosts else row.place.device, Style.DIM

    def number(column: RankNumber, row: RankSummary) -> Cell:
        is_evidence = row.rank in slow and state in _EVIDENCE.get(column.title, ())
        return column.text(row), Style.WARNING | BOLD if is_evidence else Style.TEXT

    def why_throttled(row: RankSummary) -> Cell:
        return "".join(row.throttled[:1]), Style.WARNING if row.rank in slow else Style.DIM

    return [
        Column(title="", cell=sign, width=1, is_optional=False),
        Column(title="rank", cell=rank, gap=1),
        Column(title=which, cell=place, align="left", max_width=_PLACE_WIDTH, is_optional=not which),
        _bars(canvas, view, ranks),
        *(
            Column(title=it.title, cell=partial(number, it), width=it.width, priority=it.priority)
            for it in RANK_NUMBERS
            if it.title != "own Inf" or any(row.overflowed for row in ranks.rows)
        ),
        Column(title="", cell=why_throttled, align="left", priority=12, shrinks_to=_MIN_REASON, gap=1),
    ]


def _bars(canvas: Canvas, view: SessionView, ranks: RanksView) -> Column[RankSummary]:
    """Waiting for data, local compute, and the rest: waiting for others, and the optimizer."""
    computes = any(row.compute_seconds is not None for row in ranks.rows)
    names = ("data", "compute", "rest") if computes else ("data", "", "rest of the step")
    parts = [f"{fill} {name}" for fill, name in zip(_FILLS, names, strict=True) if name]
    longest = max(row.step_seconds or row.own_seconds for row in ranks.rows)
    slow = _slow_ranks(ranks)

    def bar(row: RankSummary) -> Iterable[tuple[float, str, int]]:
        data, compute = row.data_seconds or 0.0, row.compute_seconds or 0.0
        rest = max(0.0, (row.step_seconds or 0.0) - data - compute)
        style = Style.WARNING if row.rank in slow else steady_style(view)
        return zip((data, compute, rest), _FILLS, (style, style, Style.DIM), strict=True)

    return bar_column(
        "  ".join(parts),
        bar,
        longest,
        short_titles=[" ".join(parts[:count]) for count in range(len(parts), 0, -1)],
        priority=4,
        min_width=_MIN_BAR if canvas.width < _WIDE else _WIDE_MIN_BAR,
        max_width=_MAX_BAR,
    )
