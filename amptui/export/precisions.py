"""How a page tells precisions apart: letter, sign, and a class that the style sheet gives a colour."""

from amptui.export.markup import Markup, element
from amptui.telemetry.labels import precision_label

LETTERS = {"fp32": "F", "ieee": "I", "tf32": "T", "fp16": "A", "bf16": "B"}
"""The screen's letters."""

SIGNS = {"fp32": "■", "ieee": "□", "tf32": "◆", "fp16": "▲", "bf16": "●"}
"""The screen's signs."""


def letter(precision: str | None) -> str:
    """The letter that stands for a precision; ``?`` for one that is not known here."""
    return LETTERS.get(precision or "", "?")


def css_class(precision: str | None) -> str:
    """The class of a precision: a name of ours, whatever the journal has."""
    return precision if precision in LETTERS else "other"


def chip(precision: str) -> Markup:
    """Sign and label in the precision's colour."""
    text = f"{SIGNS.get(precision, '?')} {precision_label(precision)}"
    return element("span", text, class_=f"chip {css_class(precision)}")
