"""All events as a list, newest first, and each of them in full."""

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

_LIST_KEYS = (("esc", "back"), ("enter", "details"), ("↑ ↓", "select"))
_DETAIL_KEYS = (("esc", "list"), ("↑ ↓", "scroll"), ("e", "close"))


class EventBrowser(Page):
    """The list with the selected event below it; enter gives that event the whole box.

    It opens with the event of the number ``selected``, in full.
    """

    name: ClassVar[str] = "events"
    opened_by: ClassVar[str] = "e"

    def __init__(self, selected: int | None = None) -> None:
        super().__init__()
        self._selected = selected
        """The number of the selected event; None follows the newest."""
        self._index = 0
        self._page = 1
        self._in_full = selected is not None

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        # Find the selected event among new ones; without one, select the newest.
        numbers = [event.number for event in view.events]
        if self._selected is None:
            self._index = 0
        elif self._selected in numbers:
            self._index = numbers.index(self._selected)
        self._index = max(0, min(self._index, len(numbers) - 1))
        if self._in_full and view.events:
            self._draw_event(canvas, view, screen)
        else:
            self._draw_list(canvas, view, screen)

    def _draw_list(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        events = view.events
        inner = open_box(canvas, f"events ({len(events):,})")
        detail = list[str]()
        if events:
            head, more = _lines(events[self._index], inner.width - 2)
            detail = [*head, *more]
        room = max(_MIN_DETAIL_LINES, inner.height // 2, inner.height - 1 - len(events))
        detail_height = min(len(detail), room)
        self._page = max(1, inner.height - detail_height - 1)
        top = max(0, min(self._index - self._page // 2, len(events) - self._page))
        page = events[top : top + self._page]
        if not page:
            quiet(inner, event_list.NOTHING_YET)
        event_list.draw_events(inner.part(Rect(3, 0, max(0, inner.width - 3), self._page)), page)
        for y, event in enumerate(page):
            inner.text(1, y, "+" if event_details(event) else " ", Style.KEY)
        if events:
            inner.text(0, self._index - top, "▸", Style.KEY | BOLD)
            inner.text(0, self._page, "─" * inner.width, Style.FRAME)
        for y, line in enumerate(detail[self._scroll.visible(len(detail), detail_height)]):
            inner.text(1, self._page + 1 + y, line)
        scrolls = (("← →", "scroll details"),) if self._scroll.words else ()
        write_edge(canvas, (*_LIST_KEYS, *scrolls, pages_beside("e")), screen)

    def _draw_event(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """The selected event: its line in the list, then its full text."""
        inner = open_box(canvas, f"event {self._index + 1:,} of {len(view.events):,}")
        event = view.events[self._index]
        head, detail = _lines(event, inner.width - 2)
        lines = [*head, "", *detail] if detail else head
        sign, style = event_list.sign_of(event)
        x = inner.text(inner.text(1, 0, sign, style) + 1, 0, event_list.when(event), Style.DIM)
        inner.text(x + 2, 0, f"step {event.step:,}" if event.step is not None else "", Style.DIM)
        visible = self._scroll.visible(len(lines), inner.height - 2)
        for y, line in enumerate(lines[visible]):
            in_head = visible.start + y < len(head)
            inner.text(1, 2 + y, line, event_list.text_style(event) | BOLD if in_head else Style.TEXT)
        words = self._scroll.words
        write_edge(canvas, _DETAIL_KEYS, screen, right=f"{words} lines" if words else "")

    def press(self, key: str, view: SessionView) -> Answer:
        """Arrows and pages move; the selected event stays selected while new ones arrive."""
        if self.closes(key) and not (self._in_full and key == "escape"):
            return CLOSE
        if key in ("enter", "escape"):
            # From the list to the selected event, or back.
            self._in_full = not self._in_full and bool(view.events)
            self._scroll.top = 0
            if self._in_full:
                self._selected = view.events[self._index].number
        elif self._in_full:
            self._scroll.press(key)
        elif key in ("left", "right"):
            self._scroll.top += 5 if key == "right" else -5
        else:
            index = line_after(self._index, key, page=self._page, last=len(view.events) - 1)
            if index != self._index:
                self._index = index
                self._selected = view.events[index].number if index else None
                self._scroll.top = 0
        return STAY


def _lines(event: Event, width: int) -> tuple[list[str], list[str]]:
    """What happened, and its details, in lines of at most ``width`` cells, wrapped between words.

    Those of a traceback are cut: their columns matter.
    """
    width, details = max(10, width), list[str]()
    for line in event_details(event):
        traceback = event.kind == "failed" and line[:1] == " "
        details += cut_lines(line, width) if traceback else wrapped_lines(line, width, hang="  ")
    return wrapped_lines(event_text(event), width), details
