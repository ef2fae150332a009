"""The boxes of the panels on the terminal at once, while all that fills them is still being imported."""

import os
import sys
from contextlib import suppress

from amptui.terminal import HeldTerminal, terminal_size, terminal_speaks_utf8
from amptui.tui.backdrop import draw_backdrop
from amptui.tui.canvas import Canvas
from amptui.tui.layout import arrange
from amptui.tui.painter import Painter
from amptui.tui.style import Style

_OPEN = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
"""The alternate screen, no cursor, and nothing of what stood there where a terminal has no other screen."""

_CLOSE = "\x1b[?1049l\x1b[?25h"


class Opening:
    """While entered, the terminal shows where the panels will be, until a screen takes it over.

    Imports neither Textual nor anything that reads a run: that takes longer than a person likes to wait.
    """

    def __init__(self, terminal: HeldTerminal) -> None:
        self.terminal = terminal
        self._stands = False

    def __enter__(self) -> "Opening":
        columns, lines = terminal_size()
        canvas = Canvas(columns, lines, ascii_only=not terminal_speaks_utf8())
        draw_backdrop(canvas, arrange(columns, lines, None))
        canvas.text(1, 0, "amptui", Style.DIM)
        changes = canvas.changes_since(Canvas(columns, lines))
        self._stands = True
        self.terminal.take()
        _write(_OPEN + Painter(no_color="NO_COLOR" in os.environ).paint(canvas, changes))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back, unless a screen has it."""
        if self._stands:
            self._stands = False
            _write(_CLOSE)
            self.terminal.give()

    def hand_over(self) -> None:
        """From here on the terminal is a screen's, which restores it."""
        self._stands = False


def _write(data: str) -> None:
    terminal = sys.__stdout__
    if terminal is not None:
        with suppress(OSError):  # who comes next finds out that nobody is there
            os.write(terminal.fileno(), data.encode(terminal.encoding, "replace"))
