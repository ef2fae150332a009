"""What the terminal can do, and how it is restored.

Imports nothing heavy: it is needed before the first frame.
"""

import os
import shutil
import sys
import termios
from contextlib import suppress
from typing import Any

MAX_COLUMNS, MAX_LINES = 1000, 500
"""Limit of the screen's size; no real display is larger."""

RESTORE = b"\x1b[?2004l\x1b[?7h\x1b[<u\x1b[0m\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""The escape sequences that a screen writes when it stops."""


def can_show_a_screen() -> bool:
    """Whether standard input and output are a terminal that can show the screen."""
    return (
        os.environ.get("TERM", "dumb") not in ("", "dumb")
        and sys.stdin is not None
        and sys.stdin.isatty()
        and sys.stdout.isatty()
    )


def terminal_size() -> tuple[int, int]:
    """Columns and lines to draw on: the terminal's, or fewer if COLUMNS and LINES say so."""
    from_environment = shutil.get_terminal_size()
    size = from_environment
    for descriptor in (1, 0, 2):
        with suppress(OSError):
            size = os.get_terminal_size(descriptor)
            break
    # A terminal without a size reports 0.
    columns, lines = (min(a, b or a) for a, b in zip(from_environment, size, strict=True))
    return min(columns, MAX_COLUMNS), min(lines, MAX_LINES)


def silent_modes(modes: list[Any]) -> list[Any]:
    """``modes`` without echo and without waiting for a line; Ctrl+C stays a signal, Ctrl+Z does not.

    As termios has them: with ``VMIN`` and ``VTIME`` as the numbers that they are in such a terminal.
    """
    silent = [*modes[:6], list(modes[6])]
    silent[3] &= ~(termios.ICANON | termios.ECHO)
    characters = silent[6]
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    characters[termios.VSUSP] = b"\x00"  # a shell would come back to half a screen
    return silent
