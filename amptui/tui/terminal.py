"""What the environment says of the terminal, before anything is drawn on it."""

import os

_LOCALE_NAMES = ("LC_ALL", "LC_CTYPE", "LANG")


def terminal_speaks_utf8() -> bool:
    """Whether the locale says so; where it says nothing, as in most containers, a terminal of today does."""
    said = next((value for name in _LOCALE_NAMES if (value := os.environ.get(name))), "UTF-8")
    return "utf" in said.lower()
