"""The bottom line: pending requests or a lost run, the keys or a notice, and what drawing costs."""

from collections.abc import Mapping

from amptui.base import units
from amptui.records.run import Severity
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.phrases import Phrase, Word, fitting, line_width, wrapped, write, write_right
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import Style

_ALWAYS = 2
"""The last hints are help and quit: they are dropped last, quit after help."""

NOTICE_STYLES: Mapping[Severity, Style] = {
    "info": Style.STRONG,
    "warning": Style.WARNING,
    "error": Style.ERROR,
}
"""The style of a notice; if harmless it is only bold."""


def draw(canvas: Canvas, _view: SessionView, screen: ScreenState) -> None:
    """Hints on the left, the cost of drawing on the right; a message takes the place of both if it must."""
    cost = _cost(screen)
    room = canvas.width - 2 - line_width(cost) - 2
    if screen.lost or room < max(canvas.width // 2, text_width(screen.message)):
        cost, room = [], canvas.width - 2
    write_right(canvas, 0, cost, margin=1)
    if screen.message:
        canvas.text(1, 0, screen.message, NOTICE_STYLES[screen.severity], width=room)
        return
    last = len(screen.hints) - 1
    phrases = _news(screen, room)
    phrases += [
        Phrase((Word(key, Style.KEY), Word(f" {words}", Style.DIM)), min(_ALWAYS, last - i))
        for i, (key, words) in enumerate(screen.hints)
    ]
    write(canvas, 1, 0, fitting(phrases, room))


def _news(screen: ScreenState, room: int) -> list[Phrase]:
    """A lasting message before the hints, cut to ``room`` cells."""
    text, style = standing_news(screen)
    return [Phrase((Word(line, style),), -1) for line in wrapped(text, room, lines=1)]


def standing_news(screen: ScreenState) -> tuple[str, Style]:
    """A lost or silent run or pending requests, and the style; empty if there is nothing to say."""
    if screen.lost:
        return screen.lost, Style.ERROR
    if screen.silence:
        return screen.silence, Style.WARNING
    return screen.waiting, Style.STRONG


def _cost(screen: ScreenState) -> list[Phrase]:
    """Frames a second and their share of one core, once measured."""
    if screen.frames_per_second is None:
        return []
    cpu = None if screen.frame_cpu_percent is None else screen.frame_cpu_percent / 100
    words = f"{screen.frames_per_second:4.1f} fps {units.percent(cpu, 1):>5} cpu"
    return [Phrase((Word(words, Style.DIM),))]
