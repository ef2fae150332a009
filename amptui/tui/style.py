"""The colours and signs of the screen, on any background."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from rich.color import Color
from rich.style import Style as RichStyle

from amptui.base.units import SEVERITY_SIGNS
from amptui.records.run import Severity
from amptui.tui.background import Background


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
