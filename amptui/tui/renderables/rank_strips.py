"""Many ranks in one line: a strip of bars, one cell for each rank or for several, or percentiles."""

from collections.abc import Collection, Sequence

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import BOLD, Style

_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.-=+*%#"
"""The same for terminals without UTF-8."""

_MAX_RANK_CELLS = 3
"""A rank is at most so wide."""

_TOP_MEDIANS = 1.5, 3.0
"""The height of a strip in medians: equal ranks make a calm line below the top, one outlier no flat line."""


def _rank_cells(ranks: int, width: int) -> float:
    """The cells of one rank in a strip of ``width``: 1, 2 or 3, or below 1 where a cell is for several."""
    return float(min(_MAX_RANK_CELLS, width // ranks)) if ranks <= width else 1 / -(-ranks // width)


def draw_strip(
    canvas: Canvas,
    x: int,
    y: int,
    width: int,
    values: Sequence[float | None],
    *,
    marked: Collection[int],
    lowest: bool = False,
) -> None:
    """Draw a bar for each value, its height from 0 on.

    Where the values do not fit, a cell is for several and has their largest, or their ``lowest``. ``marked``
    are the places of values to be drawn as warnings. A value that was not measured is a blank.
    """
    if not values or width <= 0:
        return
    rank_cells = _rank_cells(len(values), width)
    group, cells = max(1, round(1 / rank_cells)), max(1, int(rank_cells))
    extreme = min if lowest else max
    extremes: list[float | None] = []
    for start in range(0, len(values), group):
        measured_values = [value for value in values[start : start + group] if value is not None]
        extremes.append(extreme(measured_values, default=None))
    bars = [bar * cells for bar in strip_text(extremes, ascii_only=canvas.ascii_only, top=_top(values))]
    canvas.text(x, y, "".join(bars))
    for place in {place // group for place in marked}:
        canvas.text(x + place * cells, y, bars[place], Style.WARNING | BOLD)


def strip_text(values: Sequence[float | None], *, ascii_only: bool, top: float | None = None) -> list[str]:
    """One cell for each value, for a strip within a line of words; ``top`` is the value of a full one."""
    top = _top(values) if top is None else top
    return [" " if value is None else _level(value, top, ascii_only=ascii_only) for value in values]


def _top(values: Sequence[float | None]) -> float:
    """The value of a full cell."""
    numbers = sorted([value for value in values if value is not None])
    median = numbers[len(numbers) // 2] if numbers else 0.0
    low, high = (medians * median for medians in _TOP_MEDIANS)
    return max(low, min(numbers[-1], high)) if median > 0 else max(numbers, default=0.0)


def _level(value: float, top: float, *, ascii_only: bool) -> str:
    levels = _ASCII_LEVELS if ascii_only else _LEVELS
    if top <= 0:
        return levels[0]
    return levels[max(0, min(len(levels) - 1, round(value / top * len(levels)) - 1))]


def draw_rank_axis(canvas: Canvas, x: int, y: int, width: int, ranks: int) -> None:
    """Number the ranks below a strip: the first, the last, and what fits between them."""
    if ranks <= 0 or width <= 0:
        return
    rank_cells = _rank_cells(ranks, width)
    last = str(ranks - 1)
    end = x + int((ranks - 1) * rank_cells)
    steps = (*(1 << power for power in range(10)), 1 << 62)
    step = next(step for step in steps if step * rank_cells > len(last) + 1)
    for rank in range(0, ranks - 1, step):
        at = x + int(rank * rank_cells)
        if at + len(str(rank)) < end:
            canvas.text(at, y, str(rank), Style.DIM)
    canvas.text(end, y, last, Style.DIM)


def draw_percentiles(canvas: Canvas, x: int, y: int, width: int, values: Sequence[float]) -> None:
    """Draw ``╶──━━┿━━────╴``: from the least to the most thin, from the 10th to the 90th percentile thick.

    ``values`` are the 0th, 10th, 50th, 90th and 100th; the axis goes from 0 to the last of them.
    """
    top = values[-1]
    if top <= 0 or width <= 0:
        return
    low, tenth, middle, ninetieth, high = (
        x + min(width - 1, int(value / top * (width - 1))) for value in values
    )
    canvas.fill(Rect(low, y, high - low + 1, 1), "─", Style.DIM)
    canvas.fill(Rect(tenth, y, ninetieth - tenth + 1, 1), "━", Style.TEXT)
    canvas.text(middle, y, "┼", Style.STRONG)
