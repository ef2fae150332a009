"""Lines and areas as dots, and dots as braille characters."""

import numpy as np
import numpy.typing as npt

from amptui.telemetry.view import Counts
from amptui.tui.renderables.columns import Bools

DOTS_ACROSS = 2
DOTS_DOWN = 4
"""Dots of a braille cell."""

_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)
"""The bit of each dot of a cell in the code points from U+2800 on."""


def line_dots(rows: Counts, drawn: Bools, height: int) -> Bools:
    """Dots [height, columns] of a line through ``rows[column]`` of every ``drawn`` column.

    Each of two neighbours draws half of the dots between them, so that the line is one dot thick.
    """
    before, after = rows[:-1], rows[1:]
    joined = drawn[:-1] & drawn[1:]
    half = (before + after) // 2
    low, high = rows.copy(), rows.copy()
    low[:-1] = np.where(joined, np.minimum(before, half + 1), before)
    high[:-1] = np.where(joined, np.maximum(before, half), before)
    low[1:] = np.where(joined, np.minimum(low[1:], half + 1), low[1:])
    high[1:] = np.where(joined, np.maximum(high[1:], half), high[1:])
    y = np.arange(height)[:, np.newaxis]
    dots: Bools = (y >= low) & (y <= high) & drawn
    return dots


def area_dots(top: Counts, bottom: Counts, drawn: Bools, height: int, *, one_in: int) -> Bools:
    """One in so many of the dots [height, columns] from row ``top`` to row ``bottom`` of each column.

    They are spread evenly in every column, in staggered rows, so that a peak of one column is not missed. A
    column whose top is its bottom has that dot.
    """
    y, x = np.arange(height)[:, np.newaxis], np.arange(len(top))
    chosen = y % one_in == x * (one_in // 2) % one_in
    dots: Bools = (y >= top) & (y <= bottom) & drawn & (chosen | (top == bottom))
    return dots


def braille(dots: Bools) -> npt.NDArray[np.uint32]:
    """The characters [height / 4, columns / 2] of ``dots``; blanks where there are none."""
    height, width = dots.shape[0] // DOTS_DOWN, dots.shape[1] // DOTS_ACROSS
    cells = dots.reshape(height, DOTS_DOWN, width, DOTS_ACROSS).view(np.uint8)
    bits = np.einsum("ydxa,da->yx", cells, _BITS)
    return np.where(bits > 0, np.uint32(0x2800) + bits, np.uint32(ord(" ")))
