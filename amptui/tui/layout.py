"""The place of each panel on a screen of any size, and the boxes and titles drawn there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.style import Style

PANELS = ("loss", "throughput", "comparison", "numerics", "memory", "events")
"""The panels, in the order in which ``tab`` enlarges them."""

RANKED_PANELS = (*PANELS[:-1], "ranks", PANELS[-1])
"""The same of a distributed run."""

TITLES = {name: name for name in RANKED_PANELS} | {
    "memory": "device",
    "numerics": "float16",
}

SMALLEST = (40, 12)
"""Columns and lines. A smaller terminal shows only a notice."""

_MIN_RANK_LINES = 6
"""Of a framed panel of ranks: a sentence, titles and two rows."""

_COMPARISON_WIDTH = 44
"""Of two precisions, their difference and its interval, with a frame."""

_COMPARISON_LINES = 14
"""Of its table and five lines of what needs attention, with a frame: below it is the device."""

_EVENT_LINES = 3
"""Events shown where panels are folded to one line each."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a panel; one without a frame is folded to the lines of ``rect``."""

    name: str
    """Of ``RANKED_PANELS``; or ``header``, ``amp``, ``banner``, ``optimizers``, ``scale``, ``footer``,
    ``notice``, which have no frame."""
    rect: Rect
    framed: bool


Layout: TypeAlias = tuple[Place, ...]
"""The places of one screen. They do not overlap and lie within the screen."""


def arrange(
    width: int,
    height: int,
    focus: str | None,
    *,
    banner_lines: int = 0,
    rank_lines: int = 0,
    optimizer_lines: int = 0,
    device: Sequence[str] = ("scale", "memory"),
) -> Layout:
    """Return the place of each panel on a screen of ``width`` columns by ``height`` lines.

    Below the header are ``banner_lines``, then the answer on AMP in one line, then ``optimizer_lines``.
    ``focus``, one of ``RANKED_PANELS``, fills the screen between these and the footer. Large screens frame
    loss, comparison, throughput and events; smaller ones fold panels to one line each, the loss last. A
    distributed run has a panel of its ranks above the events, of ``rank_lines`` at most. Without a loss scale
    and a GPU (``device``) the others have their room. Below ``SMALLEST`` there is only a notice.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return (Place("notice", Rect(0, 0, max(0, width), max(0, height)), framed=False),)
    banner = Rect(0, 1, width, min(banner_lines, height // 4))
    answer = Rect(0, banner.y + banner.height, width, 1)
    others = Rect(0, answer.y + 1, width, optimizer_lines)
    body = Rect(0, others.y + others.height, width, height - 3 - banner.height - others.height)
    header = Place("header", Rect(0, 0, width, 1), framed=False)
    footer = Place("footer", Rect(0, height - 1, width, 1), framed=False)
    lines = {"banner": banner, "amp": answer, "optimizers": others}
    above = (header, *(Place(name, rect, framed=False) for name, rect in lines.items() if rect.height))
    if focus is not None:
        return (*above, Place(focus, body, framed=True), footer)
    fitting = (
        (least_body, lay_out)
        for least_width, least_height, least_body, lay_out in _LAYOUTS
        if width >= least_width and height >= least_height
    )
    least_body, lay_out = next(fitting, (body.height, _folded))
    if not rank_lines:
        return (*above, *lay_out(body, device), footer)
    # The ranks above the events, framed if ``least_body`` stays for all others; else in one line.
    room = min(rank_lines, body.height - least_body)
    rank_lines = room if room >= _MIN_RANK_LINES else 1
    *panels, events = lay_out(replace(body, height=body.height - rank_lines), device)
    ranks = Place("ranks", replace(events.rect, height=rank_lines), framed=rank_lines > 1)
    events = replace(events, rect=replace(events.rect, y=events.rect.y + rank_lines))
    return (*above, *panels, ranks, events, footer)


def _wide(body: Rect, device: Sequence[str]) -> Layout:
    """Loss and throughput at the left, comparison and device at the right, events at the bottom.

    Without a device the throughput has the whole width.
    """
    curves = _between(7, round(0.22 * body.height), 14)
    foot = _between(4, round(0.16 * body.height), 16)
    right = _between(_COMPARISON_WIDTH, round(0.3 * body.width), 60)
    upper, lower, last = _rows(body, body.height - curves - foot, curves, foot)
    loss, comparison = _columns(upper, loss=body.width - right, comparison=right)
    events = Place("events", last, framed=True)
    if not device:
        return (loss, comparison, Place("throughput", lower, framed=True), events)
    table = min(upper.height, _COMPARISON_LINES)
    rows = _rows(comparison.rect, table, upper.height + curves - table)
    beside = (Place(name, row, framed=True) for name, row in zip(("comparison", "memory"), rows, strict=True))
    return (loss, *beside, *_columns(lower, throughput=body.width - right), events)


def _tall(body: Rect, device: Sequence[str]) -> Layout:
    """For narrow, high screens: the same, one below the other, and the device in a line each."""
    curves, table = _between(7, round(0.18 * body.height), 12), 11
    foot = _between(5, round(0.16 * body.height), 16)
    top = body.height - curves - table - len(device) - foot
    *rows, last = _rows(body, top, curves, table, *[1] * len(device), foot)
    names = ("loss", "throughput", "comparison", *device)
    places = (Place(name, row, framed=row.height > 1) for name, row in zip(names, rows, strict=True))
    return (*places, Place("events", last, framed=True))


def _folded(body: Rect, device: Sequence[str], *, framed: int = 0) -> Layout:
    """The loss and the comparison framed side by side, the loss alone or neither; the rest in a line each."""
    names = ["loss", "throughput", *device, "comparison"][min(framed, 1) : -1 if framed == 2 else None]
    foot = len(names) + _EVENT_LINES if framed else body.height
    upper, lower = _rows(body, body.height - foot, foot)
    right = _COMPARISON_WIDTH if framed == 2 else 0
    panels = _columns(upper, loss=body.width - right, comparison=right)[:framed]
    rows = _rows(lower, *[1] * len(names), foot - len(names))
    lines = (Place(name, row, framed=False) for name, row in zip((*names, "events"), rows, strict=True))
    return (*panels, *lines)


_LAYOUTS: tuple[tuple[int, int, int, Callable[..., Layout]], ...] = (
    (100, 30, 21, _wide),
    (60, 36, 33, _tall),
    (100, 16, 80, partial(_folded, framed=2)),
    (60, 16, 80, partial(_folded, framed=1)),
)
"""For screens of at least so many columns and lines; the lines of its body that a panel of ranks leaves."""


def _rows(area: Rect, *heights: int) -> list[Rect]:
    """Cut ``area`` into rows of these heights, from the top."""
    tops = [area.y + sum(heights[:i]) for i in range(len(heights))]
    return [Rect(area.x, top, area.width, height) for top, height in zip(tops, heights, strict=True)]


def _columns(row: Rect, **widths: int) -> list[Place]:
    """Place framed panels side by side in ``row``, from the left."""
    places, x = [], row.x
    for name, width in widths.items():
        places.append(Place(name, Rect(x, row.y, width, row.height), framed=True))
        x += width
    return places


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def draw_backdrop(canvas: Canvas, layout: Layout) -> None:
    """Draw the box and the title of each framed panel: all that is known before the run starts."""
    for place in layout:
        if place.framed:
            box = canvas.part(place.rect)
            draw_box(box)
            box.text(1, 0, f" {TITLES[place.name]} ")


def draw_box(canvas: Canvas) -> None:
    """Draw a rounded frame along the edges of ``canvas``."""
    right, bottom = canvas.width - 1, canvas.height - 1
    for y in (0, bottom):
        canvas.fill(Rect(0, y, canvas.width, 1), "─", Style.FRAME)
    for x in (0, right):
        canvas.fill(Rect(x, 0, 1, canvas.height), "│", Style.FRAME)
    for x, y, corner in ((0, 0, "╭"), (right, 0, "╮"), (0, bottom, "╰"), (right, bottom, "╯")):
        canvas.text(x, y, corner, Style.FRAME)
