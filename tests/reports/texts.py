"""Reports as texts that goldens hold: JSON and pages with one thing a line; pages of records made by hand."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

from amptui.base import strictjson
from amptui.base.version import __version__
from amptui.records.run import Record
from amptui.reports.export.page import RecordedRun, page
from amptui.reports.export.template import Card, document


def json_text(content: Any) -> str:
    """Strict JSON, its numbers to nine digits: what is beyond them is the processor's affair."""
    return json.dumps(_rounded(json.loads(strictjson.line(content))), indent=1, ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


class Reading(HTMLParser):
    """Tags with their attributes, and the text between them, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def page_words(html: str) -> str:
    """What is read on a page: a line for each paragraph, title and row, whose cells are parted by bars."""
    text = re.sub("<rect.*?</rect>", "", without_style(html).partition("<body>")[2], flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"</?(?:td|th|dt|dd|span|small|b|time|text|output|title)\b[^>]*>", "|", text)
    text = unescape(re.sub(r"<[^>]*>", "\n", text))
    lines = (re.sub(r"[|\s]*\|[|\s]*", " | ", line).strip(" |") for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def without_style(html: str) -> str:
    """A page without its style, its script and the policy that names both, and without our version."""
    html = html.replace(f"amptui {__version__}", "amptui")
    return re.sub(r"<(style|script)\b.*?</\1>|<meta http-equiv[^>]*>", "", html, flags=re.DOTALL)


# -------------------------------------------------------------------- pages of records made by hand
def page_of(*records: Record) -> str:
    recording = RecordedRun("a-run", "runs/a-run")
    recording.add(records)
    return page(recording)


def contents(html: str, attribute: str) -> list[Any]:
    """What the elements of a page hold in one of their attributes for the script."""
    return [json.loads(own[attribute]) for _, own in Reading(html).tags if attribute in own]


def card_html(card: Card | None) -> str:
    """A card as a page has it; empty if the page leaves it out."""
    return "".join(re.findall("<section>.*</section>", document("", [card]), flags=re.DOTALL))


def charts_of(*records: Record) -> dict[str, dict[str, Any]]:
    """Each chart of a page, by its title."""
    return {chart["title"].split(",")[0]: chart for chart in contents(page_of(*records), "data-chart")}
