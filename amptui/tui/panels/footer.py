"""The bottom line: pending requests or a lost run, and the keys; and the notice above it."""

from collections.abc import Mapping

from amptui.records.run import Severity
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect, text_width
from amptui.tui.layout import SMALLEST
from amptui.tui.panels.phrases import (
    GAP,
    Phrase,
    Word,
    fitting,
    line_width,
    phrase,
    quiet,
    wrapped,
    write,
)
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


NOTICE_LINES = 2
"""Lines above the footer that a notice may take."""


def draw(canvas: Canvas, _view: SessionView, screen: ScreenState) -> None:
    """What waits for the run, or that it is lost, then the keys."""
    last = len(screen.hints) - 1
    hints = [
        Phrase((Word(key, Style.KEY), Word(f" {words}", Style.DIM)), min(_ALWAYS, last - i))
        for i, (key, words) in enumerate(screen.hints)
    ]
    text, style = standing_news(screen)
    width = room = canvas.width - 2
    if text == screen.waiting:
        # What is asked for leaves the first and the last keys their room; a lost run needs all of it.
        width = max(room // 2, room - line_width([*hints[:1], *hints[1:][-_ALWAYS:]]) - GAP)
    news = [phrase(line, style, -1) for line in wrapped(text, width, lines=1)]
    write(canvas, 1, 0, fitting([*news, *hints], room))


def has_room(canvas: Canvas) -> bool:
    """Whether a list can be drawn; if not, that is said."""
    if canvas.width >= SMALLEST[0] and canvas.height >= SMALLEST[1]:
        return True
    quiet(canvas, f"amptui: the terminal is too small ({canvas.width}x{canvas.height})")
    return False


def draw_notice(canvas: Canvas, screen: ScreenState, *, framed: bool) -> None:
    """The message of a while, in the last lines of ``canvas``: those above the footer, whose keys stay.

    ``framed``: the lines end in the lower edge of a panel, which goes on behind the message.
    """
    lines = wrapped(screen.message, canvas.width - 4, lines=canvas.height)
    for y, line in enumerate(lines, canvas.height - len(lines)):
        on_edge = framed and y == canvas.height - 1
        canvas.part(Rect(1, y, text_width(line) + 2 if on_edge else canvas.width - 2, 1)).clear()
        canvas.text(2 if framed else 1, y, line, NOTICE_STYLES[screen.severity])


def standing_news(screen: ScreenState) -> tuple[str, Style]:
    """A lost or silent run or pending requests, and the style; empty if there is nothing to say."""
    if screen.lost:
        return screen.lost, Style.ERROR
    if screen.silence:
        return screen.silence, Style.WARNING
    return screen.waiting, Style.STRONG
