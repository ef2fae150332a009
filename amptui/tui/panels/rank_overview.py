"""All ranks of a large run at once: a strip for each kind of number, or percentiles of very many."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from amptui.base import units
from amptui.telemetry.rank_watch import RankSummary, RanksView
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.rank_strips import draw_percentiles, draw_rank_axis, draw_strip
from amptui.tui.style import Style

_LABEL_WIDTH = 12

_NUMBERS_WIDTH = 36
"""A blank, the median and the extreme, each with its name."""

_EXTREME_WIDTH = 18
"""Of the extreme alone."""

_WIDE = 100
"""With fewer columns the medians make room for the strips."""


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


def overview_lines() -> int:
    """Lines of an overview of ranks that measured everything."""
    return len(_STRIPS) + 1


def draw_overview(canvas: Canvas, ranks: RanksView) -> int:
    """Draw what was measured; return the lines taken, a blank one below included."""
    whole = len(ranks.rows) == ranks.world_size
    strips = [each for each in _STRIPS if _is_measured(each, ranks, whole=whole)]
    strips = strips[: max(1, canvas.height - 1)]
    numbers = _NUMBERS_WIDTH if canvas.width >= _WIDE else _EXTREME_WIDTH
    room = max(0, canvas.width - _LABEL_WIDTH - numbers)
    for y, strip in enumerate(strips):
        canvas.text(0, y, strip.label, Style.DIM)
        if whole:
            _draw_strip(canvas, y, room, strip, ranks)
        else:
            _draw_range(canvas, y, room, strip, ranks)
    if whole and len(strips) < canvas.height:
        draw_rank_axis(canvas, _LABEL_WIDTH, len(strips), room, ranks.world_size)
    return len(strips) + 1


def _is_measured(strip: _Strip, ranks: RanksView, *, whole: bool) -> bool:
    if whole:
        return any(strip.value(row) is not None for row in ranks.rows)
    return strip.percentiles in ranks.percentiles


def _draw_strip(canvas: Canvas, y: int, room: int, strip: _Strip, ranks: RanksView) -> None:
    values = [strip.value(row) for row in ranks.rows]
    slow = ranks.straggler.rank if ranks.straggler is not None else None
    marked = {i for i, row in enumerate(ranks.rows) if row.rank == slow}
    draw_strip(canvas, _LABEL_WIDTH, y, room, values, marked=marked, lowest=strip.lowest)
    known = sorted([value for value in values if value is not None])
    extreme = known[0] if strip.lowest else known[-1]
    _write_numbers(canvas, y, strip, known[len(known) // 2], extreme)


def _draw_range(canvas: Canvas, y: int, room: int, strip: _Strip, ranks: RanksView) -> None:
    values: Sequence[float] = ranks.percentiles[strip.percentiles]
    draw_percentiles(canvas, _LABEL_WIDTH, y, room, values)
    _write_numbers(canvas, y, strip, values[2], values[-1])


def _write_numbers(canvas: Canvas, y: int, strip: _Strip, middle: float, extreme: float) -> None:
    x = canvas.width - _EXTREME_WIDTH
    if canvas.width >= _WIDE:
        x = canvas.text(canvas.width - _NUMBERS_WIDTH, y, strip.text(middle), width=11, align="right")
        x = canvas.text(x, y, " median", Style.DIM)
    x = canvas.text(x, y, strip.text(extreme), width=11, align="right")
    canvas.text(x, y, " least" if strip.lowest else " most", Style.DIM)
