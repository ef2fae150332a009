"""The events, newest first: switches, skips, growth, NaN, epochs, notes and prints."""

import time

from amptui.base import units
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.labels import precision_glyph
from amptui.records.run import PrecisionChanged
from amptui.telemetry.events import Event
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import Phrase, phrase, quiet, whole_words
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import VERDICT_SIGNS, Style, precision_style

NOTHING_YET = "no events yet"

_STEP_WIDTH = 9
"""Room for ``1,234,567``, so that no text moves while steps are made; narrow lists have none to spare."""

_WIDE = 76
"""With fewer columns there is no room for the word "step" in each line."""

_TIMES_FROM = 50
"""With fewer columns a time would leave its event two words: one event alone has it."""


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """How many events were warnings and errors."""
    counts = ((view.errors, "error", Style.ERROR), (view.warnings, "warning", Style.WARNING))
    return [phrase(units.counted(n, word), style) for n, word, style in counts if n]


def draw(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """One line an event: local time where there is room, step, sign and text."""
    if not view.events:
        quiet(canvas, NOTHING_YET)
    shown = view.events[: canvas.height]
    step_width = _STEP_WIDTH if canvas.width >= _WIDE else max(map(len, map(_step, shown)), default=0)
    for y, event in enumerate(shown):
        x = canvas.text(0, y, when(event), Style.DIM) + 1 if canvas.width >= _TIMES_FROM else 0
        step = _step(event)
        if canvas.width >= _WIDE:
            x = canvas.text(x + 1, y, "step" if step else "    ", Style.DIM)
        x = canvas.text(x, y, step, Style.DIM, width=step_width, align="right") + 2
        sign, style = sign_of(event)
        x = canvas.text(x, y, sign, style) + 1
        room = canvas.width - x
        canvas.text(x, y, whole_words(event_text(event), room), text_style(event), width=room)


def _step(event: Event) -> str:
    return "" if event.step is None else units.count(event.step)


def when(event: Event) -> str:
    """The event's local time: ``12:04:31``."""
    return time.strftime("%H:%M:%S", time.localtime(event.time))


def sign_of(event: Event) -> tuple[str, int]:
    """The sign that shows an event's kind at a glance, and its style."""
    if event.severity != "info":
        return VERDICT_SIGNS[event.severity]
    if isinstance(event.about, PrecisionChanged):
        return precision_glyph(event.about.current), precision_style(event.about.current)
    if event.kind == "growth":
        return "↑", precision_style("fp16")
    return VERDICT_SIGNS["info"] if event.kind == "finished" else ("·", Style.DIM)


def text_style(event: Event) -> int:
    """Trouble in its colour, prints dim, the rest plain."""
    if event.severity != "info":
        return VERDICT_SIGNS[event.severity][1]
    return Style.DIM if event.kind == "print" else Style.TEXT
