"""The terminal while a script has no run yet: the end of its output, live, and what is waited for.

It has no keys of its own. What is typed stays in the terminal for the screen of the run; Ctrl+C is a signal.
"""

import termios
from collections.abc import Sequence
from contextlib import suppress

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.layout import draw_box
from amptui.tui.opening import Opening
from amptui.tui.panels.phrases import fitting, phrase, write, write_right
from amptui.tui.style import Style

_SMALLEST = (20, 5)
"""Columns and lines of a terminal that has room for the frame."""


class WaitingScreen(Opening):
    """While entered, the terminal shows the last lines that :meth:`show` got, and echoes nothing."""

    def __init__(self, script: str, awaited: str) -> None:
        super().__init__(lambda canvas: draw(canvas, script, awaited, self._lines))
        self._lines: Sequence[str] = ()
        self.keeps_keys = False
        """Whether what was typed is for the screen that follows; else it is forgotten at the end."""

    def close(self) -> None:
        if not self.keeps_keys:
            with suppress(termios.error):  # the terminal was closed
                termios.tcflush(0, termios.TCIFLUSH)
        super().close()

    def show(self, lines: Sequence[str]) -> None:
        """Show the last of ``lines``, as many as fit."""
        self._lines = lines
        self.draw_again()


def draw(canvas: Canvas, script: str, awaited: str, lines: Sequence[str]) -> None:
    """Draw the name of the script, the last of the ``lines`` of its output, and what it has to do yet."""
    body = canvas
    if canvas.width >= _SMALLEST[0] and canvas.height >= _SMALLEST[1]:
        header = [phrase("amptui", Style.DIM, 2), phrase(script, Style.STRONG)]
        write(canvas, 1, 0, fitting(header, canvas.width - 2))
        box = canvas.part(Rect(0, 1, canvas.width, canvas.height - 2))
        draw_box(box)
        box.text(1, 0, " output ")
        footer, y = phrase(awaited, Style.STRONG), canvas.height - 1
        write(canvas, 1, y, [footer])
        keys = [
            phrase("ctrl+c interrupts the script", Style.DIM),
            phrase("other keys wait for the run", Style.DIM),
        ]
        room = canvas.width - 4 - footer.width
        if (fitting_keys := fitting(keys, room)) and fitting_keys[0].width <= room:
            write_right(canvas, y, fitting_keys, margin=1)
        body = canvas.part(Rect(2, 2, canvas.width - 4, canvas.height - 4))
    for y, line in enumerate(lines[-body.height :]):
        body.text(0, y, line, width=body.width)
