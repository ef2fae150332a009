"""A table on a canvas: the titles, and as many rows as there are lines, from one that is scrolled to on."""

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
    y: int = 0,
    shown: slice = slice(None),
    style: Callable[[Row], int] = lambda _: Style.TEXT,
) -> int:
    """Draw the titles at line ``y`` and below them the rows that are ``shown``; return the line after them.

    The widths are of all rows: scrolling moves no column. ``style``: of a row's cells without their own.
    """
    x, top = 0, y + 1
    visible = rows[shown][: max(0, canvas.height - top)]
    for i, (column, width) in enumerate(fitting_columns(columns, rows, canvas.width)):
        x += column.gap if i else 0
        write_cell(canvas, x, y, width, column, column.title_in(width), Style.DIM)
        for line, row in enumerate(visible, top):
            if column.draw is not None:
                column.draw(canvas, x, line, width, row)
            else:
                write_cell(canvas, x, line, width, column, column.cell(row), style(row))
        x += width
    return top + len(visible)


def write_cell(
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
