"""A histogram of the exponents of all scaled gradients, with the zones of float16's range."""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amptui.base import units
from amptui.records.findings import FLOAT16_ZONES, Float16Window
from amptui.telemetry.view import Floats
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.renderables.step_window import GUTTER
from amptui.tui.style import BOLD, Style

MARGIN = 8
"""Cells right of the last bar: a blank, then the count of NaN and Inf."""

_END = 18
"""The exponent before which the axis ends."""

_MIN_BARS, _MAX_BARS = 50, 60
"""Bars of one exponent each. 50 begin at 2^-32, where the zone has room for the word ``flushed``; 60 begin at
2^-42: smaller scaled gradients are rare."""

MIN_WIDTH = GUTTER + _MIN_BARS + MARGIN
"""Columns without which there is no histogram."""

LEGEND_LINES = 3
"""Lines under the bars: the axis, the names of the zones, their shares."""

_EIGHTHS = np.array([ord(sign) for sign in " ▁▂▃▄▅▆▇█"], np.uint32)
"""Bars to an eighth of a cell."""

_MAX_PERCENT_DECADE = 6
"""``0.0001%`` is as wide as the gutter."""

_MIDDLE_LABEL_HEIGHT = 5
"""Lines of bars needed for a label between top and bottom."""


class _Zone(NamedTuple):
    """A range of exponents, by what float16 does with them."""

    name: str
    first: int
    elements: int
    style: int
    boundary: str
    """Where it begins, in words; empty for the first."""


def draw_exponents(canvas: Canvas, window: Float16Window) -> None:
    """Draw the histogram of ``window`` on a cleared canvas, its zones named and counted below the axis.

    A bar's height is the logarithm of its share of all elements, from one element to all: a small part that
    is about to be lost is visible, down to one element. Zeros are counted left of the axis, in the
    ``GUTTER``, NaN and Inf right of it. The first and the last bar include what lies beyond them, which an
    arrow shows.
    """
    room = canvas.width - GUTTER - MARGIN
    if room < _MIN_BARS or canvas.height <= LEGEND_LINES:
        return
    cells = room // _MIN_BARS
    first = _END - min(_MAX_BARS, room // cells)
    # Their exact counts: a bar at the edge of two zones may include both sides.
    flushed_style = Style.WARNING if window.flushed else Style.DIM
    overflow_style = Style.ERROR if window.overflowing else Style.DIM
    zones = (
        _Zone("flushed", first, window.flushed, flushed_style, ""),
        _Zone("subnormal", FLOAT16_ZONES["subnormal"], window.subnormal, Style.TEXT, "2^-25"),
        _Zone("normal", FLOAT16_ZONES["normal"], window.normal, Style.GOOD, "2^-14"),
        _Zone("overflow", FLOAT16_ZONES["overflow"], window.overflowing, overflow_style, "65,520"),
    )
    edges = [cells * (zone.first - first) for zone in zones] + [cells * (_END - first)]
    bar_of = np.clip(window.first_exponent - first + np.arange(len(window.counts)), 0, _END - first - 1)
    counts = np.bincount(bar_of, weights=window.counts, minlength=_END - first)
    bars: Floats = counts / max(1, window.elements)
    rows = canvas.height - LEGEND_LINES
    area = canvas.part(Rect(GUTTER, 0, edges[-1], rows))
    styles = np.repeat([zone.style for zone in zones], np.diff(edges)).astype(np.uint8)
    decades = max(1, math.ceil(math.log10(max(1, window.elements))))
    _draw_bars(area, np.repeat(bars, cells), styles, edges[1:-1], decades)
    # The share of all elements at the top, the bottom, and a whole decade near the middle.
    labels = {rows - 1: decades, 0: 0}
    if rows >= _MIDDLE_LABEL_HEIGHT:
        labels = {round(decades // 2 / decades * (rows - 1)): decades // 2} | labels
    for y, decade in labels.items():
        has_room = decade <= _MAX_PERCENT_DECADE
        share = f"{100 / 10**decade:.{max(0, decade - 2)}f}%" if has_room else f"1/10^{decade}"
        canvas.text(0, y, share, Style.DIM, width=GUTTER - 1, align="right")
    legend = canvas.rows(rows)
    below, above = max(0, first - window.first_exponent), max(0, _END - window.first_exponent)
    _draw_axis(legend, zones, edges, beyond=(any(window.counts[:below]), any(window.counts[above:])))
    _draw_counts(legend, window, zones, edges)


def _draw_bars(
    area: Canvas, shares: Floats, styles: npt.NDArray[np.uint8], boundaries: list[int], decades: int
) -> None:
    """Draw bars on a logarithmic axis of ``decades``, and a thin line where a zone begins."""
    logarithms = np.log10(shares, out=np.full(len(shares), -np.inf), where=shares > 0)
    eighths = np.rint(np.clip(1 + logarithms / decades, 0, 1) * area.height * 8)
    eighths = np.where(shares > 0, np.maximum(eighths, 1), 0)
    above = 8 * np.arange(area.height - 1, -1, -1)[:, np.newaxis]
    area.chars[...] = _EIGHTHS[np.clip(eighths - above, 0, 8).astype(np.int64)]
    area.styles[...] = styles
    for x in boundaries:
        free = area.chars[:, x] == ord(" ")
        area.chars[free, x] = ord("▏")
        area.styles[free, x] = Style.DIM


def _draw_axis(legend: Canvas, zones: tuple[_Zone, ...], edges: list[int], beyond: tuple[bool, bool]) -> None:
    """Draw the zones as a line in their styles, with the numbers where they meet."""
    legend.text(0, 0, "log", Style.DIM, width=GUTTER - 1, align="right")
    for zone, (start, stop) in zip(zones, pairwise(edges), strict=True):
        legend.fill(Rect(GUTTER + start, 0, stop - start, 1), "━", zone.style)
    for zone, start in zip(zones, edges[:-1], strict=True):
        if zone.boundary:
            legend.text(GUTTER + start - len(zone.boundary) // 2, 0, zone.boundary)
    # Beside the bars: on them an arrow would hide the start of the last zone.
    if beyond[0]:
        legend.text(GUTTER - 1, 0, "←", zones[0].style | BOLD)
    if beyond[1]:
        legend.text(GUTTER + edges[-1] + 1, 0, "→", zones[-1].style | BOLD)


def _draw_counts(legend: Canvas, window: Float16Window, zones: tuple[_Zone, ...], edges: list[int]) -> None:
    """Write name and share of each zone below its bars, of zeros left and of NaN and Inf right of them."""
    for zone, (start, stop) in zip(zones, pairwise(edges), strict=True):
        for y, text in enumerate((zone.name, units.share(zone.elements, window.elements)), 1):
            # The last zone is narrower than its name: they end in the same column.
            x = stop - len(text) if stop == edges[-1] else (start + stop - len(text) + 1) // 2
            legend.text(GUTTER + x, y, text, Style.DIM if y == 1 else _share_style(zone))
    nonfinite_style = Style.ERROR | BOLD if window.nonfinite else Style.DIM
    for x, width, title, text, style in (
        (0, GUTTER - 1, "zeros", units.share(window.zeros, window.elements), Style.TEXT),
        (GUTTER + edges[-1], MARGIN, "NaN/Inf", units.count(window.nonfinite), nonfinite_style),
    ):
        legend.text(x, 1, title, Style.DIM, width=width, align="right")
        legend.text(x, 2, text, style, width=width, align="right")


def _share_style(zone: _Zone) -> int:
    return zone.style | BOLD if zone.style in (Style.WARNING, Style.ERROR) else zone.style
