"""Where each panel stands on a screen of any size: pure arithmetic, no drawing."""

from dataclasses import dataclass
from typing import TypeAlias

from amptui.tui.canvas import Rect

PANELS = ("loss", "throughput", "scale", "numerics", "memory", "comparison", "events")
"""The panels that can be looked at alone, in the order in which a key walks through them."""

SMALLEST = (40, 12)
"""Columns and lines below which only a notice is shown."""

_TWO_COLUMNS = 34
"""The frame, labels and two columns of the comparison."""

_EVENT_LINES = 3
"""Events shown where panels are folded to lines."""


@dataclass(frozen=True, slots=True)
class Place:
    """One panel's place; an unframed panel of ``PANELS`` is folded to the lines of ``rect``."""

    name: str
    """One of ``PANELS``, or ``header``, ``banner``, ``footer``, ``notice``."""
    rect: Rect
    framed: bool


Layout: TypeAlias = tuple[Place, ...]
"""Every place of one screen; no two overlap and none leaves the screen."""


def arrange(width: int, height: int, focus: str | None, *, banner_lines: int = 0) -> Layout:
    """Give each panel its place on a screen of ``width`` columns by ``height`` lines.

    ``focus`` is one of ``PANELS`` and then has everything between header and footer; ``banner_lines``
    are kept free under the header. Sizes with room for curves of their own frame every panel; smaller
    ones fold panels to one line each, the loss curve last; below ``SMALLEST`` only a notice is left. The
    numerics stand beside the others on large screens only: elsewhere they are looked at alone.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return (Place("notice", Rect(0, 0, max(0, width), max(0, height)), framed=False),)
    banner = Rect(0, 1, width, min(banner_lines, height // 4))
    body = Rect(0, banner.y + banner.height, width, height - 2 - banner.height)
    header = Place("header", Rect(0, 0, width, 1), framed=False)
    footer = Place("footer", Rect(0, height - 1, width, 1), framed=False)
    above = (header, Place("banner", banner, framed=False)) if banner.height else (header,)
    middle = _middle(width, height, body) if focus is None else (Place(focus, body, framed=True),)
    return (*above, *middle, footer)


def _middle(width: int, height: int, body: Rect) -> Layout:
    """The fold that suits a screen of this size, laid out in ``body``."""
    if width >= 150 and height >= 50:
        return _large(body)
    if width >= 100 and height >= 30:
        return _wide(body)
    if width >= 60 and height >= 36:
        return _tall(body)
    if width >= 100 and height >= 16:
        return _short(body)
    if width >= 60 and height >= 16:
        return _compact(body)
    return _lines(body)


def _large(body: Rect) -> Layout:
    """As the wide fold, with the numerics between the loss and the curves of throughput and scale."""
    inside = _between(16, round(0.32 * body.height), 24)
    # Each takes its part of what is left, so that no line more ever costs the loss one.
    curves = _between(8, round(0.28 * (body.height - inside)), 12)
    foot = _between(5, round(0.26 * (body.height - inside - curves)), 14)
    top = body.height - inside - curves - foot
    right = _between(40, round(0.27 * body.width), 56)
    upper, middle, lower, last = _rows(body, top, inside, curves, foot)
    return (
        *_columns(upper, loss=body.width - right, comparison=right),
        *_columns(middle, numerics=body.width - right, memory=right),
        *_columns(lower, throughput=body.width - right, scale=right),
        Place("events", last, framed=True),
    )


def _wide(body: Rect) -> Layout:
    """Loss beside comparison; throughput, scale and memory under them; events at the foot."""
    middle = _between(8, round(0.22 * body.height), 14)
    foot = _between(4, round(0.16 * body.height), 16)
    top = body.height - middle - foot
    # One width for the right column of both rows, so that their edges stand in one line.
    right = _between(_TWO_COLUMNS, round(0.32 * body.width), 56)
    scale = _between(30, round(0.28 * body.width), 52)
    upper, lower, last = _rows(body, top, middle, foot)
    return (
        *_columns(upper, loss=body.width - right, comparison=right),
        *_columns(lower, throughput=body.width - right - scale, scale=scale, memory=right),
        Place("events", last, framed=True),
    )


def _tall(body: Rect) -> Layout:
    """For narrow, high screens: the panels two by two under the loss."""
    curves = _between(7, round(0.18 * body.height), 12)
    tables = 13
    foot = _between(5, round(0.16 * body.height), 16)
    top = body.height - curves - tables - foot
    left = body.width // 2
    table = max(left, _TWO_COLUMNS)
    first, second, third, last = _rows(body, top, curves, tables, foot)
    return (
        Place("loss", first, framed=True),
        *_columns(second, throughput=left, scale=body.width - left),
        *_columns(third, comparison=table, memory=body.width - table),
        Place("events", last, framed=True),
    )


def _short(body: Rect) -> Layout:
    """For wide, low screens: loss beside comparison, the rest in lines."""
    right = _between(_TWO_COLUMNS, round(0.32 * body.width), 56)
    top = body.height - 3 - _EVENT_LINES
    upper, lower = _rows(body, top, body.height - top)
    return (
        *_columns(upper, loss=body.width - right, comparison=right),
        *_folded(lower, "throughput", "scale", "memory"),
    )


def _compact(body: Rect) -> Layout:
    """The loss curve above everything else in lines."""
    top = body.height - 4 - _EVENT_LINES
    upper, lower = _rows(body, top, body.height - top)
    return (
        Place("loss", upper, framed=True),
        *_folded(lower, "throughput", "scale", "memory", "comparison"),
    )


def _lines(body: Rect) -> Layout:
    """Everything in lines."""
    return _folded(body, "loss", "throughput", "scale", "memory", "comparison")


def _folded(area: Rect, *names: str) -> Layout:
    """One line a name from the top of ``area`` on; what is left shows events."""
    lines = tuple(
        Place(name, line, framed=False)
        for name, line in zip(names, _rows(area, *[1] * len(names)), strict=True)
    )
    rest = Rect(area.x, area.y + len(names), area.width, area.height - len(names))
    return (*lines, Place("events", rest, framed=False))


def _rows(area: Rect, *heights: int) -> list[Rect]:
    """``area`` cut into rows of these heights, from the top."""
    tops = [area.y + sum(heights[:i]) for i in range(len(heights))]
    return [Rect(area.x, top, area.width, height) for top, height in zip(tops, heights, strict=True)]


def _columns(row: Rect, **widths: int) -> list[Place]:
    """Framed panels side by side in ``row``, from the left."""
    places, x = [], row.x
    for name, width in widths.items():
        places.append(Place(name, Rect(x, row.y, width, row.height), framed=True))
        x += width
    return places


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
