"""A table on a canvas, and the bars in its lines."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amptui.base.table import Column, Row, aligned, fitting_columns
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import Style


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


def draw_bar(canvas: Canvas, x: int, y: int, width: int, fraction: float | None, style: int) -> None:
    """Draw how full something is: ``▰▰▰▱▱▱▱▱``, ``width`` cells from column ``x`` of line ``y``.

    It looks empty only at 0 and full only at 1. ``fraction`` is limited to 0 and 1; None and NaN, which mean
    "not measured", are an empty bar.
    """
    share = 0.0 if fraction is None or math.isnan(fraction) else min(1.0, max(0.0, fraction))
    filled = round(share * width) if share in (0.0, 1.0) else min(max(1, round(share * width)), width - 1)
    canvas.fill(Rect(x, y, filled, 1), "▰", style)
    canvas.fill(Rect(x + filled, y, width - filled, 1), "▱", Style.DIM)
