"""The template of all pages: what a page says goes in, one self-contained file comes out.

A page's texts are plain data. Only ``page.html`` makes markup of them, and it escapes each text.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from amptui.base.text import printable
from amptui.base.units import EMPTY, SEVERITY_SIGNS
from amptui.diagnosis.labels import signed_label
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import PRECISIONS, Severity

if TYPE_CHECKING:
    import jinja2

_T = TypeVar("_T")


MAX_COLOURS = 8
"""Curves that the style sheet has colours for: ``curve0`` and so on."""


class Span(NamedTuple):
    """Words with a class of the style sheet."""

    words: str
    class_: str


Words = str | Span | Sequence[str | Span]

Block = tuple[Any, ...]
"""A part of a card: its kind, as ``page.html`` lists them, and what that shows. Without content it is left
out."""

Card = tuple[Any, ...]
"""A title and blocks; a card without content is left out."""


def document(title: str, cards: Sequence[Card | None], *, axes: Sequence[Any] = (), **texts: Any) -> str:
    """A whole page; ``texts`` are its header and its footer, as ``page.html`` names them.

    Its content security policy allows no loading, and no script but that of the charts, which share ``axes``.
    """
    style, script = _resource("page.css"), _resource("page.js") if axes else ""
    return _template().render(title=title, cards=cards, axes=axes, style=style, script=script, **texts) + "\n"


@cache
def _template() -> "jinja2.Template":
    import jinja2

    def inert(value: object) -> object:
        """No control characters but line breaks, and no changes of the writing direction."""
        if hasattr(value, "__html__"):
            return value
        return "\n".join(map(printable, str(value).expandtabs(4).split("\n")))

    pages = jinja2.Environment(autoescape=True, finalize=inert, trim_blocks=True, lstrip_blocks=True)
    pages.filters["json"] = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    pages.filters["sha256"] = lambda source: base64.b64encode(
        hashlib.sha256(source.encode()).digest()
    ).decode()
    return pages.from_string(_resource("page.html"))


def _resource(name: str) -> str:
    return resources.files("amptui.reports.export").joinpath(name).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------ parts of many cards


def verdict(severity: Severity, label: str, text: str) -> Words:
    """``✔ X-ray  gradients agree in all 43 layers``."""
    return [Span(SEVERITY_SIGNS[severity], f"sign {severity}"), " ", Span(label, "label"), " ", text]


def table(
    items: Iterable[_T], columns: Iterable[tuple[str, Callable[[_T], Words]]], *, upright: bool = False
) -> Block:
    """A row for each item, or, upright, a column; only figures that some item has. The first names them."""
    items = list(items)
    figures = [[title, *map(words, items)] for title, words in columns]
    figures = [figure for figure in figures if figure is figures[0] or {*figure[1:]} - {*EMPTY}]
    return "table", figures if upright else [*zip(*figures, strict=True)]


def chip(precision: str) -> Span:
    """Letter and label in the precision's colour."""
    return Span(signed_label(precision), f"chip {css_class(precision)}")


def css_class(precision: str) -> str:
    """The CSS class with a precision's colour; ``other`` for unknown names in a journal.

    Weights of half precision and float8 layers have the colour of their type; their letters tell them from
    AMP and FP8.
    """
    base = precision.removesuffix(" weights").replace(FLOAT8_LAYERS, "fp8")
    return base if base in PRECISIONS else "other"
