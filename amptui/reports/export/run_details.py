"""The end of the page: the events, and the run's settings, versions and hardware."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from amptui.base import strictjson, units
from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.labels import data_label
from amptui.diagnosis.rank_words import size_words
from amptui.records.run import DataInfo, RunStarted
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


def _list(found: Sequence[Event], began: float) -> Markup:
    return element("ol", *(_event(event, began) for event in found), class_="events")


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
    return card(
        "run details",
        facts(_run(recording, run)),
        _group("settings", run.config),
        _group("versions", run.versions),
        _group("hardware", run.hardware),
        passed_over,
    )


def _run(recording: RecordedRun, run: RunStarted) -> list[tuple[str, str]]:
    return [
        ("run", recording.name),
        ("started", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.time))),
        ("duration", units.duration(recording.view.elapsed_seconds)),
        ("model", f"{run.model}, {units.count(run.parameters)} parameters"),
        ("data", _data(run.data)),
        ("device", f"{run.device_name} ({run.device})"),
        ("ranks", size_words(run.world_size, run) if run.world_size > 1 else ""),
        ("batch", "" if run.batch_size is None else f"{units.count(run.batch_size)} samples"),
        (
            "global batch",
            "" if run.global_batch_size is None else f"{units.count(run.global_batch_size)} samples",
        ),
        ("epochs", _epochs(run)),
        *((f"no {name}", reason) for name, reason in run.unsupported.items()),
    ]


def _samples(size: int | None) -> str:
    return "" if size is None else f"{units.count(size)} samples"


def _epochs(run: RunStarted) -> str:
    steps = "" if run.steps_per_epoch is None else f" of {units.count(run.steps_per_epoch)} steps"
    return f"{units.count(run.total_epochs or None)}{steps}"


def _data(data: DataInfo) -> str:
    samples = "" if data.samples is None else f", {units.count(data.samples)} samples"
    return f"{data_label(data)}{samples}"


def _group(title: str, values: Mapping[str, Any]) -> Markup | None:
    return details(title, facts((name, _text(value)) for name, value in values.items()))


def _text(value: object) -> str:
    plain = strictjson.plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
