"""The first frame: empty panels, shown while Textual and the rest are still being imported."""

import os
import sys
from contextlib import suppress

from amptui.base.terminal import HeldTerminal, terminal_size
from amptui.base.text import terminal_speaks_utf8
from amptui.tui.canvas import Canvas
from amptui.tui.layout import arrange, draw_backdrop
from amptui.tui.painter import Painter
from amptui.tui.style import Style

OPEN = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
"""Enter the alternate screen, hide the cursor, and clear: some terminals have no alternate screen."""

CLOSE = "\x1b[?1049l\x1b[?25h"


class Opening:
    """While entered, the terminal shows the empty panels, until a screen takes it over.

    Imports neither Textual nor anything that reads a run: the first frame must not wait for them.
    """

    def __init__(self, terminal: HeldTerminal) -> None:
        self.terminal = terminal
        self._is_open = False

    def __enter__(self) -> "Opening":
        columns, lines = terminal_size()
        canvas = Canvas(columns, lines, ascii_only=not terminal_speaks_utf8())
        draw_backdrop(canvas, arrange(columns, lines, None))
        canvas.text(1, 0, "amptui", Style.DIM)
        changes = canvas.changes_since(Canvas(columns, lines))
        self._is_open = True
        self.terminal.take()
        write_terminal(OPEN + Painter(no_color="NO_COLOR" in os.environ).paint(canvas, changes))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal, unless a screen has taken it over."""
        if self._is_open:
            self._is_open = False
            write_terminal(CLOSE)
            self.terminal.give()

    def hand_over(self) -> None:
        """A screen takes over the terminal and will restore it."""
        self._is_open = False


def write_terminal(data: str) -> None:
    """Write it, if the terminal is still there."""
    terminal = sys.__stdout__
    if terminal is not None:
        with suppress(OSError):  # the terminal is gone: the screen notices that itself
            os.write(terminal.fileno(), data.encode(terminal.encoding, "replace"))
