"""Pages of records made by hand, and the numbers in them that the page's script draws."""

import json
import re
from typing import Any

from amptui.records.run import Record
from amptui.reports.export.page import RecordedRun, page
from amptui.reports.export.template import Card, document
from tests.reports.texts import Reading


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
