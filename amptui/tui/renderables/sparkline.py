"""A curve in one line of blocks: the newest values of a series, each cell the mean of its share of them."""

import math
from collections.abc import Sequence
from itertools import pairwise

from amptui.tui.canvas import Canvas
from amptui.tui.style import BOLD, Style

BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=^"

NONFINITE = "×"
"""A cell in which no value is finite, and one is NaN or Inf."""


def draw_sparkline(
    canvas: Canvas, x: int, y: int, width: int, values: Sequence[float | None], style: int
) -> None:
    """Draw ``values``, oldest first, so that they end at column ``x + width``.

    The lowest cell is the lowest block and the highest the highest; a flat curve lies in the middle. A value
    of None was not measured and leaves its cell blank if it is alone there.
    """
    levels = cell_levels(values, width, len(_ASCII_BLOCKS if canvas.ascii_only else BLOCKS))
    blocks = _ASCII_BLOCKS if canvas.ascii_only else BLOCKS
    for column, level in enumerate(levels, x + width - len(levels)):
        if level is None:
            continue
        if level < 0:
            canvas.text(column, y, NONFINITE, Style.ERROR | BOLD)
        else:
            canvas.text(column, y, blocks[level], style)


def cell_levels(values: Sequence[float | None], width: int, levels: int) -> list[int | None]:
    """The level of each cell, from 0 to ``levels - 1``; -1 for one that is not finite, None for none.

    There are ``width`` cells, or as many as there are values if they are fewer.
    """
    cells = min(width, len(values))
    if cells < 1:
        return []
    edges = [cell * len(values) // cells for cell in range(cells + 1)]
    means = [_mean(values[start:end]) for start, end in pairwise(edges)]
    finite = [mean for mean in means if mean is not None and math.isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return [_level(mean, low, high, levels) for mean in means]


def _mean(values: Sequence[float | None]) -> float | None:
    """Of the finite values; NaN if the others are not finite; None if there is none."""
    measured = [value for value in values if value is not None]
    finite = [value for value in measured if math.isfinite(value)]
    if finite:
        return sum(value / len(finite) for value in finite)  # the sum of the largest floats would overflow
    return math.nan if measured else None


def _level(mean: float | None, low: float, high: float, levels: int) -> int | None:
    if mean is None:
        return None
    if not math.isfinite(mean):
        return -1
    if high <= low:
        return (levels - 1) // 2
    share = (mean / 2 - low / 2) / (high / 2 - low / 2)  # half: the difference may be larger than any float
    return min(levels - 1, int(share * levels))
