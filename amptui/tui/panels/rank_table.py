"""The ranks of a distributed run: a row for each, or strips of all above the slowest and fastest."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.diagnosis.rank_words import (
    batch_words,
    place_words,
    rank_lost,
    ranks_awaited,
    ranks_disagree,
    samples_each,
    size_words,
    slow_in_short,
    speed_sentence,
)
from amptui.telemetry.rank_watch import RankSummary, RanksView
from amptui.telemetry.stragglers import RankVerdict
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import (
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
from amptui.tui.renderables.gauges import (
    draw_percentiles,
    draw_rank_axis,
    draw_stack,
    draw_strip,
    strip_text,
)
from amptui.tui.renderables.table import draw_table
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style

NO_SAMPLE = "no numbers of the ranks yet"

MAX_ROWS = 16
"""The panel beside others has room for so many rows at most; of more ranks it shows an overview."""

_MAX_ALARMS = 3
"""For more the panel does not grow: the events tell all."""

_TABLE_GAP = 4
"""Blanks between two tables side by side."""

_MIN_BAR, _MAX_BAR = 16, 48

_WIDE, _WIDE_MIN_BAR = 100, 24
"""From this width on a bar has so many cells at least: its legend fits."""

_MIN_TABLE = 56
"""Columns of the narrowest of several tables side by side: rank, place, both times, clock."""

_SIDE_BY_SIDE = 150
"""From this width on, strips and rows are beside each other."""

_OVERVIEW_WIDTH = 112
"""Of the strips beside rows: 64 ranks with their numbers."""

_FASTEST = 2
"""Rows of the fastest ranks, below the slowest and titles of their own."""

_PLACE_WIDTH, _MIN_REASON = 24, 12


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """How many ranks, and their throughput together and each."""
    if view.ranks is None:
        return []
    size = view.ranks.world_size
    phrases = [phrase(size_words(size, view.run))]
    if batch := batch_words(view.run):
        phrases.append(phrase(batch, Style.DIM, 3))
    if view.samples_per_second is not None:
        samples = units.rate(view.samples_per_second, "samples")
        phrases.append(phrase(samples, steady_style(view) | BOLD, 1))
        rate = units.rate(samples_each(view.samples_per_second, size, view.run))
        phrases.append(Phrase((Word(rate), Word(" each", Style.DIM)), 2))
    return phrases


def draw(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """What is wrong, which rank is slow, and the ranks' numbers."""
    ranks = view.ranks
    if ranks is None:
        quiet(canvas, NO_SAMPLE)
        return
    # Lost ranks and replicas that disagree, then those that all wait for, and the slow rank.
    texts = [(text, VERDICT_SIGNS["error"], True) for text in _alarms(ranks)]
    if ranks.awaited is not None:
        texts.append((ranks_awaited(ranks.awaited), VERDICT_SIGNS["warning"], True))
    if text := speed_sentence(ranks, view.run):
        texts.append((text, VERDICT_SIGNS["info" if ranks.straggler is None else "warning"], False))
    sentences = [
        line
        for text, (sign, style), is_coloured in texts
        for line in wrapped_phrases(
            f" {text}", style if is_coloured else Style.TEXT, canvas.width, head=(Word(sign, style | BOLD),)
        )
    ]
    # A sentence of two lines must not cost the rows of all ranks.
    room = canvas.height - 1 - len(ranks.rows)
    sentences = sentences[: room if 1 <= room < len(sentences) else max(1, canvas.height // 3)]
    write_lines(canvas, 0, sentences)
    body = canvas.rows(len(sentences))
    if not ranks.rows:
        quiet(body, NO_SAMPLE)
        return
    # All rows in so many tables side by side, if they fit.
    tables = -(-len(ranks.rows) // max(1, body.height - 1))
    fits = body.height > 1 and (tables == 1 or tables * (_MIN_TABLE + _TABLE_GAP) <= body.width)
    if fits and len(ranks.rows) == ranks.world_size:
        height, width = -(-len(ranks.rows) // tables), (body.width + _TABLE_GAP) // tables
        for i in range(tables):
            part = body.columns(i * width, width - _TABLE_GAP * (tables > 1))
            shown = slice(i * height, (i + 1) * height)
            draw_table(part, _columns(part, view, ranks), ranks.rows, shown=shown)
    elif body.width >= _SIDE_BY_SIDE:
        width = min(body.width, _OVERVIEW_WIDTH)
        _draw_overview(body.columns(0, width), ranks)
        _draw_extremes(body.columns(width + 3), view, ranks)
    else:
        _draw_extremes(body.rows(_draw_overview(body, ranks)), view, ranks)


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """How many ranks, what is wrong with them, or which is slow."""
    ranks = view.ranks
    if ranks is None:
        return
    phrases = [phrase(size_words(ranks.world_size, None), rank=2)]
    trouble, (sign, style) = "", VERDICT_SIGNS["warning"]
    if alarms := _alarms(ranks):
        trouble, (sign, style) = alarms[0], VERDICT_SIGNS["error"]
    elif ranks.awaited is not None:
        trouble = ranks_awaited(ranks.awaited)
    elif ranks.straggler is not None:
        trouble = slow_in_short(ranks.straggler)
    if trouble:
        phrases.append(phrase(whole_words(f"{sign} {trouble}", folded_room(canvas)), style))
    elif view.samples_per_second is not None:
        samples = units.rate(samples_each(view.samples_per_second, ranks.world_size, view.run), "samples")
        phrases.append(Phrase((Word(f"{samples:<14}"), Word(" each", Style.DIM)), 3))
    own_seconds = [row.own_seconds or None for row in ranks.rows]
    if len(own_seconds) == ranks.world_size and any(own_seconds):
        bars = strip_text(own_seconds, ascii_only=canvas.ascii_only)
        slow_rank = _slow_rank(ranks)
        words = [
            Word(bar, Style.WARNING if row.rank == slow_rank else Style.TEXT)
            for row, bar in zip(ranks.rows, bars, strict=True)
        ]
        phrases.insert(1, Phrase(tuple(words), 1))
    write_folded(canvas, "ranks", phrases)


def wanted_height(view: SessionView) -> int:
    """Lines that show the ranks well, with the frame: all rows or an overview; 0 without ranks."""
    if view.ranks is None:
        return 0
    size = view.ranks.world_size
    waits = int(view.ranks.awaited is not None)
    alarms = min(_MAX_ALARMS, len(view.ranks.lost) + len(view.ranks.disagreements) + waits)
    return 3 + alarms + (size + 1 if size <= MAX_ROWS else len(_STRIPS) + 5)


def _alarms(ranks: RanksView) -> list[str]:
    return [*map(rank_lost, ranks.lost), *map(ranks_disagree, ranks.disagreements)]


def _slow_rank(ranks: RanksView) -> int | None:
    return ranks.straggler.rank if ranks.straggler is not None else None


def _draw_extremes(canvas: Canvas, view: SessionView, ranks: RanksView) -> None:
    """The slowest ranks and, where there is room, the fastest: by data wait and local compute."""
    if canvas.height < 2:
        return
    slow = _slow_rank(ranks)
    rows = sorted(ranks.rows, key=lambda row: (row.rank != slow, -row.own_seconds, row.rank))
    fastest = _FASTEST if canvas.height >= 3 + 2 * _FASTEST and len(rows) == ranks.world_size else 0
    slowest = min(len(rows) - fastest, canvas.height - 1 - (fastest + 1 if fastest else 0))
    y = draw_table(canvas, _columns(canvas, view, ranks, "slowest"), rows, shown=slice(slowest))
    if fastest:
        draw_table(canvas, _columns(canvas, view, ranks, "fastest"), rows, y=y, shown=slice(-fastest, None))


def _memory(row: RankSummary) -> str:
    used, total = row.memory_used_bytes, row.place.memory_total_bytes if row.place is not None else None
    return units.NOT_AVAILABLE if used is None else units.bytes_of(used, total)


_NUMBERS: tuple[tuple[str, int, int, Callable[[RankSummary], str], tuple[str, ...]], ...] = (
    ("data wait", 9, 3, lambda row: units.milliseconds(row.data_seconds), ("input",)),
    ("compute", 8, 2, lambda row: units.milliseconds(row.compute_seconds), ("compute", "clocks")),
    ("step", 8, 9, lambda row: units.milliseconds(row.step_seconds), ()),
    ("peak", 8, 7, lambda row: units.number_of_bytes(row.peak_allocated_bytes), ()),
    ("GPU memory", 14, 6, _memory, ()),
    ("grad norm", 9, 10, lambda row: units.loss(row.grad_norm), ()),
    ("skipped", 7, 8, lambda row: units.count(row.skipped), ()),
    ("own Inf", 7, 11, lambda row: units.count(row.overflowed), ()),
    ("clock", 9, 5, lambda row: units.megahertz(row.sm_clock_mhz), ("clocks",)),
)
"""Title, width, priority, text, and the verdicts of which a column is the evidence."""


def _columns(
    canvas: Canvas, view: SessionView, ranks: RanksView, which: str = ""
) -> list[Column[RankSummary]]:
    """Of the rows of all ranks: the slow one is marked, and the number that shows it."""
    slow = _slow_rank(ranks)
    signs = dict.fromkeys(ranks.awaited.ranks if ranks.awaited is not None else (), ("⚠", Style.WARNING))
    signs |= {} if slow is None else {slow: ("⚠", Style.WARNING)}
    signs |= {end.rank: ("✖", Style.ERROR) for end in ranks.lost}
    several_hosts = len({row.place.host for row in ranks.rows if row.place is not None}) > 1

    def sign(row: RankSummary) -> Cell:
        text, style = signs.get(row.rank, (" ", Style.TEXT))
        return text, style | BOLD

    def rank(row: RankSummary) -> Cell:
        return str(row.rank), signs.get(row.rank, (" ", Style.TEXT))[1]

    def place(row: RankSummary) -> Cell:
        return place_words(row.place, with_host=several_hosts), Style.DIM

    def why_throttled(row: RankSummary) -> Cell:
        return "".join(row.throttled[:1]), Style.WARNING if row.rank == slow else Style.DIM

    numbers = [
        Column(
            title=title, cell=partial(_number, ranks.straggler, text, causes), priority=priority, width=width
        )
        for title, width, priority, text, causes in _NUMBERS
        if title != "own Inf" or any(row.overflowed for row in ranks.rows)
    ]
    return [
        Column(title="", cell=sign, width=1, is_optional=False),
        Column(title="rank", cell=rank, gap=1),
        Column(title=which, cell=place, align="left", max_width=_PLACE_WIDTH, is_optional=not which),
        _bars(canvas, view, ranks),
        *numbers,
        Column(title="", cell=why_throttled, align="left", priority=12, shrinks_to=_MIN_REASON, gap=1),
    ]


def _number(
    verdict: RankVerdict | None, text: Callable[[RankSummary], str], causes: tuple[str, ...], row: RankSummary
) -> Cell:
    is_evidence = verdict is not None and verdict.rank == row.rank and verdict.cause in causes
    return text(row), Style.WARNING | BOLD if is_evidence else Style.TEXT


def _bars(canvas: Canvas, view: SessionView, ranks: RanksView) -> Column[RankSummary]:
    """Waiting for data, local compute, and the rest: waiting for others, and the optimizer."""
    computes = any(row.compute_seconds is not None for row in ranks.rows)
    names = ("data", "compute", "rest") if computes else ("data", "", "rest of the step")
    fills = "i#." if canvas.ascii_only else "░▆·"
    parts = [f"{fill} {name}" for fill, name in zip(fills, names, strict=True) if name]
    longest = max(row.step_seconds or row.own_seconds for row in ranks.rows)
    slow = _slow_rank(ranks)

    def draw_parts(canvas: Canvas, x: int, y: int, width: int, row: RankSummary) -> None:
        data, compute = row.data_seconds or 0.0, row.compute_seconds or 0.0
        rest = max(0.0, (row.step_seconds or 0.0) - data - compute)
        style = Style.WARNING if row.rank == slow else steady_style(view)
        parts = zip((data, compute, rest), fills, (style, style, Style.DIM), strict=True)
        draw_stack(canvas, x, y, width, parts, whole=longest)

    return Column(
        title="  ".join(parts),
        short_titles=[" ".join(parts[:count]) for count in range(len(parts), 0, -1)],
        draw=draw_parts,
        align="left",
        priority=4,
        min_width=_MIN_BAR if canvas.width < _WIDE else _WIDE_MIN_BAR,
        max_width=_MAX_BAR,
    )


# ------------------------------------------------------------------------------- all ranks at once


_LABEL_WIDTH = 12

_NUMBERS_WIDTH = 36
"""A blank, the median and the extreme, each with its name."""

_EXTREME_WIDTH = 18
"""Of the extreme alone: with fewer columns than ``_WIDE`` the medians make room for the strips."""


class _Strip(NamedTuple):
    """One kind of number."""

    label: str
    value: Callable[[RankSummary], float | None]
    text: Callable[[float | None], str]
    percentiles: str = ""
    """Their name in the view."""
    lowest: bool = False
    """Whether the lowest stands out, not the largest."""


_STRIPS = (
    _Strip("compute", lambda row: row.compute_seconds, units.milliseconds, "compute"),
    _Strip("data wait", lambda row: row.data_seconds, units.milliseconds, "data"),
    _Strip("clock", lambda row: row.sm_clock_mhz, units.megahertz, lowest=True),
    _Strip("GPU memory", lambda row: row.memory_used_bytes, units.number_of_bytes),
)


def _draw_overview(canvas: Canvas, ranks: RanksView) -> int:
    """Draw what was measured; return the lines taken, a blank one below included."""
    whole = len(ranks.rows) == ranks.world_size
    marked = {i for i, row in enumerate(ranks.rows) if row.rank == _slow_rank(ranks)}
    is_wide = canvas.width >= _WIDE
    room = max(0, canvas.width - _LABEL_WIDTH - (_NUMBERS_WIDTH if is_wide else _EXTREME_WIDTH))
    lines = max(1, canvas.height - 1)
    y = 0
    for strip in _STRIPS:
        values = [strip.value(row) for row in ranks.rows]
        numbers = sorted(value for value in values if value is not None)
        if not whole:
            numbers = [*ranks.percentiles.get(strip.percentiles, ())]
        if not numbers or y == lines:
            continue
        canvas.text(0, y, strip.label, Style.DIM)
        if whole:
            draw_strip(canvas, _LABEL_WIDTH, y, room, values, marked=marked, lowest=strip.lowest)
        else:
            draw_percentiles(canvas, _LABEL_WIDTH, y, room, numbers)
        x = _LABEL_WIDTH + room
        if is_wide:
            x = canvas.text(x, y, strip.text(numbers[len(numbers) // 2]), width=11, align="right")
            x = canvas.text(x, y, " median", Style.DIM)
        extreme, name = (numbers[0], " least") if strip.lowest else (numbers[-1], " most")
        x = canvas.text(x, y, strip.text(extreme), width=11, align="right")
        canvas.text(x, y, name, Style.DIM)
        y += 1
    if whole and y < canvas.height:
        draw_rank_axis(canvas, _LABEL_WIDTH, y, room, ranks.world_size)
    return y + 1
