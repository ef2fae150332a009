"""The end of the page: the events, and the run's settings, versions and hardware."""

from collections.abc import Sequence

from amptui.base import units
from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.run_facts import detail_facts, run_facts
from amptui.reports.export.markup import Markup, card, details, element, facts, paragraph
from amptui.reports.export.recorded_run import RecordedRun
from amptui.telemetry.events import Event
from amptui.telemetry.view import SessionView

EVENTS_IN_SIGHT = 20
"""The newest events, which are visible at once; the others open on a click."""


def events(view: SessionView) -> Markup | None:
    """The events, newest first, each with details to open."""
    if not view.events:
        return None
    began = view.run.time if view.run is not None else view.events[-1].time
    first, others = view.events[:EVENTS_IN_SIGHT], view.events[EVENTS_IN_SIGHT:]
    older = details(f"{units.count(len(others))} older events", _list(others, began)) if others else None
    return card("events", _list(first, began), older)


def _list(shown: Sequence[Event], began: float) -> Markup:
    return element("ol", *(_event(event, began) for event in shown), class_="events")


def _event(event: Event, began: float) -> Markup:
    # Events before the start of the run have no run time.
    when = "" if event.time < began else units.duration(event.time - began)
    step = "" if event.step is None else f"step {event.step:,}"
    sign = "" if event.severity == "info" else units.SEVERITY_SIGNS[event.severity]
    text, more = event_text(event), event_details(event)
    opened = details(text, element("pre", "\n".join(more))) if more else None
    return element(
        "li",
        element("time", when),
        element("span", step, class_="step"),
        element("span", sign, class_=f"sign {event.severity}"),
        element("div", opened or text),
    )


def settings(recording: RecordedRun) -> Markup | None:
    """Model, data, device, versions and every setting, as the run recorded them."""
    run = recording.view.run
    passed_over = paragraph(recording.passed_over, "note")
    if run is None:
        return card("run details", passed_over)
    duration = ("duration", units.duration(recording.view.elapsed_seconds))
    return card(
        "run details",
        facts([("run", recording.name), *run_facts(run).pairs, duration]),
        *(details(group.title, facts(group.pairs)) for group in detail_facts(run)),
        passed_over,
    )
