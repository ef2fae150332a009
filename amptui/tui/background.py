"""Whether the terminal has a dark or a light background: by the user, the environment, or its own answer."""

import re
from collections.abc import Mapping
from typing import Literal

Background = Literal["dark", "light"]

CHOICE = "AMPTUI_BACKGROUND"
"""The environment variable by which a user says that the background is ``dark`` or ``light``."""

QUESTION = "\x1b]11;?\x1b\\\x1b[c"
"""Asks for the background's colour (OSC 11), and then what the terminal is (DA1).

A terminal answers in this order, and all answer the second: after it no colour is to be expected.
"""

_CHOICES: Mapping[str, Background] = {"dark": "dark", "light": "light"}

_LIGHT_NUMBERS = ("7", "10", "11", "14", "15")
"""Of the sixteen colours, those on which black text is the easier to read by far."""

_PART = "([0-9a-fA-F]{1,4})"

_ANSWER = re.compile(rf"\x1b\]11;rgba?:{_PART}/{_PART}/{_PART}(?:/|\x07|\x9c|\x1b)")

_NEVER_ANSWER = re.compile(r"(linux|dumb|vt\d.*|eterm.*|)")
"""Terminals, by TERM, that have no such question. Some would print parts of it."""


def assumed_background(environment: Mapping[str, str]) -> Background:
    """The background as long as the terminal has not named it.

    The user's choice, or by the last number of COLORFGBG, which some terminals set, or dark.
    """
    if choice := _CHOICES.get(environment.get(CHOICE, "").lower()):
        return choice
    number = environment.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if number in _LIGHT_NUMBERS else "dark"


def can_ask(environment: Mapping[str, str]) -> bool:
    """Whether the terminal may be asked, and its answer matters."""
    is_chosen = environment.get(CHOICE, "").lower() in _CHOICES
    is_plain = "NO_COLOR" in environment
    return not (is_chosen or is_plain or _NEVER_ANSWER.fullmatch(environment.get("TERM", "")))


def background_in(sequence: str) -> Background | None:
    """What a terminal's answer says, one to four hexadecimal digits a colour; None if it is no answer."""
    answer = _ANSWER.match(sequence)
    if answer is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in answer.groups())
    luma = 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601
    return "light" if luma > 0.5 else "dark"


def has_256_colours(environment: Mapping[str, str]) -> bool:
    """Whether the terminal has at least the 256 colours of xterm, by the rules that Rich follows."""
    if environment.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return True
    return environment.get("TERM", "").strip().lower().rpartition("-")[2] in ("256color", "kitty")
