"""A table on a canvas, and the bars and curves in its lines."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from amptui.base.table import Column, Row, aligned, fitting_columns
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import BOLD, Style


def draw_table(
    canvas: Canvas,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    shown: slice = slice(None),
) -> int:
    """Draw the titles and below them the rows that are ``shown``; return the line after them.

    The widths are of all rows: scrolling moves no column.
    """
    x, visible = 0, rows[shown][: max(0, canvas.height - 1)]
    for i, (column, width) in enumerate(fitting_columns(columns, rows, canvas.width)):
        x += column.gap if i else 0
        _write_cell(canvas, x, 0, width, column, column.title_in(width), Style.DIM)
        for line, row in enumerate(visible, 1):
            if column.draw is not None:
                column.draw(canvas, x, line, width, row)
            else:
                _write_cell(canvas, x, line, width, column, column.cell(row), Style.TEXT)
        x += width
    return 1 + len(visible)


def _write_cell(
    canvas: Canvas, x: int, y: int, width: int, column: Column[Row], cell: str | tuple[str, int], style: int
) -> None:
    """Write one cell of a column; ``style`` is for text that has none."""
    text, style = (cell, style) if isinstance(cell, str) else cell
    if text:
        text = aligned(text, width, cut=column.cut) if column.cut == "start" else text
        canvas.text(x, y, text, style, width=width, align=column.align)


def bar_column(
    title: str, parts: Callable[[Row], Iterable[tuple[float, str, int]]], whole: float, **options: Any
) -> Column[Row]:
    """A column of bars: the parts of a row side by side, each with its size, sign and style.

    A size of ``whole`` fills the column. Edges are rounded, not lengths, so that a bar is as long as the sum
    of its parts.
    """

    def draw(canvas: Canvas, x: int, y: int, width: int, row: Row) -> None:
        end, start = 0.0, 0
        for size, sign, style in parts(row) if whole > 0 else ():
            end += size
            stop = min(width, round(end / whole * width))
            canvas.fill(Rect(x + start, y, stop - start, 1), sign, style)
            start = stop

    return Column(title=title, draw=draw, align="left", **options)


BLOCKS = "▁▂▃▄▅▆▇█"


def draw_bar(canvas: Canvas, x: int, y: int, width: int, fraction: float | None, style: int) -> None:
    """Draw how full something is: ``▰▰▰▱▱▱▱▱``, ``width`` cells from column ``x`` of line ``y``.

    It looks empty only at 0 and full only at 1. ``fraction`` is limited to 0 and 1; None and NaN, which mean
    "not measured", are an empty bar.
    """
    share = 0.0 if fraction is None or math.isnan(fraction) else min(1.0, max(0.0, fraction))
    filled = round(share * width) if share in (0.0, 1.0) else min(max(1, round(share * width)), width - 1)
    canvas.fill(Rect(x, y, filled, 1), "▰", style)
    canvas.fill(Rect(x + filled, y, width - filled, 1), "▱", Style.DIM)


def draw_sparkline(
    canvas: Canvas, x: int, y: int, width: int, values: Sequence[float | None], style: int
) -> None:
    """Draw ``values``, oldest first, as blocks that end at column ``x + width``: each cell the mean of some.

    The lowest cell is the lowest block and the highest the highest; a flat curve lies in the middle. A value
    of None was not measured and leaves its cell blank if it is alone there. A cell without a finite value is
    marked.
    """
    blocks = BLOCKS
    cells = max(0, min(width, len(values)))
    edges = [cell * len(values) // cells for cell in range(cells + 1)] if cells else []
    means = [_mean(values[start:end]) for start, end in pairwise(edges)]
    finite = [mean for mean in means if mean is not None and math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    for column, mean in enumerate(means, x + width - cells):
        if mean is None:
            continue
        if not math.isfinite(mean):
            canvas.text(column, y, "×", Style.ERROR | BOLD)
            continue
        level = (len(blocks) - 1) // 2
        if high > low:
            # Halves: the difference may be larger than any float.
            share = (mean / 2 - low / 2) / (high / 2 - low / 2)
            level = min(len(blocks) - 1, int(share * len(blocks)))
        canvas.text(column, y, blocks[level], style)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of the finite values; NaN if the others are not finite; None if there is none."""
    measured = [value for value in values if value is not None]
    finite = [value for value in measured if math.isfinite(value)]
    if finite:
        return sum(value / len(finite) for value in finite)  # the sum of the largest floats would overflow
    return math.nan if measured else None
