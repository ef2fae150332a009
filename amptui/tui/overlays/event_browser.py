"""All events as a list, newest first, and below it the selected one in full."""

from typing import ClassVar

from amptui.diagnosis.event_words import event_details, event_text
from amptui.telemetry.events import Event
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.overlays.overlay import (
    CLOSE,
    STAY,
    Answer,
    Page,
    cut_lines,
    line_after,
    open_box,
    pages_beside,
    wrapped_lines,
    write_edge,
)
from amptui.tui.panels import event_list
from amptui.tui.panels.phrases import quiet
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style

_MIN_DETAIL_LINES = 3

_MARGIN = 3
"""Cells before an event: the cursor, whether it has details, and a blank."""

_KEYS = (("esc", "back"), ("↑ ↓", "select"))


class EventBrowser(Page):
    """The list with the selected event below it, at first that of the number ``selected``."""

    name: ClassVar[str] = "events"
    opened_by: ClassVar[str] = "e"

    def __init__(self, selected: int | None = None) -> None:
        super().__init__()
        self._selected = selected
        """The number of the selected event; None follows the newest."""
        self._index = 0
        self._page = 1

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        # Find the selected event among new ones; without one, select the newest.
        numbers = [event.number for event in view.events]
        if self._selected is None:
            self._index = 0
        elif self._selected in numbers:
            self._index = numbers.index(self._selected)
        self._index = max(0, min(self._index, len(numbers) - 1))
        events = view.events
        inner = open_box(canvas, f"events ({len(events):,})")
        detail = _lines(events[self._index], inner.width - 2) if events else []
        room = max(_MIN_DETAIL_LINES, inner.height // 2, inner.height - 1 - len(events))
        detail_height = min(len(detail), room)
        self._page = max(1, inner.height - detail_height - 1)
        top = max(0, min(self._index - self._page // 2, len(events) - self._page))
        page = events[top : top + self._page]
        if not page:
            quiet(inner, event_list.NOTHING_YET)
        event_list.draw_events(inner.part(Rect(_MARGIN, 0, max(0, inner.width - _MARGIN), self._page)), page)
        for y, event in enumerate(page):
            inner.text(1, y, "+" if event_details(event) else " ", Style.KEY)
        if events:
            inner.text(0, self._index - top, "▸", Style.KEY | BOLD)
            inner.text(0, self._page, "─" * inner.width, Style.FRAME)
            if not event_list.has_times(inner.width - _MARGIN):
                inner.text(1, self._page, f" {event_list.when(events[self._index])} ", Style.DIM)
        for y, line in enumerate(detail[self._scroll.visible(len(detail), detail_height)]):
            inner.text(1, self._page + 1 + y, line)
        words = self._scroll.words
        scrolls = (("← →", "scroll details"),) if words else ()
        keys = (*_KEYS, *scrolls, pages_beside("e"))
        write_edge(canvas, keys, screen, right=f"{words} lines" if words else "")

    def press(self, key: str, view: SessionView) -> Answer:
        """Arrows and pages move; the selected event stays selected while new ones arrive."""
        if self.closes(key):
            return CLOSE
        if key in ("left", "right"):
            self._scroll.top += 5 if key == "right" else -5
        else:
            index = line_after(self._index, key, page=self._page, last=len(view.events) - 1)
            if index != self._index:
                self._index = index
                self._selected = view.events[index].number if index else None
                self._scroll.top = 0
        return STAY


def _lines(event: Event, width: int) -> list[str]:
    """What happened, and its details, in lines of at most ``width`` cells, wrapped between words.

    Those of a traceback are cut: their columns matter.
    """
    width, details = max(10, width), list[str]()
    for line in event_details(event):
        traceback = event.kind == "failed" and line[:1] == " "
        details += cut_lines(line, width) if traceback else wrapped_lines(line, width, hang="  ")
    return [*wrapped_lines(event_text(event), width), *details]
