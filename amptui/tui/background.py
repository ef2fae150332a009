"""The terminal's background: the user's choice, what the environment says, and the terminal's own answer."""

import re
from collections.abc import Mapping

from amptui.tui.contrast import BLACK, WHITE, Rgb, colour_of

CHOICE = "AMPTUI_BACKGROUND"
"""The environment variable by which a user says that the background is ``dark`` or ``light``."""

QUESTION = "\x1b]11;?\x1b\\\x1b[c"
"""Asks for the background's colour (OSC 11), and then what the terminal is (DA1).

A terminal answers in this order, and all answer the second: after it no colour is to be expected.
"""

_CHOICES = {"dark": BLACK, "light": WHITE}

_PART = "([0-9a-fA-F]{1,4})"

_ANSWER = re.compile(rf"\x1b\]11;rgba?:{_PART}/{_PART}/{_PART}(?:/|\x07|\x9c|\x1b)")

_NEVER_ANSWER = re.compile(r"(linux|dumb|vt\d.*|eterm.*|)")
"""Terminals, by TERM, that have no such question. Some would print parts of it."""


def assumed_background(environment: Mapping[str, str]) -> Rgb:
    """The background as long as the terminal has not named it.

    The user's choice, or the last number of COLORFGBG, which some terminals set, or black.
    """
    if choice := _CHOICES.get(environment.get(CHOICE, "").lower()):
        return choice
    number = environment.get("COLORFGBG", "").rpartition(";")[2]
    return colour_of(int(number)) if re.fullmatch(r"\d|1[0-5]", number, re.ASCII) else BLACK


def can_ask(environment: Mapping[str, str]) -> bool:
    """Whether the terminal may be asked, and its answer matters."""
    is_chosen = environment.get(CHOICE, "").lower() in _CHOICES
    is_plain = "NO_COLOR" in environment
    return not (is_chosen or is_plain or _NEVER_ANSWER.fullmatch(environment.get("TERM", "")))


def background_in(sequence: str) -> Rgb | None:
    """The colour in a terminal's answer, one to four hexadecimal digits a part; None if it is none."""
    answer = _ANSWER.match(sequence)
    if answer is None:
        return None
    red, green, blue = (round(255 * int(part, 16) / (16 ** len(part) - 1)) for part in answer.groups())
    return red, green, blue


def has_256_colours(environment: Mapping[str, str]) -> bool:
    """Whether the terminal has at least the 256 colours of xterm, by the rules that Rich follows."""
    if environment.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return True
    return environment.get("TERM", "").strip().lower().rpartition("-")[2] in ("256color", "kitty")
