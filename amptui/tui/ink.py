"""Every colour and sign of the screen: inks by meaning, glyphs, and stand-ins for ASCII terminals."""

from collections.abc import Mapping
from enum import IntEnum

from rich.style import Style

from amptui.records import Severity
from amptui.units import SEVERITY_SIGNS


class Ink(IntEnum):
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
"""Add to an ink for its bold form: ``Ink.FP16 | BOLD``."""

_STYLES = {
    Ink.TEXT: Style(),
    Ink.DIM: Style(color="bright_black"),
    Ink.FRAME: Style(color="bright_black"),
    Ink.STRONG: Style(bold=True),
    Ink.FP32: Style(color="bright_blue"),
    Ink.IEEE: Style(color="cyan"),
    Ink.TF32: Style(color="bright_cyan"),
    Ink.FP16: Style(color="yellow"),
    Ink.BF16: Style(color="bright_green"),
    Ink.GOOD: Style(color="green"),
    Ink.WARNING: Style(color="bright_magenta"),
    Ink.ERROR: Style(color="bright_red"),
    Ink.KEY: Style(bold=True),
}

STYLES: dict[int, Style] = {
    code | weight: style + Style(bold=True) if weight else style
    for code, style in _STYLES.items()
    for weight in (0, BOLD)
}
"""The Rich style of each ink and of its bold form."""

PRECISION_INKS = {"fp32": Ink.FP32, "ieee": Ink.IEEE, "tf32": Ink.TF32, "fp16": Ink.FP16, "bf16": Ink.BF16}


def precision_ink(precision: str | None) -> Ink:
    """The accent of a precision, the same in curve, ribbon, table and header; plain for an unknown one."""
    return PRECISION_INKS.get(precision or "", Ink.TEXT)


VERDICT_SIGNS: Mapping[Severity, tuple[str, Ink]] = {
    "info": (SEVERITY_SIGNS["info"], Ink.GOOD),
    "warning": (SEVERITY_SIGNS["warning"], Ink.WARNING),
    "error": (SEVERITY_SIGNS["error"], Ink.ERROR),
}
"""The sign before a judgement, and its ink."""

NO_VERDICT = ("·", Ink.TEXT)
"""The same where nothing is good or bad."""

ASCII_STAND_INS = str.maketrans(
    "─│╭╮╰╯├┤┬┴┼━╸╺═▔▁▏▰▱■□◆▲●⚠✖✔×→←↑↓…·±°µ▸▾⏸▶⋮–—−≥≤",
    "-|+++++++++==-=-_|#.#:*^o!xvx><^v~.~ u>v=>:---><",
)
"""One character for one, so that no column moves where the terminal has no UTF-8."""
