"""All events as a list, the newest first, and any of them in full."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from amptui.telemetry.view import Event, SessionView
from amptui.tui.canvas import Canvas, Rect, text_width
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay, open_box, shifted, write_edge
from amptui.tui.panels import event_list
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style

_DEEPEST_INDENT = 12
"""Wrapped lines are indented at most this much."""

_LIST_KEYS = (("esc", "back"), ("enter", "details"), ("↑ ↓", "select"), ("← →", "scroll details"))
_READING_KEYS = (("esc", "list"), ("↑ ↓", "scroll"), ("e", "close"))


class EventBrowser(Overlay):
    """The list with the selected event below it; enter gives that event the whole box."""

    name: ClassVar[str] = "events"
    covers_all: ClassVar[bool] = True

    def __init__(self) -> None:
        self._chosen: int | None = None
        self._index = 0
        self._page = 1
        self._reading = False
        self._detail_top = 0
        self._detail_last_top = 0

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        self._follow(view)
        if self._reading and view.events:
            self._draw_event(canvas, view, screen)
        else:
            self._draw_list(canvas, view, screen)

    def _draw_list(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        inner = open_box(canvas, f"events ({len(view.events):,})", width=canvas.width, height=canvas.height)
        detail = event_lines(view.events[self._index], inner.width - 2) if view.events else []
        shown = min(len(detail), max(3, inner.height // 2)) if detail else 0
        self._page = max(1, inner.height - shown - 1)
        top = max(0, min(self._index - self._page // 2, len(view.events) - self._page))
        listed = replace(view, events=view.events[top : top + self._page])
        lines = inner.part(Rect(3, 0, max(0, inner.width - 3), self._page))
        event_list.draw(lines, listed, screen)
        for y, event in enumerate(listed.events):
            inner.text(1, y, "+" if event.detail else " ", Style.KEY)
        if view.events:
            inner.text(0, self._index - top, "▸", Style.KEY | BOLD)
            inner.text(0, self._page, "─" * inner.width, Style.FRAME)
        self._detail_last_top = max(0, len(detail) - shown)
        self._detail_top = min(self._detail_top, self._detail_last_top)
        for y, line in enumerate(detail[self._detail_top : self._detail_top + shown]):
            inner.text(1, self._page + 1 + y, line)
        write_edge(canvas, _LIST_KEYS, screen)

    def _draw_event(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """The selected event: its line in the list, then its full text."""
        title = f"event {self._index + 1:,} of {len(view.events):,}"
        inner = open_box(canvas, title, width=canvas.width, height=canvas.height)
        event = view.events[self._index]
        head = event_lines(replace(event, detail=""), inner.width - 2)
        detail = event_lines(event, inner.width - 2)[len(head) :]
        lines = [*head, "", *detail] if detail else head
        sign, style = event_list.sign_of(event, view)
        x = inner.text(inner.text(1, 0, sign, style) + 1, 0, event_list.when(event), Style.DIM)
        inner.text(x + 2, 0, f"step {event.step:,}" if event.step is not None else "", Style.DIM)
        page = self._page = max(1, inner.height - 2)
        self._detail_last_top = max(0, len(lines) - page)
        self._detail_top = min(self._detail_top, self._detail_last_top)
        for y, line in enumerate(lines[self._detail_top : self._detail_top + page]):
            in_head = self._detail_top + y < len(head)
            inner.text(1, 2 + y, line, event_list.text_style(event) | BOLD if in_head else Style.TEXT)
        more = f"{self._detail_top + 1}–{min(len(lines), self._detail_top + page)} of {len(lines)} lines"
        write_edge(canvas, _READING_KEYS, screen, right=more if self._detail_last_top else "")

    def press(self, key: str, view: SessionView) -> Answer:
        """Arrows and pages move; the selected event stays selected while new ones arrive."""
        if key in ("e", "q", "ctrl+q") or (key == "escape" and not self._reading):
            return CLOSE
        if key in ("enter", "escape"):
            self._turn(view)
        elif self._reading:
            top = shifted(self._detail_top, key, page=self._page, last=self._detail_last_top)
            self._detail_top = self._detail_top if top is None else top
        elif key in ("left", "right"):
            self._detail_top = max(0, self._detail_top + (5 if key == "right" else -5))
        else:
            index = shifted(self._index, key, page=self._page, last=len(view.events) - 1)
            if index is not None:
                self._choose(index, view)
        return STAY

    def _turn(self, view: SessionView) -> None:
        """Switch from the list to the selected event, or back."""
        self._reading = not self._reading and bool(view.events)
        self._detail_top = 0
        if self._reading:
            self._chosen = view.events[self._index].number

    def _choose(self, index: int, view: SessionView) -> None:
        self._index = max(0, index)
        self._chosen = view.events[self._index].number if view.events and self._index > 0 else None
        self._detail_top = 0

    def _follow(self, view: SessionView) -> None:
        """Keep the selected event selected; at the top, follow the newest."""
        numbers = [event.number for event in view.events]
        if self._chosen is None:
            self._index = 0
        elif self._chosen in numbers:
            self._index = numbers.index(self._chosen)
        self._index = max(0, min(self._index, len(view.events) - 1))


def event_lines(event: Event, width: int) -> list[str]:
    """Text and details of ``event`` in lines of at most ``width`` cells.

    Prose is wrapped between words. The indented lines of a failure are a traceback, whose columns matter:
    they are cut.
    """
    width = max(10, width)
    traceback = event.kind == "failed"
    pieces = [*_wrapped(event.text, width)]
    for line in event.detail.splitlines():
        pieces += (
            _cut(line, width) if traceback and line.startswith(" ") else _wrapped(line, width, hang="  ")
        )
    return pieces


def _wrapped(line: str, width: int, *, hang: str = "") -> Sequence[str]:
    """Wrap between words; later lines are indented like the first one, plus ``hang``."""
    indent = line[: len(line) - len(line.lstrip())][:_DEEPEST_INDENT]
    return textwrap.wrap(line, _characters(line, width), subsequent_indent=indent + hang) or [""]


def _cut(line: str, width: int) -> Sequence[str]:
    room = _characters(line, width)
    return [line[i : i + room] for i in range(0, len(line), room)]


def _characters(line: str, width: int) -> int:
    """How many characters of ``line`` are sure to fit: half as many if some take two cells."""
    return width if text_width(line) <= len(line) else max(1, width // 2)
