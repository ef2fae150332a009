"""Events, and long texts on the whole screen: what a run prints, and its configuration."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

from amptui.base import units
from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.run_facts import Facts, detail_facts, run_facts
from amptui.records.run import Printed, RunFailed
from amptui.telemetry.events import PRINTS, Event
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.overlays.overlay import (
    CLOSE,
    STAY,
    Answer,
    Page,
    cut_lines,
    open_box,
    pages_beside,
    wrapped_lines,
    write_edge,
)
from amptui.tui.panels import event_list
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import Style

_KEYS = (("esc", "back"), ("/", "search"), ("↑ ↓", "scroll"))
_TYPING_KEYS = (("enter", "keep"), ("esc", "all lines"))

_MAX_LABEL_WIDTH = 30


class Line(NamedTuple):
    """One line of a text, as long as it is."""

    text: str
    style: int = Style.TEXT
    label: str = ""
    """What stands before the text, in a column of its own."""
    label_style: int = Style.DIM


class TextBrowser(Page):
    """Lines over the whole screen, cut into as many rows as they need."""

    title: ClassVar[str]
    nothing: ClassVar[str]
    """Shown where there are no lines."""
    rows: Callable[[str, int], Sequence[str]] = staticmethod(cut_lines)
    """The rows of a line: its columns matter, unless words are kept whole."""
    is_log: ClassVar[bool] = False
    """Whether lines are added, of which the last is in sight until somebody scrolls away from it."""

    def __init__(self) -> None:
        super().__init__()
        self._follows = self.is_log

    def lines(self, view: SessionView) -> Sequence[Line]:
        """The whole text."""
        raise NotImplementedError

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        lines = self.lines(view)
        inner = open_box(canvas, self.title)
        searched = self._search.text.casefold()
        matching = [it for it in lines if not searched or searched in f"{it.label} {it.text}".casefold()]
        longest = max((text_width(line.label) for line in matching), default=0)
        labels = min(longest, _MAX_LABEL_WIDTH, inner.width // 2)
        x = 1 + labels + 2 * bool(labels)
        # The label stands before the first row of its line.
        rows = [
            line._replace(text=text, label="" if i else line.label)
            for line in matching
            for i, text in enumerate(self.rows(line.text, max(1, inner.width - x - 1)))
        ]
        self._scroll.top = len(rows) if self._follows else self._scroll.top
        visible = self._scroll.visible(len(rows), inner.height)
        for y, row in enumerate(rows[visible]):
            inner.text(1, y, row.label, row.label_style, width=labels, align="right")
            inner.text(x, y, row.text, row.style)
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
        self._follows = self.is_log and self._scroll.is_at_end
        return STAY


class OutputBrowser(TextBrowser):
    """What the run's process printed, the oldest line first, and the traceback it ended with."""

    name: ClassVar[str] = "output"
    title: ClassVar[str] = "output"
    opened_by: ClassVar[str] = "t"
    nothing: ClassVar[str] = "nothing was printed"
    is_log: ClassVar[bool] = True

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


class EventBrowser(TextBrowser):
    """All events with their details, the oldest first."""

    name: ClassVar[str] = "events"
    title: ClassVar[str] = "events"
    opened_by: ClassVar[str] = "e"
    nothing: ClassVar[str] = event_list.NOTHING_YET
    is_log: ClassVar[bool] = True
    rows = staticmethod(partial(wrapped_lines, hang="  "))

    def lines(self, view: SessionView) -> Sequence[Line]:
        return [line for event in reversed(view.events) for line in _lines(event)]


def _lines(event: Event) -> list[Line]:
    sign, style = event_list.sign_of(event)
    step = "" if event.step is None else f"step {units.count(event.step)}  "
    text = f"{event_list.when(event)}  {step}{event_text(event)}"
    details = [Line(f"  {detail}", Style.DIM) for detail in event_details(event)]
    return [Line(text, event_list.text_style(event), sign, style), *details]
