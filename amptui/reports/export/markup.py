"""Builds all HTML and SVG, so that no text of a run can become markup; and the elements of the page."""

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib import resources

from amptui.base.text import printable
from amptui.base.units import SEVERITY_SIGNS
from amptui.diagnosis.labels import signed_label
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import PRECISIONS, Severity, base_precision

_VOID = frozenset({"meta"})


class Markup(str):
    """Finished markup; any other text is escaped when it is added."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: object) -> Markup:
    """``<name attributes>children</name>``; text is escaped, a child or attribute that is None left out.

    In the names of attributes a final ``_`` is dropped (``class_``) and other ``_`` become ``-``.
    """
    words = [name, *(_attribute(key, value) for key, value in attributes.items() if value is not None)]
    start = f"<{' '.join(words)}>"
    return Markup(start if name in _VOID else f"{start}{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """``children`` one after the other."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(_inert(text))


def _attribute(key: str, value: object) -> str:
    return f'{key.removesuffix("_").replace("_", "-")}="{html.escape(_inert(str(value)))}"'


def _inert(text: str) -> str:
    """Text without control characters, except line breaks, and without changes of the writing direction."""
    return "\n".join(map(printable, text.expandtabs(4).split("\n")))


# -------------------------------------------------------------------------- the page's elements


def document(title: str, *content: Markup, script: str | None = None) -> str:
    """A whole page. Its content security policy allows no loading and no script but ``script``, a file."""
    style, code = _resource("page.css"), None if script is None else _resource(script)
    allowed = f"style-src {_hash(style)}" + ("" if code is None else f"; script-src {_hash(code)}")
    policy = f"default-src 'none'; {allowed}; base-uri 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    body = element("body", *content, None if code is None else element("script", code))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _resource(name: str) -> Markup:
    return Markup(resources.files("amptui.reports.export").joinpath(name).read_text(encoding="utf-8"))


def _hash(source: Markup) -> str:
    """The hash by which a content security policy allows a source."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


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


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Markup:
    """A table whose first column names its rows; it scrolls horizontally on a narrow page."""
    first, *names = head
    lines = [element("tr", element("td", first), *(element("th", name, scope="col") for name in names))]
    for name, *cells in rows:
        row = [element("th", name, scope="row"), *(element("td", cell) for cell in cells)]
        lines.append(element("tr", *row))
    return element("div", element("table", *lines), class_="wide", tabindex=0)


def css_class(precision: str | None) -> str:
    """The CSS class with a precision's colour; ``other`` for unknown names in a journal.

    Weights of half precision and float8 layers have the colour of their type; glyph and letter tell them from
    AMP and FP8.
    """
    base = base_precision(precision or "").removesuffix(" weights").replace(FLOAT8_LAYERS, "fp8")
    return base if base in PRECISIONS else "other"


def chip(precision: str) -> Markup:
    """Glyph and label in the precision's colour."""
    return element("span", signed_label(precision), class_=f"chip {css_class(precision)}")


def details(summary: str, content: Markup | None) -> Markup | None:
    """Content that opens on a click; None if there is none."""
    return None if content is None else element("details", element("summary", summary), content)


def percent(share: float) -> str:
    """A fraction as SVG writes it: ``12.34%``."""
    return f"{100 * share:.2f}%"
