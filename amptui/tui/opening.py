"""The first frame, such as empty panels, shown while Textual and the rest are still being imported."""

import os
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from amptui.base.terminal import RESTORE, silent_modes, terminal_size
from amptui.base.text import terminal_speaks_utf8
from amptui.tui.canvas import Canvas, Painter
from amptui.tui.layout import arrange, draw_backdrop
from amptui.tui.style import Style, assumed_background, has_256_colours, styles_on

OPEN = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
"""Enter the alternate screen, hide the cursor, and clear: some terminals have no alternate screen."""

CLOSE = "\x1b[?1049l\x1b[?25h"


class Opening:
    """While entered, the terminal shows what ``draw`` draws and echoes nothing, until a screen takes it over.

    Imports neither Textual nor anything that reads a run: the first frame must not wait for them.
    """

    def __init__(self, draw: Callable[[Canvas], object] | None = None, *, farewell: str = "") -> None:
        """Without ``draw``, the empty panels of a run that is not known yet.

        ``farewell`` is for a user whose screen ends before it can say how.
        """
        self._draw = draw or _draw_panels
        self._farewell = farewell
        self._is_open = False
        # The terminal has not said yet what its background is.
        styles = styles_on(assumed_background(os.environ), has_256_colours=has_256_colours(os.environ))
        self._painter = Painter(styles, no_color="NO_COLOR" in os.environ)
        self.modes: list[Any] = []
        """The terminal's before any screen, as termios has them."""
        self.in_use = False
        """Whether this, or the screen that took over, is on the terminal."""

    def __enter__(self) -> Self:
        columns, lines = terminal_size()
        canvas = Canvas(columns, lines)
        with suppress(Exception):  # the screen that takes over draws the same, and says what failed
            self._draw(canvas)
        if not terminal_speaks_utf8():
            canvas.make_ascii()
        self.modes = termios.tcgetattr(0)
        self._is_open = self.in_use = True
        termios.tcsetattr(0, termios.TCSANOW, silent_modes(self.modes))
        write_terminal(OPEN + self._painter.paint(canvas, canvas.changes_since(Canvas(columns, lines))))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal, unless a screen has taken it over."""
        if self._is_open:
            self._is_open = self.in_use = False
            write_terminal(CLOSE)
            with suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(0, termios.TCSANOW, self.modes)

    def hand_over(self) -> None:
        """A screen takes over the terminal and will restore it."""
        self._is_open = False

    def restore_at_once(self) -> None:
        """Restore the terminal before the process ends; never waits for it. Safe in a signal handler."""
        if not self.in_use:
            return
        self.in_use = False
        with suppress(OSError, termios.error):
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))  # it would stop one in the background
            termios.tcsetattr(0, termios.TCSANOW, self.modes)
            # Opened again: non-blocking for this process alone.
            terminal = os.open(os.ttyname(0), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            os.write(terminal, RESTORE + (f"amptui: {self._farewell}\n".encode() if self._farewell else b""))


def _draw_panels(canvas: Canvas) -> None:
    draw_backdrop(canvas, arrange(canvas.width, canvas.height, None))
    canvas.text(1, 0, "amptui", Style.DIM)


def write_terminal(data: str) -> None:
    """Write it, if the terminal is still there."""
    terminal = sys.__stdout__
    if terminal is not None:
        with suppress(OSError):  # the terminal is gone: the screen notices that itself
            os.write(terminal.fileno(), data.encode(terminal.encoding, "replace"))
