"""The terminal as the environment tells of it, and how it is given back however its process ends.

Imports nothing heavy: it is there before the first frame.
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
"""Of a screen: more than any display shows; what claims more is no display."""

RESTORE = b"\x1b[?2004l\x1b[?7h\x1b[<u\x1b[0m\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""What a screen writes when it stops, for one that had no time to stop."""

_LOCALE_NAMES = ("LC_ALL", "LC_CTYPE", "LANG")

_TAKEN, _GIVEN, _OVER = b"+", b"-", b"."

_GUARD_SECONDS = 5.0
"""How long a process that ends waits for its guard, which has to find out whether the run goes on."""


def terminal_speaks_utf8() -> bool:
    """Whether the locale says so; where it says nothing, as in most containers, a terminal of today does."""
    said = next((value for name in _LOCALE_NAMES if (value := os.environ.get(name))), "UTF-8")
    return "utf" in said.lower()


def can_show_a_screen() -> bool:
    """Whether somebody sits at a terminal that can show a screen and type keys."""
    return (
        os.environ.get("TERM", "dumb") not in ("", "dumb")
        and sys.stdin is not None
        and sys.stdin.isatty()
        and sys.stdout.isatty()
    )


def terminal_size() -> tuple[int, int]:
    """Columns and lines to draw on: the terminal's, or fewer where COLUMNS and LINES ask for fewer."""
    asked = shutil.get_terminal_size()
    found = asked
    for descriptor in (1, 0, 2):
        with suppress(OSError):
            found = os.get_terminal_size(descriptor)
            break
    # A terminal that was told no size says 0.
    columns, lines = (min(a, b or a) for a, b in zip(asked, found, strict=True))
    return min(columns, MAX_COLUMNS), min(lines, MAX_LINES)


class HeldTerminal:
    """While entered, the terminal on descriptor 0 is given back even if this process is killed.

    A guard, forked from this process, waits for its end. If a screen holds the terminal by then, the guard
    restores it and writes ``farewell()``, one line. To be entered while there is one thread only.
    """

    def __init__(self, farewell: Callable[[], str] = str) -> None:
        self._farewell = farewell
        self._guard: socket.socket | None = None
        self._pid = 0

    def __enter__(self) -> "HeldTerminal":
        modes = termios.tcgetattr(0)
        self._guard, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _stand_guard(theirs, modes, self._farewell)
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._say(_OVER)
        self.give_up()

    def take(self) -> None:
        """From here on a screen holds the terminal."""
        self._say(_TAKEN)

    def give(self) -> None:
        """The screen has restored it."""
        self._say(_GIVEN)

    def give_up(self) -> None:
        """Return once the guard has done its work: this process ends now. Safe in a signal's handler."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        with guard, suppress(OSError):
            guard.shutdown(socket.SHUT_WR)
            if select.select([guard], [], [], _GUARD_SECONDS)[0]:
                os.waitpid(self._pid, 0)

    def _say(self, word: bytes) -> None:
        if self._guard is not None:
            with suppress(OSError):  # somebody ended the guard
                self._guard.send(word)


def _stand_guard(words: socket.socket, modes: list[Any], farewell: Callable[[], str]) -> NoReturn:
    """Wait for the other process's end, keeping nothing of it but the terminal."""
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
    # A file of its own: a terminal that takes nothing is not waited for, and stays as it is for others.
    terminal = os.open(os.ttyname(0), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    # A shell that was quicker edits its line by now, with modes of its own. It leaves signals to the keys.
    if not termios.tcgetattr(0)[3] & termios.ISIG:
        termios.tcsetattr(0, termios.TCSANOW, modes)
    os.write(terminal, RESTORE)
    if line := farewell():
        os.write(terminal, f"amptui: {line}\n".encode())
