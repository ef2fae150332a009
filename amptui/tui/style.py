"""The colours and signs of the screen, and whether the terminal's background is dark or light."""

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Literal, NamedTuple

from rich.color import Color
from rich.style import Style as RichStyle

from amptui.base.units import SEVERITY_SIGNS
from amptui.records.run import Severity

Background = Literal["dark", "light"]


class Style(IntEnum):
    """What a cell means; ``styles_on`` gives each meaning its colour.

    Green is good, yellow doubtful and red trouble: no precision has one of them. Many palettes and terminals
    show bright or bold colours like plain ones, so those often seen together differ in hue: FP32 is blue,
    fp16 magenta, bf16 cyan. Colour is never the only sign: precisions also have a letter, verdicts a sign.
    """

    TEXT = 0
    DIM = 1
    """Labels, axes, what matters least."""
    FRAME = 2
    STRONG = 3
    """The main number of a panel."""
    FP32 = 4
    IEEE = 5
    TF32 = 6
    FP16 = 7
    BF16 = 8
    FP8 = 9
    GOOD = 10
    WARNING = 11
    ERROR = 12
    KEY = 13
    """A key in the footer and the menus."""


BOLD = 0x80
"""Makes a style bold: ``Style.FP16 | BOLD``."""


class _Hue(NamedTuple):
    """The numbers of one meaning's colour among xterm's 256; None is the colour of plain text.

    Each has a contrast of at least 4.4 with black or white in xterm's palette; 4.5 is what WCAG 2.2 (1.4.3)
    asks for. On a light background few of the sixteen can be read: red, blue, magenta and bright blue.
    """

    dark: int
    light: int
    dark_16: int
    """On a terminal that has only sixteen colours."""
    light_16: int | None


# Bright black is the background itself in some palettes.
_GREY = _Hue(245, 241, 8, None)

_HUES = {
    Style.DIM: _GREY,
    Style.FRAME: _GREY,
    Style.FP32: _Hue(75, 26, 12, 4),
    Style.IEEE: _Hue(110, 24, 7, 4),
    Style.TF32: _Hue(153, 61, 6, 12),
    Style.FP16: _Hue(213, 127, 13, 5),
    Style.BF16: _Hue(51, 23, 14, None),
    Style.FP8: _Hue(141, 92, 15, 12),
    Style.GOOD: _Hue(2, 22, 2, None),
    Style.WARNING: _Hue(220, 94, 3, None),
    Style.ERROR: _Hue(9, 160, 9, 1),
}

_BOLD_STYLES = (Style.STRONG, Style.KEY)


def styles_on(background: Background, *, has_256_colours: bool) -> dict[int, RichStyle]:
    """Each style and its bold form, as Rich knows them, for a dark or a light ``background``.

    True colour would take twice the bytes of the 256 and gain nothing.
    """
    styles = {}
    for style in Style:
        number = None
        if hue := _HUES.get(style):
            dark, light = (hue.dark, hue.light) if has_256_colours else (hue.dark_16, hue.light_16)
            number = dark if background == "dark" else light
        plain = RichStyle(color=None if number is None else Color.from_ansi(number))
        # Terminals show a bold one of the first eight as the bright one, which fades on white.
        fades = background == "light" and number in (1, 5)
        strong = plain if fades else plain + RichStyle(bold=True)
        styles[int(style)], styles[style | BOLD] = strong if style in _BOLD_STYLES else plain, strong
    return styles


STYLES: Mapping[int, RichStyle] = styles_on("dark", has_256_colours=False)
"""Each style and its bold form on a terminal that has only sixteen colours and a dark background."""

_PRECISION_STYLES = {
    "fp32": Style.FP32,
    "ieee": Style.IEEE,
    "tf32": Style.TF32,
    "fp16": Style.FP16,
    "bf16": Style.BF16,
    "fp8": Style.FP8,
    # As the numbers are of that type; their letters tell them from AMP.
    "fp16 weights": Style.FP16,
    "bf16 weights": Style.BF16,
    "float8 layers": Style.FP8,
}


def precision_style(precision: str | None) -> Style:
    """The style of a precision wherever it is shown; plain for an unknown one."""
    return _PRECISION_STYLES.get(precision or "", Style.TEXT)


VERDICT_SIGNS: Mapping[Severity, tuple[str, Style]] = {
    "info": (SEVERITY_SIGNS["info"], Style.GOOD),
    "warning": (SEVERITY_SIGNS["warning"], Style.WARNING),
    "error": (SEVERITY_SIGNS["error"], Style.ERROR),
}
"""The sign before a verdict, and its style."""

GRADE_STYLES: Mapping[str, int] = {
    "good": Style.GOOD | BOLD,
    "neutral": int(Style.TEXT),
    "warning": Style.WARNING | BOLD,
    "error": Style.ERROR | BOLD,
    "unknown": int(Style.DIM),
}
"""The style of a finding on AMP, by its grade."""

NO_VERDICT = ("·", Style.TEXT)
"""The same for what is neither good nor bad."""


# ----------------------------------------------------------------------------------- the background

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
