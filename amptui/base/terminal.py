"""What the terminal can do, and how it is restored even if its process is killed.

Imports nothing heavy: it is needed before the first frame.
"""

import os
import select
import shutil
import signal
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

MAX_COLUMNS, MAX_LINES = 1000, 500
"""Limit of the screen's size; no real display is larger."""

MOUSE_OFF = "\x1b[?1002l\x1b[?1006l"
"""Leaves the mouse to the terminal."""

RESTORE = MOUSE_OFF.encode() + b"\x1b[?2004l\x1b[?7h\x1b[<u\x1b[0m\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""The escape sequences that a screen writes when it stops."""

_TAKEN, _GIVEN, _OVER = b"+", b"-", b"."

_GUARD_SECONDS = 5.0
"""How long a process that ends waits for its guard, which finds out whether the run continues."""


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


class HeldTerminal:
    """While entered, the terminal on descriptor 0 is restored even if this process is killed.

    A guard process, forked from this one, waits for its end. If a screen uses the terminal at that time, the
    guard restores it and writes ``farewell()``, one line. Enter it while there is only one thread.
    """

    def __init__(self, farewell: Callable[[], str] = str) -> None:
        self._farewell = farewell
        self.modes: list[Any] = []
        """The terminal's before any screen, as termios has them."""
        self._guard: socket.socket | None = None
        self._pid = 0

    def __enter__(self) -> "HeldTerminal":
        self.modes = termios.tcgetattr(0)
        self._guard, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _stand_guard(theirs, self.modes, self._farewell)
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._say(_OVER)
        self.give_up()

    def take(self) -> None:
        """Note that a screen now uses the terminal."""
        self._say(_TAKEN)

    def give(self) -> None:
        """Note that the screen has restored it."""
        self._say(_GIVEN)

    def give_up(self) -> None:
        """Let the guard restore the terminal, because this process ends now. Safe in a signal handler."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        with guard, suppress(OSError):
            guard.shutdown(socket.SHUT_WR)
            if select.select([guard], [], [], _GUARD_SECONDS)[0]:
                os.waitpid(self._pid, 0)

    def _say(self, word: bytes) -> None:
        if self._guard is not None:
            with suppress(OSError):  # the guard was killed
                self._guard.send(word)


def _stand_guard(words: socket.socket, modes: list[Any], farewell: Callable[[], str]) -> NoReturn:
    """Wait for the parent's end, with no open file of it but the terminal."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.closerange(3, words.fileno())
        os.closerange(words.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        held = False
        while word := words.recv(1):
            if word == _OVER:
                os._exit(0)
            held = word == _TAKEN
        if held:
            _give_back(modes, farewell)
    finally:
        os._exit(0)


def _give_back(modes: list[Any], farewell: Callable[[], str]) -> None:
    # Opened again: non-blocking for this process alone, in case the terminal accepts no output.
    terminal = os.open(os.ttyname(0), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    # A shell that was faster has set its own modes, with ISIG on: keep those.
    now = termios.tcgetattr(0)
    if not now[3] & termios.ISIG or now == silent_modes(modes):
        termios.tcsetattr(0, termios.TCSANOW, modes)
    os.write(terminal, RESTORE)
    if line := farewell():
        os.write(terminal, f"amptui: {line}\n".encode())
