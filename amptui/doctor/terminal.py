"""What the terminal can show, and what happens to a run when the line to it breaks."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from amptui.doctor.check import Check, fine, poor


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """What this process's terminal is, by its own word and the environment's."""

    is_terminal: bool
    """Whether keys come from one and the screen goes to one."""
    size: tuple[int, int] | None
    """Columns and lines; None without a terminal."""
    speaks_utf8: bool
    environment: Mapping[str, str]

    def named(self, variable: str) -> str:
        """The environment's ``variable``, empty where it is not set."""
        return self.environment.get(variable, "")


def terminal_checks() -> list[Check]:
    """Whether the screen can be shown here, how it will look, and whether a run outlives the connection."""
    from amptui.tui.layout import SMALLEST

    terminal = read_terminal()
    return [
        check_kind(terminal),
        *check_size(terminal, SMALLEST),
        check_characters(terminal),
        *check_colours(terminal),
        *check_connection(terminal),
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
    """Whether ``amptui train`` would show its screen here, or plain lines."""
    term = terminal.named("TERM")
    facts: dict[str, object] = {"is_terminal": terminal.is_terminal, "term": term}
    if not terminal.is_terminal:
        return fine("terminal", "no terminal on standard input and output: plain lines are written", **facts)
    if term in ("", "dumb"):
        said = f"TERM={term}" if term else "TERM is not set"
        return poor(
            "terminal", f"{said}: plain lines instead of the screen", "set TERM=xterm-256color", **facts
        )
    return fine("terminal", f"a terminal, TERM={term}", **facts)


def check_size(terminal: Terminal, smallest: tuple[int, int]) -> list[Check]:
    """The window by ``smallest`` columns and lines, below which nothing is shown, and by 80 × 24."""
    if terminal.size is None:
        return []
    columns, lines = terminal.size
    text, facts = f"{columns} × {lines} characters", {"columns": columns, "lines": lines}
    mend = "enlarge the window to 80 × 24 at least; the curves have room from 120 × 40"
    if columns == 0 or lines == 0:
        return [poor("size", "the terminal does not tell its size", "run `stty cols 120 rows 40`", **facts)]
    if columns < smallest[0] or lines < smallest[1]:
        return [poor("size", f"{text}: too small for the screen", mend, **facts)]
    if columns < 80 or lines < 24:
        return [poor("size", f"{text}: most panels are folded to a line", mend, **facts)]
    return [fine("size", text, **facts)]


def check_characters(terminal: Terminal) -> Check:
    """Whether curves can be drawn with Unicode's dots and lines."""
    if terminal.speaks_utf8:
        return fine("characters", "UTF-8", utf8=True)
    mend = "set LC_ALL=C.UTF-8, where the terminal speaks UTF-8"
    return poor("characters", "the locale is not UTF-8: the screen is drawn in ASCII", mend, utf8=False)


def check_colours(terminal: Terminal) -> list[Check]:
    """Sixteen colours are all that the screen uses; ``NO_COLOR`` takes them away (https://no-color.org)."""
    if terminal.size is None:
        return []
    facts: dict[str, object] = {"colorterm": terminal.named("COLORTERM") or None}
    if terminal.named("NO_COLOR"):
        mend = "unset NO_COLOR for colours; precisions also differ by sign and letter"
        return [poor("colours", "NO_COLOR is set: the screen is in one colour", mend, **facts)]
    term = terminal.named("TERM")
    if term.startswith("vt") or term.endswith("-m"):
        return [
            poor(
                "colours", f"TERM={term} names a terminal without colours", "set TERM=xterm-256color", **facts
            )
        ]
    return [fine("colours", "16 colours, the terminal's own", **facts)]


def check_connection(terminal: Terminal) -> list[Check]:
    """What becomes of a run when this terminal goes away."""
    ssh = bool(terminal.named("SSH_CONNECTION") or terminal.named("SSH_TTY"))
    text = "over SSH: a run outlives it, and `amptui attach` shows it again" if ssh else "not over SSH"
    return [fine("connection", text, ssh=ssh)]
