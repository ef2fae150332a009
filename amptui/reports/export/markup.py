"""Builds all HTML, so that no text of a run can become markup; and the elements that pages share."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from importlib import resources

from amptui.base.text import printable
from amptui.base.units import SEVERITY_SIGNS
from amptui.diagnosis.labels import signed_label
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import PRECISIONS, Severity, base_precision


class Markup(str):
    """Finished markup; any other text is escaped when it is added."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: object) -> Markup:
    """``<name attributes>children</name>``; text is escaped, a child or attribute that is None left out.

    In the names of attributes a final ``_`` is dropped (``class_``) and other ``_`` become ``-``.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.removesuffix("_").replace("_", "-")}="{_escaped(str(value))}"')
    start = f"<{' '.join(words)}>"
    if name == "meta":
        return Markup(start)
    inner = (
        child if isinstance(child, Markup) else _escaped(child) for child in children if child is not None
    )
    return Markup(f"{start}{''.join(inner)}</{name}>")


def _escaped(text: str) -> str:
    """Text without control characters, except line breaks, and without changes of the writing direction."""
    return html.escape("\n".join(map(printable, text.expandtabs(4).split("\n"))))


def data(content: object) -> str:
    """What an attribute holds for the page's script, which shows it as text."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def document(title: str, *content: Markup, with_charts: bool = True) -> str:
    """A whole page. Its content security policy allows no loading, and no script but that of the charts."""
    style, script = _resource("page.css"), _resource("page.js") if with_charts else None
    allowed = f"style-src {_hash(style)}" + ("" if script is None else f"; script-src {_hash(script)}")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; {allowed}; base-uri 'none'",
        ),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    without = element("noscript", "The charts need JavaScript; all else does not.") if script else None
    body = element("body", without, *content, None if script is None else element("script", script))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _resource(name: str) -> Markup:
    return Markup(resources.files("amptui.reports.export").joinpath(name).read_text(encoding="utf-8"))


def _hash(source: Markup) -> str:
    """The hash by which a content security policy allows a source."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def card(title: str, *children: Markup | None) -> Markup | None:
    """A section with a heading; None if it is empty."""
    if all(child is None for child in children):
        return None
    return element("section", element("h2", title), *children)


def paragraph(text: str, class_: str | None = None) -> Markup | None:
    """A paragraph; None without text."""
    return element("p", text, class_=class_) if text else None


def verdict(severity: Severity, label: str, text: str) -> Markup:
    """``✔ X-ray  gradients agree in all 43 layers``."""
    sign = element("span", SEVERITY_SIGNS[severity], class_=f"sign {severity}")
    return element("p", sign, " ", element("b", label), " ", text, class_="verdict")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup | None:
    """Names and their values, without empty values; None if none is left."""
    items = [element("div", element("dt", name), element("dd", value)) for name, value in pairs if value]
    return element("dl", *items) if items else None


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Markup | None:
    """A table whose first column names its rows; it scrolls on a narrow page. None without a row."""
    first, *names = head
    lines = [element("tr", element("td", first), *(element("th", name, scope="col") for name in names))]
    for name, *cells in rows:
        row = [element("th", name, scope="row"), *(element("td", cell) for cell in cells)]
        lines.append(element("tr", *row))
    return element("div", element("table", *lines), class_="wide", tabindex=0) if lines[1:] else None


def chip(precision: str) -> Markup:
    """Glyph and label in the precision's colour."""
    return element("span", signed_label(precision), class_=f"chip {css_class(precision)}")


def css_class(precision: str) -> str:
    """The CSS class with a precision's colour; ``other`` for unknown names in a journal.

    Weights of half precision and float8 layers have the colour of their type; glyph and letter tell them from
    AMP and FP8.
    """
    base = base_precision(precision).removesuffix(" weights").replace(FLOAT8_LAYERS, "fp8")
    return base if base in PRECISIONS else "other"


def details(summary: str, content: Markup | None) -> Markup | None:
    """Content that opens on a click; None if there is none."""
    return None if content is None else element("details", element("summary", summary), content)
