"""What the terminal can show."""

import os
import sys

from amptui.reports.doctor.check import Check, fine, poor

_SET_TERM = "set TERM=xterm-256color"


def terminal_checks() -> list[Check]:
    """Whether the screen can be shown here, and how it will look."""
    from amptui.base.text import terminal_speaks_utf8

    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    checks = [check_kind(os.environ.get("TERM", ""), is_terminal=is_terminal)]
    if is_terminal:
        checks.append(check_size(*os.get_terminal_size(sys.stdout.fileno())))
    checks.append(check_characters(os.environ.get("TERM", ""), utf8=terminal_speaks_utf8()))
    if is_terminal:
        checks.append(check_colours(os.environ.get("TERM", ""), os.environ.get("NO_COLOR", "")))
    return checks


def check_kind(term: str, *, is_terminal: bool) -> Check:
    """Whether ``amptui train`` shows its screen here, or plain lines."""
    facts: dict[str, object] = {"is_terminal": is_terminal, "term": term}
    if not is_terminal:
        return fine("terminal", "not a terminal: amptui writes plain lines", **facts)
    if term in ("", "dumb"):
        terminal_words = f"TERM={term}" if term else "TERM is not set"
        text = f"{terminal_words}: amptui writes plain lines instead of the screen"
        return poor("terminal", text, _SET_TERM, **facts)
    return fine("terminal", f"TERM={term}", **facts)


def check_size(columns: int, lines: int) -> Check:
    """The window against what the screen needs, and 80 × 24."""
    from amptui.tui.layout import SMALLEST

    text, facts = f"{columns} × {lines} characters", {"columns": columns, "lines": lines}
    hint = "enlarge the window to at least 80 × 24, better 120 × 40"
    if columns == 0 or lines == 0:
        return poor("size", "the terminal does not report its size", "run `stty cols 120 rows 40`", **facts)
    if columns < SMALLEST[0] or lines < SMALLEST[1]:
        return poor("size", f"{text}: too small for the screen", hint, **facts)
    if columns < 80 or lines < 24:
        return poor("size", f"{text}: most panels collapse to one line", hint, **facts)
    return fine("size", text, **facts)


def check_characters(term: str, *, utf8: bool) -> Check:
    """Whether curves can be drawn with Unicode dots and lines."""
    if utf8:
        return fine("characters", "UTF-8", utf8=True)
    if term == "linux":
        text, hint = (
            "the Linux console's font has no braille: the screen uses ASCII",
            "use a graphical terminal or SSH",
        )
        return poor("characters", text, hint, utf8=False)
    hint = "set LC_ALL=C.UTF-8 if the terminal supports UTF-8"
    return poor("characters", "the locale is not UTF-8: the screen uses ASCII", hint, utf8=False)


def check_colours(term: str, no_color: str) -> Check:
    """The screen needs sixteen colours; ``NO_COLOR`` turns them off (https://no-color.org)."""
    from amptui.tui.background import has_256_colours

    facts: dict[str, object] = {"colorterm": os.environ.get("COLORTERM") or None}
    if no_color:
        return poor("colours", "NO_COLOR is set: no colours", "unset NO_COLOR to get them", **facts)
    if term.startswith("vt") or term.endswith("-m"):
        return poor("colours", f"TERM={term} has no colours", _SET_TERM, **facts)
    has_256 = has_256_colours({**os.environ, "TERM": term})
    return fine("colours", f"{256 if has_256 else 16} colours", **facts)
