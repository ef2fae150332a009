"""All that is said of a run, surface by surface, as a text that people read and compare."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import unescape
from typing import Any

from amptui.diagnosis.alerts import Alerts
from amptui.diagnosis.amp_answer import (
    AmpAnswer,
    amp_answer,
    answer_json,
    answer_line,
    evidence_rows,
    next_measurement,
)
from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.summary import summary_lines
from amptui.diagnosis.words import SIGNS
from amptui.process.plain_lines import status_line
from amptui.reports.export import page
from amptui.telemetry.events import Event
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import answer_panel
from amptui.tui.panels.phrases import write_lines
from amptui.tui.panels.screen_state import ScreenState
from tests.reports.texts import card_html

WIDTHS = (200, 120, 100, 80, 60, 48)
"""Of the line on AMP below a screen's header."""


def table(rows: Mapping[str, str | Iterable[str]]) -> str:
    """What is said in each of several cases: a line, or lines below the name of the case."""
    parts = []
    for name, said in rows.items():
        lines = [said] if isinstance(said, str) else list(said)
        parts.append("\n".join([f"[{name}]", *(f"  {line}".rstrip() for line in lines)]))
    return "\n".join(parts)


def words_of(view: SessionView) -> str:
    """What every surface says of a run."""
    answer = amp_answer(view)
    surfaces = {
        "answer": [
            answer_line(answer),
            *(f"  {SIGNS[one.grade]} {words}  ({source})" for one, words, source in evidence_rows(answer)),
        ],
        "advised key": advised_key(view) or "none",
        "plain line": status_line(view),
        "summary": summary_lines(view),
        "events": event_lines(view.events),
        "alert": Alerts(since=0.0).news(view) or "none",
        "screen": [f"{width:3}  {line_on_amp(view, width)}" for width in WIDTHS],
        "panel": panel_on_amp(view, answer),
        "page": page_words(view),
        "JSON": json_lines(answer),
    }
    return table(surfaces)


def event_lines(events: Sequence[Event]) -> Iterator[str]:
    """Each event with its severity and its kind, and what opens under it."""
    for event in events:
        yield f"{event.severity} {event.kind}, step {event.step}: {event_text(event)}"
        yield from (f"    {detail}" for detail in event_details(event))


def screen_of(view: SessionView) -> ScreenState:
    return ScreenState(accepts=view.accepts)


def advised_key(view: SessionView) -> str:
    """The key that the line on AMP names, with what it does; empty if it names none."""
    answer = amp_answer(view)
    if answer.precision is None:
        return ""
    measured_by, what = next_measurement(answer)
    key = answer_panel.key_of(measured_by, screen_of(view))
    return f"{key} {what}" if key and what else ""


def line_on_amp(view: SessionView, width: int) -> str:
    """The line below the header of a screen."""
    canvas = Canvas(width, 1)
    answer_panel.draw_line(canvas, view, screen_of(view))
    return canvas.lines()[0]


def panel_on_amp(view: SessionView, answer: AmpAnswer) -> list[str]:
    """The rows that explain the answer, one for each finding."""
    canvas, screen = Canvas(160, 2 * len(answer.findings)), screen_of(view)
    blocks = answer_panel.finding_blocks(answer, screen, canvas.width)
    write_lines(canvas, 0, [line for block in blocks for line in block.lines])
    return [line for line in canvas.lines() if line.strip()]


def page_words(view: SessionView) -> Iterator[str]:
    """What is read of the cards of a page: a row of it is a line here."""
    for card in (page.answer, page.comparison, page.time_spent, page.memory_spent):
        yield from markup_lines(card_html(card(view)))


def markup_lines(markup: str) -> list[str]:
    """The rows and paragraphs of a part of a page, their cells parted by bars."""
    rows = re.split(r"</tr>|</p>|</h2>|</dd>|</li>", markup)
    texts = (re.sub(r"\s*<[^>]*>\s*", "|", row) for row in rows)
    return [unescape(re.sub(r"\|+", " | ", text).strip(" |")) for text in texts if text.strip("|\n ")]


def json_lines(answer: AmpAnswer) -> Iterator[str]:
    """The answer as JSON, each finding a line of its own, without what is empty."""
    facts = json.loads(answer_json(answer), parse_float=lambda number: float(f"{float(number):.6g}"))
    findings: list[dict[str, Any]] = facts.pop("findings")
    for fact in (facts, *findings):
        said = {name: value for name, value in fact.items() if value not in (None, "", False, [])}
        yield json.dumps(said, ensure_ascii=False)
