"""A canvas as text that people read and compare: its lines, then what is not plain text in each of them."""

from itertools import groupby, pairwise

import numpy as np

from amptui.tui.canvas import BLANK, Canvas
from amptui.tui.style import BOLD, Style

FAR = 3
"""Words of one style that are farther apart than so many columns are named apart."""


def picture(canvas: Canvas) -> str:
    """The lines without the blanks at their ends, then each line's styles, with their columns from 1 on.

    Lines of the same styles are named together. Blanks have no style: a terminal does not show it.
    """
    lines = [line.rstrip() for line in canvas.lines()]
    styles, y = [], 1
    for described, same in groupby(_line_styles(canvas, row) for row in range(canvas.height)):
        count = len(list(same))
        if described:
            where = str(y) if count == 1 else f"{y}-{y + count - 1}"
            styles.append(f"{where:>5}  {described}")
        y += count
    return "\n".join([*lines, f"--- {canvas.width}x{canvas.height}", *styles])


def _line_styles(canvas: Canvas, y: int) -> str:
    """`frame 1 40, fp16 bold 3-9`: which columns of a line have which style."""
    columns = np.flatnonzero(canvas.chars[y] != BLANK)
    if not len(columns):
        return ""
    values = canvas.styles[y, columns]
    apart = (np.diff(values) != 0) | (np.diff(columns) > FAR)
    edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(columns)]
    runs: dict[int, list[str]] = {}
    for start, stop in pairwise(edges):
        first, last = int(columns[start]) + 1, int(columns[stop - 1]) + 1
        runs.setdefault(int(values[start]), []).append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(
        f"{style_name(style)} {' '.join(at)}" for style, at in runs.items() if style != Style.TEXT
    )


def style_name(style: int) -> str:
    """`fp16 bold`."""
    return Style(style & ~BOLD).name.lower() + (" bold" if style & BOLD else "")
