"""Every colour and sign of the screen: styles by meaning, glyphs, and stand-ins for ASCII terminals."""

from collections.abc import Mapping
from enum import IntEnum

from rich.style import Style as RichStyle

from amptui.records import Severity
from amptui.units import SEVERITY_SIGNS


class Style(IntEnum):
    """What a cell means; the theme below gives each meaning its colour.

    Colours are the terminal's own sixteen: they follow the user's palette and cost a third of the bytes
    of true colour. In many palettes a bright colour is the same as the plain one, and many terminals
    show bold as bright: what must not be mixed up differs in hue. So a warning is not of AMP's amber; it
    has the magenta that compilers print theirs in. Colour is never the only sign: precisions also have a
    letter and a glyph, warnings and errors a sign.
    """

    TEXT = 0
    DIM = 1
    """Labels, axes, what may be overlooked."""
    FRAME = 2
    STRONG = 3
    """The one number of a panel."""
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
"""Add to an style for its bold form: ``Style.FP16 | BOLD``."""

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
"""The Rich style of each style and of its bold form."""

PRECISION_INKS = {
    "fp32": Style.FP32,
    "ieee": Style.IEEE,
    "tf32": Style.TF32,
    "fp16": Style.FP16,
    "bf16": Style.BF16,
}


def precision_style(precision: str | None) -> Style:
    """The accent of a precision, the same in curve, ribbon, table and header; plain for an unknown one."""
    return PRECISION_INKS.get(precision or "", Style.TEXT)


VERDICT_SIGNS: Mapping[Severity, tuple[str, Style]] = {
    "info": (SEVERITY_SIGNS["info"], Style.GOOD),
    "warning": (SEVERITY_SIGNS["warning"], Style.WARNING),
    "error": (SEVERITY_SIGNS["error"], Style.ERROR),
}
"""The sign before a judgement, and its style."""

NO_VERDICT = ("·", Style.TEXT)
"""The same where nothing is good or bad."""

ASCII_STAND_INS = str.maketrans(
    "─│╭╮╰╯├┤┬┴┼━╸╺═▔▁▏▰▱■□◆▲●⚠✖✔×→←↑↓…·±°µ▸▾⏸▶⋮–—−≥≤",
    "-|+++++++++==-=-_|#.#:*^o!xvx><^v~.~ u>v=>:---><",
)
"""One character for one, so that no column moves where the terminal has no UTF-8."""
