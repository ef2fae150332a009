"""The building blocks of the page's cards: headings, facts, tables, verdicts, precision chips."""

from collections.abc import Iterable

from amptui.export.markup import Markup, element
from amptui.records import PRECISIONS, Severity
from amptui.telemetry.labels import signed_label
from amptui.units import SEVERITY_SIGNS


def card(title: str, *children: Markup | None) -> Markup | None:
    """A section with a heading; None if it is empty."""
    if all(child is None for child in children):
        return None
    return element("section", element("h2", title), *children)


def paragraph(text: str, class_: str | None = None) -> Markup | None:
    """A paragraph; None without text."""
    return element("p", text, class_=class_) if text else None


def signed(severity: Severity, label: str, text: str) -> Markup:
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
    for row in rows:
        name, *cells = row
        lines.append(
            element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells))
        )
    return element("div", element("table", *lines), class_="wide", tabindex=0)


def css_class(precision: str | None) -> str:
    """The CSS class with a precision's colour; ``other`` for unknown names in a journal."""
    return precision if precision in PRECISIONS else "other"


def chip(precision: str) -> Markup:
    """Glyph and label in the precision's colour."""
    return element("span", signed_label(precision), class_=f"chip {css_class(precision)}")


def opened(summary: str, *children: Markup | None) -> Markup:
    """Content that opens on a click."""
    return element("details", element("summary", summary), *children)
