"""The ranks of a distributed run: a row for each, or strips of all above the slowest and fastest."""

from collections.abc import Callable
from typing import NamedTuple

from amptui.base import units
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
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.phrases import (
    Phrase,
    Word,
    folded_room,
    phrase,
    quiet,
    whole_words,
    wrapped_phrases,
    write_folded,
    write_lines,
)
from amptui.tui.panels.precision_table import steady_style
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.gauges import (
    draw_percentiles,
    draw_rank_axis,
    draw_stack,
    draw_strip,
    segments,
    strip_text,
)
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style

NO_SAMPLE = "no numbers of the ranks yet"

MAX_ROWS = 16
"""The panel beside others has room for so many rows at most; of more ranks it shows an overview."""

_MAX_ALARMS = 3
"""For more the panel does not grow: the events tell all."""

_GAP = 2
"""Blanks between two columns."""

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
"""Rows of the fastest ranks, below the slowest and a caption."""

_PLACE_WIDTH = 24


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
    fits = body.height > 1 and (tables == 1 or tables * (_MIN_TABLE + 2 * _GAP) <= body.width)
    if fits and len(ranks.rows) == ranks.world_size:
        _draw_tables(body, view, ranks, tables)
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


def _draw_tables(canvas: Canvas, view: SessionView, ranks: RanksView, tables: int) -> None:
    """All rows in order, in one table or in several of the same height."""
    height = -(-len(ranks.rows) // tables)
    width = (canvas.width + 2 * _GAP) // tables
    for i in range(tables):
        part = canvas.columns(i * width, width - 2 * _GAP * (tables > 1))
        table = _Table(view, ranks, part.width)
        table.draw_titles(part)
        for y, row in enumerate(ranks.rows[i * height : (i + 1) * height], 1):
            table.draw_row(part, y, row)


def _draw_extremes(canvas: Canvas, view: SessionView, ranks: RanksView) -> None:
    """The slowest ranks and, where there is room, the fastest: by data wait and local compute."""
    if canvas.height < 2:
        return
    slow = _slow_rank(ranks)
    rows = sorted(ranks.rows, key=lambda row: (row.rank != slow, -row.own_seconds, row.rank))
    fastest = _FASTEST if canvas.height >= 3 + 2 * _FASTEST and len(rows) == ranks.world_size else 0
    slowest = min(len(rows) - fastest, canvas.height - 1 - (fastest + 1 if fastest else 0))
    table = _Table(view, ranks, canvas.width)
    table.draw_titles(canvas, "slowest")
    for y, row in enumerate(rows[:slowest], 1):
        table.draw_row(canvas, y, row)
    if fastest:
        canvas.text(2, 1 + slowest, "fastest", Style.DIM)
        for y, row in enumerate(rows[-fastest:], 2 + slowest):
            table.draw_row(canvas, y, row)


def _memory(row: RankSummary) -> str:
    total = row.place.memory_total_bytes if row.place is not None else None
    return "" if row.memory_used_bytes is None else units.bytes_of(row.memory_used_bytes, total)


def _number(value: float | None) -> str:
    return units.loss(value) if value is not None else ""


class _Column(NamedTuple):
    """A column of numbers, with the same width for the whole run."""

    title: str
    width: int
    rank: int
    """The lowest matters most."""
    text: Callable[[RankSummary], str]
    causes: tuple[str, ...] = ()
    """The verdicts of which it is the evidence."""


_COLUMNS = (
    _Column("data wait", 9, 3, lambda row: units.milliseconds(row.data_seconds), ("input",)),
    _Column("compute", 8, 2, lambda row: units.milliseconds(row.compute_seconds), ("compute", "clocks")),
    _Column("step", 8, 9, lambda row: units.milliseconds(row.step_seconds)),
    _Column("peak", 8, 7, lambda row: units.number_of_bytes(row.peak_allocated_bytes)),
    _Column("GPU memory", 14, 6, _memory),
    _Column("grad norm", 9, 10, lambda row: _number(row.grad_norm)),
    _Column("skipped", 7, 8, lambda row: units.count(row.skipped)),
    _Column("own Inf", 7, 11, lambda row: units.count(row.overflowed)),
    _Column("clock", 9, 5, lambda row: units.megahertz(row.sm_clock_mhz), ("clocks",)),
)

_BAR_RANK = 4
_SIGNS = ("░▆·", "i#.")
"""What a bar is filled with: waiting for data, local compute, the rest; without UTF-8 the second."""


class _Table:
    """The columns that fit, of those that any rank measured; then its rows are drawn one by one."""

    def __init__(self, view: SessionView, ranks: RanksView, width: int) -> None:
        self._ranks = ranks
        self._style = steady_style(view)
        self._hosts = len({row.place.host for row in ranks.rows if row.place is not None}) > 1
        self._rank_width = max(4, len(str(ranks.world_size - 1)))
        places = [text_width(self._place(row)) for row in ranks.rows]
        self._place_width = min(_PLACE_WIDTH, max(places, default=0))
        fixed = 2 + self._rank_width + (_GAP + self._place_width if self._place_width else 0)
        min_bar = _MIN_BAR if width < _WIDE else _WIDE_MIN_BAR
        measured = [
            column
            for column in _COLUMNS
            if any(column.text(row) not in ("", units.NOT_AVAILABLE) for row in ranks.rows)
            and (column.title != "own Inf" or any(row.overflowed for row in ranks.rows))
        ]
        # By what matters most; what is left is for a bar, then for reasons.
        room, fitting = width - fixed, list[_Column]()
        for column in sorted(measured, key=lambda column: column.rank):
            bar = _GAP + min_bar if column.rank > _BAR_RANK else 0
            if room - column.width - _GAP >= bar:
                fitting.append(column)
                room -= column.width + _GAP
        self._columns = [column for column in measured if column in fitting]
        self._longest = max((row.step_seconds or row.own_seconds for row in ranks.rows), default=0.0)
        self._bar = min(_MAX_BAR, room - _GAP) if room >= _GAP + min_bar and self._longest else 0
        self._reasons = room - (self._bar + _GAP if self._bar else 0) - 1
        self._lost_ranks = {end.rank for end in ranks.lost}
        self._awaited_ranks = ranks.awaited.ranks if ranks.awaited is not None else ()

    def _place(self, row: RankSummary) -> str:
        return place_words(row.place, with_host=self._hosts)

    def draw_titles(self, canvas: Canvas, rank_title: str = "rank") -> None:
        """Name the columns, and what the bars are filled with."""
        canvas.text(2, 0, rank_title, Style.DIM)
        x = 2 + self._rank_width
        if self._place_width:
            x += _GAP + self._place_width
        if self._bar:
            # What the bars are filled with, as much as fits above them.
            computes = any(row.compute_seconds is not None for row in self._ranks.rows)
            names = ("data", "compute", "rest") if computes else ("data", "", "rest of the step")
            signs = zip(_SIGNS[canvas.ascii_only], names, strict=True)
            parts = [f"{sign} {name}" for sign, name in signs if name]
            blanks = "  " if len("  ".join(parts)) <= self._bar else " "
            while len(blanks.join(parts)) > self._bar:
                parts.pop()
            canvas.text(x + _GAP, 0, blanks.join(parts), Style.DIM)
            x += _GAP + self._bar
        for column in self._columns:
            x = canvas.text(x + _GAP, 0, column.title, Style.DIM, width=column.width, align="right")

    def draw_row(self, canvas: Canvas, y: int, row: RankSummary) -> None:
        """One rank; the slow one is marked, and the number that shows it."""
        verdict = self._ranks.straggler
        slow = verdict is not None and verdict.rank == row.rank
        sign, style = ("⚠", Style.WARNING) if slow or row.rank in self._awaited_ranks else (" ", Style.TEXT)
        if row.rank in self._lost_ranks:
            sign, style = "✖", Style.ERROR
        canvas.text(0, y, sign, style | BOLD)
        x = canvas.text(2, y, str(row.rank), style, width=self._rank_width, align="right")
        if self._place_width:
            x = canvas.text(x + _GAP, y, self._place(row), Style.DIM, width=self._place_width)
        if self._bar:
            # Waiting for data, local compute, and the rest: waiting for others, and the optimizer.
            data, compute = row.data_seconds or 0.0, row.compute_seconds or 0.0
            rest = max(0.0, (row.step_seconds or 0.0) - data - compute)
            cells = segments([data, compute, rest], self._longest, self._bar)
            bar_style = Style.WARNING if slow else self._style
            styles = (bar_style, bar_style, Style.DIM)
            draw_stack(canvas, x + _GAP, y, zip(cells, _SIGNS[canvas.ascii_only], styles, strict=True))
            x += _GAP + self._bar
        for column in self._columns:
            is_evidence = verdict is not None and slow and verdict.cause in column.causes
            cell_style = Style.WARNING | BOLD if is_evidence else Style.TEXT
            x = canvas.text(x + _GAP, y, column.text(row), cell_style, width=column.width, align="right")
        if row.throttled and self._reasons > 4:
            canvas.text(x + 1, y, row.throttled[0], Style.WARNING if slow else Style.DIM, width=self._reasons)


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
    values = {strip: [strip.value(row) for row in ranks.rows] for strip in _STRIPS}
    strips = [
        strip
        for strip in _STRIPS
        if (
            any(value is not None for value in values[strip])
            if whole
            else strip.percentiles in ranks.percentiles
        )
    ][: max(1, canvas.height - 1)]
    room = max(0, canvas.width - _LABEL_WIDTH - (_NUMBERS_WIDTH if canvas.width >= _WIDE else _EXTREME_WIDTH))
    marked = {i for i, row in enumerate(ranks.rows) if row.rank == _slow_rank(ranks)}
    for y, strip in enumerate(strips):
        canvas.text(0, y, strip.label, Style.DIM)
        if whole:
            draw_strip(canvas, _LABEL_WIDTH, y, room, values[strip], marked=marked, lowest=strip.lowest)
            numbers = sorted([value for value in values[strip] if value is not None])
            extreme = numbers[0] if strip.lowest else numbers[-1]
            _write_numbers(canvas, y, strip, numbers[len(numbers) // 2], extreme)
        else:
            percentiles = ranks.percentiles[strip.percentiles]
            draw_percentiles(canvas, _LABEL_WIDTH, y, room, percentiles)
            _write_numbers(canvas, y, strip, percentiles[2], percentiles[-1])
    if whole and len(strips) < canvas.height:
        draw_rank_axis(canvas, _LABEL_WIDTH, len(strips), room, ranks.world_size)
    return len(strips) + 1


def _write_numbers(canvas: Canvas, y: int, strip: _Strip, middle: float, extreme: float) -> None:
    x = canvas.width - _EXTREME_WIDTH
    if canvas.width >= _WIDE:
        x = canvas.text(canvas.width - _NUMBERS_WIDTH, y, strip.text(middle), width=11, align="right")
        x = canvas.text(x, y, " median", Style.DIM)
    x = canvas.text(x, y, strip.text(extreme), width=11, align="right")
    canvas.text(x, y, " least" if strip.lowest else " most", Style.DIM)
