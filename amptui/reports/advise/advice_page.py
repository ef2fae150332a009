"""A recommendation as one self-contained HTML page, in the style of the page of one run."""

from collections.abc import Iterable

from amptui import __version__
from amptui.recipe.request import FRAMEWORKS
from amptui.reports.advise import advise_words
from amptui.reports.advise.advice_report import Recommendation, heading
from amptui.reports.advise.paste import NAMES
from amptui.reports.export.markup import Markup, card, document, element, paragraph, table


def advice_page(result: Recommendation) -> str:
    """The page as HTML."""
    title = f"{result.subject}: which precision · amptui"
    return document(title, _main(result), element("footer", f"measured by amptui {__version__}"))


def _main(result: Recommendation) -> Markup:
    where = element("p", heading(result), class_="where")
    rows = advise_words.table_rows(result.view, result.candidates)
    partial = "Interrupted: this follows from what was measured until then." if result.interrupted else ""
    notes = [element("p", element("b", label), " ", text, class_="verdict") for label, text in result.notes]
    return element(
        "main",
        element("header", element("h1", f"{advise_words.headline(result.advice)}."), where),
        card("why", paragraph(partial, "note"), *notes),
        card("evidence", table(rows[0], rows[1:]) if rows else None),
        card("lines to paste", *_lines(result)),
        card("not measured", *_paragraphs(result.missing)),
        card(
            "how it is measured",
            *_paragraphs(advise_words.how_measured(result.compared, result.race), "note"),
        ),
    )


def _paragraphs(texts: Iterable[str], class_: str | None = None) -> list[Markup | None]:
    return [paragraph(text, class_) for text in texts]


def _lines(result: Recommendation) -> list[Markup]:
    elements = []
    for name in FRAMEWORKS:
        if name in result.lines:
            elements += [element("h3", NAMES[name]), element("pre", "\n".join(result.lines[name]))]
    return elements
