"""What the terminal can show."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from amptui.doctor.check import Check, fine, poor

_SET_TERM = "set TERM=xterm-256color"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The terminal of this process, as the system and the environment describe it."""

    is_terminal: bool
    """Whether standard input and output are a terminal."""
    size: tuple[int, int] | None
    """Columns and lines; None without a terminal."""
    speaks_utf8: bool
    environment: Mapping[str, str]

    def named(self, variable: str) -> str:
        """The environment's ``variable``, empty if it is not set."""
        return self.environment.get(variable, "")


def terminal_checks() -> list[Check]:
    """Whether the screen can be shown here, and how it will look."""
    from amptui.tui.layout import SMALLEST

    terminal = read_terminal()
    return [
        check_kind(terminal),
        *check_size(terminal, SMALLEST),
        check_characters(terminal),
        *check_colours(terminal),
    ]


def read_terminal() -> Terminal:
    """Look at this process's streams and environment."""
    from amptui.terminal import terminal_speaks_utf8

    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    window = os.get_terminal_size(sys.stdout.fileno()) if is_terminal else None
    return Terminal(
        is_terminal=is_terminal,
        size=None if window is None else (window.columns, window.lines),
        speaks_utf8=terminal_speaks_utf8(),
        environment=dict(os.environ),
    )


def check_kind(terminal: Terminal) -> Check:
    """Whether ``amptui train`` shows its screen here, or plain lines."""
    term = terminal.named("TERM")
    facts: dict[str, object] = {"is_terminal": terminal.is_terminal, "term": term}
    if not terminal.is_terminal:
        return fine("terminal", "not a terminal: amptui writes plain lines", **facts)
    if term in ("", "dumb"):
        said = f"TERM={term}" if term else "TERM is not set"
        text = f"{said}: amptui writes plain lines instead of the screen"
        return poor("terminal", text, _SET_TERM, **facts)
    return fine("terminal", f"TERM={term}", **facts)


def check_size(terminal: Terminal, smallest: tuple[int, int]) -> list[Check]:
    """The window against ``smallest``, the columns and lines that the screen needs, and 80 × 24."""
    if terminal.size is None:
        return []
    columns, lines = terminal.size
    text, facts = f"{columns} × {lines} characters", {"columns": columns, "lines": lines}
    hint = "enlarge the window to at least 80 × 24, better 120 × 40"
    if columns == 0 or lines == 0:
        return [poor("size", "the terminal does not report its size", "run `stty cols 120 rows 40`", **facts)]
    if columns < smallest[0] or lines < smallest[1]:
        return [poor("size", f"{text}: too small for the screen", hint, **facts)]
    if columns < 80 or lines < 24:
        return [poor("size", f"{text}: most panels collapse to one line", hint, **facts)]
    return [fine("size", text, **facts)]


def check_characters(terminal: Terminal) -> Check:
    """Whether curves can be drawn with Unicode dots and lines."""
    if terminal.speaks_utf8:
        return fine("characters", "UTF-8", utf8=True)
    hint = "set LC_ALL=C.UTF-8 if the terminal supports UTF-8"
    return poor("characters", "the locale is not UTF-8: the screen uses ASCII", hint, utf8=False)


def check_colours(terminal: Terminal) -> list[Check]:
    """The screen uses sixteen colours; ``NO_COLOR`` turns them off (https://no-color.org)."""
    if terminal.size is None:
        return []
    facts: dict[str, object] = {"colorterm": terminal.named("COLORTERM") or None}
    if terminal.named("NO_COLOR"):
        return [poor("colours", "NO_COLOR is set: no colours", "unset NO_COLOR to get them", **facts)]
    term = terminal.named("TERM")
    if term.startswith("vt") or term.endswith("-m"):
        return [poor("colours", f"TERM={term} has no colours", _SET_TERM, **facts)]
    return [fine("colours", "16 colours", **facts)]
