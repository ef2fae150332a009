"""A recommendation as one self-contained HTML page, in the style of the page of one run."""

from collections.abc import Iterable

from amptui import __version__
from amptui.recipe.request import FRAMEWORKS
from amptui.reports.advise import advise_words
from amptui.reports.advise.advice_report import Recommendation, heading
from amptui.reports.advise.paste import NAMES
from amptui.reports.export.markup import Markup, card, document, element, paragraph, table


def advice_page(found: Recommendation) -> str:
    """The page as HTML."""
    title = f"{found.subject}: which precision · amptui"
    return document(title, _main(found), element("footer", f"measured by amptui {__version__}"))


def _main(found: Recommendation) -> Markup:
    where = element("p", heading(found), class_="where")
    rows = advise_words.table_rows(found.view, found.candidates)
    partial = "Interrupted: this follows from what was measured until then." if found.interrupted else ""
    notes = [element("p", element("b", label), " ", text, class_="verdict") for label, text in found.notes]
    return element(
        "main",
        element("header", element("h1", f"{advise_words.headline(found.advice)}."), where),
        card("why", paragraph(partial, "note"), *notes),
        card("evidence", table(rows[0], rows[1:]) if rows else None),
        card("lines to paste", *_lines(found)),
        card("not measured", *_paragraphs(found.missing)),
        card(
            "how it is measured", *_paragraphs(advise_words.how_measured(found.compared, found.race), "note")
        ),
    )


def _paragraphs(texts: Iterable[str], class_: str | None = None) -> list[Markup | None]:
    return [paragraph(text, class_) for text in texts]


def _lines(found: Recommendation) -> list[Markup]:
    shown = []
    for name in FRAMEWORKS:
        if name in found.lines:
            shown += [element("h3", NAMES[name]), element("pre", "\n".join(found.lines[name]))]
    return shown
