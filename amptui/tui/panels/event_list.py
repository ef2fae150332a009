"""The events: errors and warnings that still matter first, then switches, epochs and all others."""

import time

from amptui.base import units
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.labels import precision_letter
from amptui.records.keeping import KeepingChanged
from amptui.records.run import PauseChanged, PrecisionChanged, RunFailed
from amptui.telemetry.events import Event
from amptui.telemetry.trouble import SkipRow
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.phrases import quiet, whole_words, wrapped
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import VERDICT_SIGNS, Style, precision_style

NOTHING_YET = "no events yet"

_TIMES_FROM = 70
"""With fewer columns a time would leave its event few words."""

_STANDING_SECONDS = 600.0
"""So long trouble stands before what is newer, unless it is known to be over or not to be."""

_TROUBLE_LINES = 2
"""That one error or warning may take."""

_LEAST_CUT = 32
"""With fewer cells for what happened, the sentence behind it goes before what to do about it."""


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """Trouble in up to two lines each, then the others, newest first: one of them at least.

    Each with its local time where there is room, its sign, its step if it has one, and its text.
    """
    if not view.events:
        quiet(canvas, NOTHING_YET)
    groups: dict[bool, list[Event]] = {True: [], False: []}
    for event in view.events:
        groups[_stands(event, view, screen.now)].append(event)
    standing, events = groups[True], groups[False]
    steps = [event.step for event in (*standing[: canvas.height], *events[: canvas.height])]
    step_width = max((len(units.count(step)) for step in steps if step is not None), default=0)
    y = 0
    for group, end, most in (
        (standing, canvas.height - bool(events), _TROUBLE_LINES),
        (events, canvas.height, 1),
    ):
        for event in group[: end - y]:
            x = canvas.text(0, y, when(event), Style.DIM) + 2 if canvas.width >= _TIMES_FROM else 0
            x = canvas.text(x, y, *sign_of(event)) + 1
            if event.step is not None:
                x = canvas.text(x, y, f"step {units.count(event.step):>{step_width}}", Style.DIM) + 2
            for line in _lines(event_text(event), canvas.width - x, min(most, end - y)):
                canvas.text(x, y, line, text_style(event), width=canvas.width - x)
                y += 1


def _stands(event: Event, view: SessionView, now: float) -> bool:
    """Whether it is trouble that may not be over; once the run is, whether it was trouble."""
    about = event.about
    if event.severity == "info":
        return False
    if isinstance(about, RunFailed):
        return about == view.outcome
    if isinstance(about, KeepingChanged):
        return about in view.not_kept
    if isinstance(about, PauseChanged):
        return bool(view.pause_reason)
    if isinstance(about, SkipRow) and view.switches and view.switches[-1].step > about.last.step:
        return False  # another precision runs
    return view.outcome is not None or now - event.time < _STANDING_SECONDS


def when(event: Event) -> str:
    """The event's local time: ``12:04:31``."""
    return time.strftime("%H:%M:%S", time.localtime(event.time))


def sign_of(event: Event) -> tuple[str, int]:
    """The sign that shows an event's kind at a glance, and its style."""
    if event.severity != "info":
        return VERDICT_SIGNS[event.severity]
    if isinstance(event.about, PrecisionChanged):
        return precision_letter(event.about.current), precision_style(event.about.current)
    if event.kind == "growth":
        return "↑", precision_style("fp16")
    return VERDICT_SIGNS["info"] if event.kind == "finished" else ("·", Style.DIM)


def text_style(event: Event) -> int:
    """Trouble in its colour, the rest plain."""
    return Style.TEXT if event.severity == "info" else VERDICT_SIGNS[event.severity][1]


def _lines(text: str, width: int, most: int) -> list[str]:
    """``text`` in at most so many lines; of what is too long, what happened is cut before what to do."""
    if most == 1:
        return [_shortened(text, width)]
    lines = list[str]()
    for room in range(most * width, width, -4):  # words that begin a line leave a gap in the one before it
        lines = wrapped(_shortened(text, room), width, lines=most + 1)
        if len(lines) <= most:
            break
    return lines[:most]


def _shortened(text: str, width: int) -> str:
    """``overflow: step skipped, scale 131,072 → 65,536…; normal``."""
    what, *advice = parts = text.split("; ")
    if text_width(text) <= width or not advice:
        return whole_words(text, width)
    while (room := width - text_width("; ".join(["…", *advice]))) < min(_LEAST_CUT, text_width(what)):
        if len(advice) > 1:
            del advice[0]
        elif ": " in advice[0]:
            advice = [advice[0].partition(": ")[2]]
        else:
            break
    room = max(_LEAST_CUT // 2, room)
    while ", " in what and text_width(what) > room:
        what = what.rpartition(", ")[0]
    if text_width(what) > room:
        what = whole_words(what, room + 1).removesuffix("…")
    dots = "" if [what, *advice] == parts else "…"
    return whole_words("; ".join([what + dots, *advice]), width)
