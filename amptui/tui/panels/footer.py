"""The bottom line: what is waited for, which keys do what, or a notice; and what the screen costs."""

from collections.abc import Mapping

from amptui import units
from amptui.records import Severity
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.ink import Ink
from amptui.tui.panels.phrases import Phrase, Word, fitting, line_width, write, write_right
from amptui.tui.panels.state import ScreenState

_ALWAYS = 2
"""The last hints are help and quit: they stay where others give way."""

NOTICE_INKS: Mapping[Severity, Ink] = {"info": Ink.STRONG, "warning": Ink.WARNING, "error": Ink.ERROR}
"""The ink of a notice; what is no trouble is only bold."""


def draw(canvas: Canvas, _view: SessionView, screen: ScreenState) -> None:
    """Hints on the left, the cost of drawing on the right; a message has the hints' place."""
    cost = _cost(screen)
    room = canvas.width - 2 - line_width(cost) - 2
    if room < canvas.width // 2:
        cost, room = [], canvas.width - 2
    write_right(canvas, 0, cost, margin=1)
    if screen.message:
        canvas.text(1, 0, screen.message, NOTICE_INKS[screen.severity], width=room)
        return
    always = len(screen.hints) - _ALWAYS
    phrases = [Phrase((Word(screen.waiting, Ink.STRONG),), -1)] if screen.waiting else []
    phrases += [
        Phrase((Word(key, Ink.KEY), Word(f" {words}", Ink.DIM)), 0 if i >= always else 1)
        for i, (key, words) in enumerate(screen.hints)
    ]
    write(canvas, 1, 0, fitting(phrases, room))


def _cost(screen: ScreenState) -> list[Phrase]:
    """Frames a second and their share of one core, once they were measured."""
    if screen.frames_per_second is None:
        return []
    cpu = None if screen.frame_cpu_percent is None else screen.frame_cpu_percent / 100
    words = f"{screen.frames_per_second:4.1f} fps {units.percent(cpu, 1):>5} cpu"
    return [Phrase((Word(words, Ink.DIM),))]
