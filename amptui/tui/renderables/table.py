"""A table on a canvas: the titles, and as many rows as there are lines, from one that is scrolled to on."""

from collections.abc import Callable, Sequence

from amptui.base.table import Column, Row, aligned, fitting_columns
from amptui.tui.canvas import Canvas
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
