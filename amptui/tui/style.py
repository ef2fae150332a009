"""The colours and signs of the screen, on any background."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from rich.color import Color
from rich.style import Style as RichStyle

from amptui.base.units import SEVERITY_SIGNS
from amptui.records.run import Severity, base_precision
from amptui.tui.contrast import BLACK, Rgb, is_legible, is_light, nearest_legible


class Style(IntEnum):
    """What a cell means; ``styles_on`` gives each meaning its colour.

    Many palettes and terminals show bright or bold colours like plain ones, so what must not be confused
    differs in hue: a warning is magenta, as in compilers, not AMP's yellow. Colour is never the only sign:
    precisions also have a letter and a glyph, warnings and errors a sign.
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


@dataclass(frozen=True, slots=True)
class _Hue:
    """The numbers of one meaning's colours among xterm's 256; None is the colour of plain text."""

    dark: int
    """On a dark background, of the sixteen: they follow the user's palette and take the fewest bytes."""
    dark_256: int
    """On one on which that cannot be read."""
    light_256: int
    """On a light background, on which most palettes have few legible colours among the sixteen."""
    dark_16: int | None = None
    """On a dark one if there are only sixteen, where ``dark`` cannot be read."""
    light_16: int | None = None
    """On a light one if there are only sixteen, of which red, blue, magenta and bright blue can be read."""


_GREY = _Hue(dark=8, dark_256=245, light_256=241)

_HUES = {
    Style.DIM: _GREY,
    Style.FRAME: _GREY,
    Style.FP32: _Hue(dark=12, dark_256=75, light_256=26, dark_16=14, light_16=4),
    Style.IEEE: _Hue(dark=6, dark_256=44, light_256=23, light_16=4),
    Style.TF32: _Hue(dark=14, dark_256=87, light_256=24, light_16=4),
    Style.FP16: _Hue(dark=3, dark_256=220, light_256=94, light_16=5),
    Style.BF16: _Hue(dark=10, dark_256=83, light_256=28, light_16=12),
    # Orange, which the sixteen lack: red cannot be read on black, and yellow is AMP's.
    Style.FP8: _Hue(dark=1, dark_256=208, light_256=130, dark_16=11, light_16=5),
    Style.GOOD: _Hue(dark=2, dark_256=41, light_256=22),
    Style.WARNING: _Hue(dark=13, dark_256=213, light_256=127, light_16=1),
    Style.ERROR: _Hue(dark=9, dark_256=203, light_256=160, light_16=1),
}

_BOLD_STYLES = (Style.STRONG, Style.KEY)


def styles_on(background: Rgb, *, has_256_colours: bool) -> dict[int, RichStyle]:
    """Each style and its bold form, as Rich knows them, legible on ``background``.

    Every colour has a contrast of at least ``MIN_CONTRAST`` with it; where none of sixteen has, the style is
    plain text. True colour would take twice the bytes of the 256 and gain nothing. The sixteen count as in
    xterm's palette, which also shows bold ones of the first eight as the bright ones.
    """
    styles = {}
    for style in Style:
        number = _number_on(_HUES[style], background, has_256_colours) if style in _HUES else None
        plain = RichStyle(color=None if number is None else Color.from_ansi(number))
        strong = plain if _fades_if_bold(number, background) else plain + RichStyle(bold=True)
        styles[int(style)], styles[style | BOLD] = strong if style in _BOLD_STYLES else plain, strong
    return styles


def _number_on(hue: _Hue, background: Rgb, has_256_colours: bool) -> int | None:
    light = is_light(background)
    if has_256_colours:
        if not light and is_legible(hue.dark, background):
            return hue.dark
        return nearest_legible(hue.light_256 if light else hue.dark_256, background)
    choices = (hue.light_16,) if light else (hue.dark, hue.dark_16)
    return next((it for it in choices if it is not None and is_legible(it, background)), None)


def _fades_if_bold(number: int | None, background: Rgb) -> bool:
    return number is not None and number < 8 and not is_legible(number + 8, background)


STYLES: Mapping[int, RichStyle] = styles_on(BLACK, has_256_colours=False)
"""Each style and its bold form on a terminal that has only sixteen colours and a dark background."""

_PRECISION_STYLES = {
    "fp32": Style.FP32,
    "ieee": Style.IEEE,
    "tf32": Style.TF32,
    "fp16": Style.FP16,
    "bf16": Style.BF16,
    "fp8": Style.FP8,
    "fp8-emulated": Style.FP8,
    # As the numbers are of that type; glyph and letter tell them from AMP.
    "fp16 weights": Style.FP16,
    "bf16 weights": Style.BF16,
    "float8 layers": Style.FP8,
}


def precision_style(precision: str | None) -> Style:
    """The style of a precision wherever it is shown; plain for an unknown one."""
    return _PRECISION_STYLES.get(base_precision(precision or ""), Style.TEXT)


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
