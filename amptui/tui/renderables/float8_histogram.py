"""A histogram of the exponents of one operand, multiplied by its scale, with the zones of float8's range."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from amptui.records.findings import Float8Format, Float8Operand
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.renderables.float16_histogram import draw_bars, draw_share_labels
from amptui.tui.renderables.step_window import GUTTER
from amptui.tui.style import Style

LEGEND_LINES = 2
"""Lines under the bars: the axis, and the names of the zones."""

_MAX_BARS = 52
"""Bars of one exponent each: E5M2's range and a dozen doublings below it."""

_MIN_FLUSHED = 4
"""Bars below the smallest number, of which the first holds all smaller ones too."""

_MIN_ROWS = 3


class _Range(NamedTuple):
    """The exponents at which the zones of a format begin, the flushed one aside, and the axis's end."""

    subnormal: int
    normal: int
    saturated: int
    end: int
    largest: str


_RANGES: Mapping[Float8Format, _Range] = {
    "e4m3": _Range(-10, -6, 9, 10, "448"),
    "e5m2": _Range(-17, -14, 16, 17, "57,344"),
}
"""What is halfway to the smallest number, 2^-9 and 2^-16, is still flushed. The last bar before the saturated
ones also holds what lies between the largest number and the next power of two."""

_STYLES = (Style.WARNING, Style.TEXT, Style.GOOD, Style.ERROR)


def least_width(format_: Float8Format) -> int:
    """The cells that the zones of a format need."""
    number_range = _RANGES[format_]
    return GUTTER + _MIN_FLUSHED + number_range.end - number_range.subnormal


def draw_operand(canvas: Canvas, operand: Float8Operand) -> None:
    """Draw the histogram of ``operand`` on a cleared canvas; nothing where it has no counts or no room.

    A bar's height is the logarithm of its share of all elements, from one element to all, so that a single
    one is seen. The first bar includes what lies below it, which an arrow shows.
    """
    rows = canvas.height - LEGEND_LINES
    if operand.first_exponent is None or canvas.width < least_width(operand.format) or rows < _MIN_ROWS:
        return
    number_range = _RANGES[operand.format]
    room = canvas.width - GUTTER
    bars = min(_MAX_BARS, room)
    cells = room // bars
    first = number_range.end - bars
    firsts = (first, number_range.subnormal, number_range.normal, number_range.saturated, number_range.end)
    edges = [cells * (exponent - first) for exponent in firsts]
    exponents = operand.first_exponent + np.arange(len(operand.counts))
    places = np.clip(exponents - first, 0, bars - 1)
    counts = np.bincount(places, weights=operand.counts, minlength=bars)
    styles = np.repeat(np.array(_STYLES), np.diff(edges)).astype(np.uint8)
    decades = max(1, math.ceil(math.log10(max(1, operand.elements))))
    area = canvas.part(Rect(GUTTER, 0, edges[-1], rows))
    shares = np.repeat(counts / max(1, operand.elements), cells)
    draw_bars(area, shares, styles, edges[1:-1], decades)
    draw_share_labels(canvas, rows, decades)
    _draw_axis(canvas.rows(rows), number_range, edges, goes_on=operand.first_exponent < first)


def _draw_axis(legend: Canvas, number_range: _Range, edges: list[int], *, goes_on: bool) -> None:
    """The zones as a line in their styles, where they begin, and the names of those that have room."""
    legend.text(0, 0, "log", Style.DIM, width=GUTTER - 1, align="right")
    for style, (start, stop) in zip(_STYLES, pairwise(edges), strict=True):
        legend.fill(Rect(GUTTER + start, 0, stop - start, 1), "━", style)
    _, subnormal, normal, saturated, _ = edges
    flush_limit = f"2^{number_range.subnormal}"
    legend.text(GUTTER + subnormal - len(flush_limit), 0, flush_limit)
    legend.text(GUTTER + normal, 0, f"2^{number_range.normal}")
    legend.text(GUTTER + saturated - len(number_range.largest), 0, number_range.largest)
    if goes_on:
        legend.text(GUTTER - 1, 0, "←", Style.WARNING)
    names = ("flushed", "subnormal", "normal", "saturated")
    for name, (start, stop) in zip(names, pairwise(edges), strict=True):
        if stop - start > len(name):
            legend.text(GUTTER + (start + stop - len(name)) // 2, 1, name, Style.DIM)
