"""The colours and signs of the screen, and their replacements on ASCII terminals."""

from collections.abc import Mapping
from enum import IntEnum

from rich.style import Style as RichStyle

from amptui.base.units import SEVERITY_SIGNS
from amptui.records.run import Severity, base_precision


class Style(IntEnum):
    """What a cell means; ``STYLES`` gives each meaning its colour.

    Colours are the terminal's sixteen: they follow the user's palette and take a third of the bytes of true
    colour. Many palettes and terminals show bright or bold colours like plain ones, so what must not be
    confused differs in hue: a warning is magenta, as in compilers, not AMP's yellow. Colour is never the
    only sign: precisions also have a letter and a glyph, warnings and errors a sign.
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
    GOOD = 9
    WARNING = 10
    ERROR = 11
    KEY = 12
    """A key in the footer and the menus."""


BOLD = 0x80
"""Makes a style bold: ``Style.FP16 | BOLD``."""

_STYLES = {
    Style.TEXT: RichStyle(),
    Style.DIM: RichStyle(color="bright_black"),
    Style.FRAME: RichStyle(color="bright_black"),
    Style.STRONG: RichStyle(bold=True),
    Style.FP32: RichStyle(color="bright_blue"),
    Style.IEEE: RichStyle(color="cyan"),
    Style.TF32: RichStyle(color="bright_cyan"),
    Style.FP16: RichStyle(color="yellow"),
    Style.BF16: RichStyle(color="bright_green"),
    Style.GOOD: RichStyle(color="green"),
    Style.WARNING: RichStyle(color="bright_magenta"),
    Style.ERROR: RichStyle(color="bright_red"),
    Style.KEY: RichStyle(bold=True),
}

STYLES: dict[int, RichStyle] = {
    code | weight: style + RichStyle(bold=True) if weight else style
    for code, style in _STYLES.items()
    for weight in (0, BOLD)
}
"""Each style and its bold form, as Rich knows them."""

_PRECISION_STYLES = {
    "fp32": Style.FP32,
    "ieee": Style.IEEE,
    "tf32": Style.TF32,
    "fp16": Style.FP16,
    "bf16": Style.BF16,
    # As the numbers are of that type; glyph and letter tell them from AMP.
    "fp16 weights": Style.FP16,
    "bf16 weights": Style.BF16,
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
