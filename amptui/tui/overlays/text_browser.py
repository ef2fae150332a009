"""Events, and long texts on the whole screen: what a run prints, and its configuration."""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.run_facts import Facts, detail_facts, run_facts
from amptui.records.run import Printed, RunFailed
from amptui.telemetry.events import PRINTS, Event
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect, text_width
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

_KEYS = (("esc", "back"), ("/", "search"), ("↑ ↓", "scroll"))
_TYPING_KEYS = (("enter", "keep"), ("esc", "all lines"))

_MAX_LABEL_WIDTH = 30


class Line(NamedTuple):
    """One line of a text, as long as it is."""

    text: str
    style: int = Style.TEXT
    label: str = ""
    """What stands before the text, in a column of its own."""


class TextBrowser(Page):
    """Lines over the whole screen, cut into as many rows as they need."""

    title: ClassVar[str]
    nothing: ClassVar[str]
    """Shown where there are no lines."""
    rows: Callable[[str, int], Sequence[str]] = staticmethod(cut_lines)
    """The rows of a line: its columns matter, unless words are kept whole."""
    follows: bool = False
    """Whether the last line stays in sight while lines are added."""

    def lines(self, view: SessionView) -> Sequence[Line]:
        """The whole text."""
        raise NotImplementedError

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        lines = self.lines(view)
        inner = open_box(canvas, self.title)
        searched = self._search.text.casefold()
        matching = [line for line in lines if searched in f"{line.label} {line.text}".casefold()]
        longest = max((text_width(line.label) for line in matching), default=0)
        labels = min(longest, _MAX_LABEL_WIDTH, inner.width // 2)
        x = 1 + labels + 2 * bool(labels)
        # The label stands before the first row of its line.
        rows = [
            Line(text, line.style, "" if i else line.label)
            for line in matching
            for i, text in enumerate(self.rows(line.text, max(1, inner.width - x - 1)))
        ]
        self._scroll.top = len(rows) if self.follows else self._scroll.top
        visible = self._scroll.visible(len(rows), inner.height)
        for y, row in enumerate(rows[visible]):
            inner.text(1, y, row.label, Style.DIM, width=labels, align="right")
            inner.text(x, y, row.text, row.style)
            # What was searched for is bold.
            lower = row.text.casefold()
            start = lower.find(searched) if searched and len(lower) == len(row.text) else -1
            while start >= 0:
                end = start + len(searched)
                inner.text(x + text_width(row.text[:start]), y, row.text[start:end], Style.KEY | BOLD)
                start = lower.find(searched, end)
        if not rows:
            words = f"no line holds {self._search.text!r}" if lines else self.nothing
            inner.text(1, 0, words, Style.DIM, width=max(0, inner.width - 1))
        search, words = self._search, self._scroll.words
        keys: Sequence[tuple[str, str]] = (*_KEYS, pages_beside(self.opened_by))
        if search.is_typing:
            keys = ((f"/{search.text}_", ""), *_TYPING_KEYS)
        elif search.text:
            keys = (("esc", "all lines"), ("/", search.text), *_KEYS[2:])
        write_edge(canvas, keys, screen, right=f"{words} lines" if words else "")

    def press(self, key: str, _view: SessionView) -> Answer:
        """Type into the search, scroll, or close."""
        if self._search.press(key):
            return STAY
        if self.closes(key):
            return CLOSE
        self._scroll.press(key)
        return STAY


class OutputBrowser(TextBrowser):
    """What the run's process printed, the oldest line first, and the traceback it ended with."""

    name: ClassVar[str] = "output"
    title: ClassVar[str] = "output"
    opened_by: ClassVar[str] = "t"
    nothing: ClassVar[str] = "nothing was printed"

    def __init__(self) -> None:
        super().__init__()
        self.follows = True

    def lines(self, view: SessionView) -> Sequence[Line]:
        lines = [
            Line(f"{event.about.text.rstrip()}{f'  ×{event.times:,}' if event.times > 1 else ''}")
            for event in view.printed
            if isinstance(event.about, Printed)
        ]
        if len(lines) >= PRINTS:
            lines.insert(0, Line("earlier lines: see output.log in the run folder", Style.DIM))
        if isinstance(view.outcome, RunFailed):
            # The traceback, then the error; Python has printed the traceback of most scripts already.
            trace, printed = view.outcome.traceback.rstrip().splitlines(), [line.text for line in lines]
            if not trace or printed[-len(trace) :] != [line.rstrip() for line in trace]:
                lines += [Line(""), *map(Line, trace)]
            lines.append(Line(view.outcome.error, Style.ERROR))
        return lines

    def press(self, key: str, view: SessionView) -> Answer:
        answer = super().press(key, view)
        self.follows = self._scroll.is_at_end
        return answer


class ConfigurationBrowser(TextBrowser):
    """What the run is: its options, versions, hardware and environment."""

    name: ClassVar[str] = "configuration"
    title: ClassVar[str] = "configuration"
    opened_by: ClassVar[str] = "i"
    nothing: ClassVar[str] = "known once training begins"
    rows = staticmethod(wrapped_lines)

    def lines(self, view: SessionView) -> Sequence[Line]:
        if view.run is None:
            return []
        own = [("folder", view.run_dir)] if view.run_dir else []
        facts = run_facts(view.run)
        groups = (Facts(facts.title, [*own, *facts.pairs]), *detail_facts(view.run))
        lines = list[Line]()
        for group in groups:
            if group.pairs:
                pairs = (Line(value, label=name) for name, value in group.pairs)
                lines += [Line(""), Line(group.title, Style.STRONG), *pairs]
        return lines[1:]


_MIN_DETAIL_LINES = 3

_MARGIN = 3
"""Cells before an event: the cursor, whether it has details, and a blank."""

_EVENT_KEYS = (("esc", "back"), ("↑ ↓", "select"))


class EventBrowser(Page):
    """The list with the selected event below it, at first the newest."""

    name: ClassVar[str] = "events"
    opened_by: ClassVar[str] = "e"

    def __init__(self) -> None:
        super().__init__()
        self._selected: int | None = None
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
        keys = (*_EVENT_KEYS, *scrolls, pages_beside("e"))
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
