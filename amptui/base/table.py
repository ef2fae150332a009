"""A table: columns that say what a row has in them, how they are aligned and how much they matter.

Panels, reports and lists name their columns; here is decided which of them fit and how wide they are.
`tui/renderables/table.py` draws them on a canvas; :func:`table_lines` is the same table as plain text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from rich.cells import cell_len, set_cell_size

from amptui.base.text import MAX_CHARACTERS
from amptui.base.units import EMPTY

Row = TypeVar("Row")

Cell: TypeAlias = str | tuple[str, int]
"""Text, and the style of the screen that it has if that is not plain."""

GAP = 2
"""Blanks between two columns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Column(Generic[Row]):
    """One column of the rows of a table."""

    title: Cell
    short_titles: Sequence[str] = ()
    """Stand for a title that does not fit, the longest first."""
    cell: Callable[[Row], Cell] = lambda _: ""
    """What a row has in it."""
    priority: int = 0
    """If not all fit, the column of the highest number is left out first; 0 always stays."""
    align: Literal["left", "right"] = "right"
    width: int | None = None
    """Cells that it has whatever is in it: no row is read for that."""
    min_width: int = 0
    """Cells that it has at least, so that columns do not move while numbers change."""
    max_width: int | None = None
    """Cells that it has at most; a column that is drawn takes as many if they are free."""
    shrinks_to: int | None = None
    """Cells that it is content with before another column is left out; it gets more if they are free."""
    cut: Literal["start", "end"] = "end"
    """Which end of a text that is too long is left out: the start of paths and modules, which are alike."""
    gap: int = GAP
    """Blanks before it."""
    is_optional: bool = True
    """Whether it is left out if no row has a number in it."""
    draw: Callable[..., object] | None = None
    """Draws a row's bar or curve on the screen: ``draw(canvas, x, y, width, row)``. It has no text."""

    def title_in(self, width: int) -> Cell:
        """The title, or what stands for it in so few cells."""
        texts = (text_of(self.title), *self.short_titles)
        text = next((text for text in texts if cell_len(text) <= width), texts[-1])
        return text if isinstance(self.title, str) else (text, self.title[1])


def text_of(cell: Cell) -> str:
    """The text of a cell, without its style."""
    return cell if isinstance(cell, str) else cell[0]


def fitting_columns(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None
) -> list[tuple[Column[Row], int]]:
    """The columns that fit in ``width`` cells, each with its own width; all that have numbers without one.

    What is left over goes to the columns that shrank or are drawn, those that matter most first.
    """
    wanted = {column: _wanted(column, rows) for column in columns if _is_measured(column, rows)}
    if width is None:
        return list(wanted.items())
    needed = {column: _needed(column, cells) for column, cells in wanted.items()}
    shown: dict[Column[Row], int] = {}
    # Those that matter most, then each further one for which there is room; of equals the rightmost.
    for column in sorted(needed, key=lambda column: -column.priority)[::-1]:
        with_it = {other: cells for other, cells in needed.items() if other in shown or other is column}
        if not column.priority or _total(with_it) <= width:
            shown = with_it
    free = max(0, width - _total(shown))
    for column in sorted(shown, key=lambda column: column.priority):
        more = min(free, wanted[column] - shown[column])
        shown[column] += more
        free -= more
    return list(shown.items())


def table_width(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> int:
    """The cells that all columns take side by side."""
    return _total(dict(fitting_columns(columns, rows)))


def table_lines(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None) -> list[str]:
    """The titles and the rows as lines of plain text, cut where the columns that always stay do not fit."""
    shown = fitting_columns(columns, rows, width)
    lines = []
    for row in (None, *rows):
        line = ""
        for i, (column, cells) in enumerate(shown):
            text = text_of(column.title_in(cells) if row is None else column.cell(row))
            blanks = " " * (column.gap if i else 0)
            line += blanks + aligned(text, cells, align=column.align, cut=column.cut)
        lines.append((line if width is None else set_cell_size(line, min(width, cell_len(line)))).rstrip())
    return lines


def aligned(text: str, width: int, *, align: str = "left", cut: str = "end") -> str:
    """``text`` in exactly ``width`` cells; what is left out of one that is too long is a ``…``."""
    # A name may be as long as a journal's author likes.
    text = text[-MAX_CHARACTERS:] if cut == "start" else text[:MAX_CHARACTERS]
    spare = width - cell_len(text)
    if spare >= 0:
        return " " * spare + text if align == "right" else text + " " * spare
    if width < 1:
        return ""
    if cut == "end":
        return set_cell_size(text, width - 1) + "…"
    text = text[max(0, len(text) - width) :]
    while cell_len(text) > width - 1:
        text = text[1:]
    return set_cell_size("…" + text, width)


def _is_measured(column: Column[Row], rows: Sequence[Row]) -> bool:
    if not column.is_optional or column.draw is not None or not rows:
        return True
    return any(text_of(column.cell(row)) not in EMPTY for row in rows)


def _wanted(column: Column[Row], rows: Sequence[Row]) -> int:
    """The cells that it takes if there is room for all."""
    if column.width is not None:
        return column.width
    title = cell_len(text_of(column.title))
    if column.draw is not None:
        return max(title, column.min_width, column.max_width or 0)
    texts = (text_of(column.cell(row))[:MAX_CHARACTERS] for row in rows)
    widest = max([title, column.min_width, *map(cell_len, texts)])
    return widest if column.max_width is None else min(widest, column.max_width)


def _needed(column: Column[Row], wanted: int) -> int:
    """The cells without which another column is left out."""
    if column.draw is not None and column.width is None:
        shortest = column.short_titles[-1] if column.short_titles else text_of(column.title)
        return max(cell_len(shortest), column.min_width)
    return wanted if column.shrinks_to is None else min(wanted, column.shrinks_to)


def _total(widths: "dict[Column[Row], int]") -> int:
    return sum(widths.values()) + sum(column.gap for i, column in enumerate(widths) if i)
