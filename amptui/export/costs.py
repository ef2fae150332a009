"""Where the time of a step and the memory of a precision go, as far as the run measured it."""

from amptui import units
from amptui.export import cards
from amptui.export.markup import Markup, element
from amptui.findings import MemoryBreakdown
from amptui.telemetry.view import PrecisionTiming, SessionView


def time_spent(view: SessionView) -> Markup | None:
    """The parts of a step by precision, what its steps wait for, and what another precision can give."""
    if not view.timings:
        return None
    names = dict.fromkeys(phase.name for timing in view.timings for phase in timing.phases)
    rows = [[name, *(_phase(timing, name) for timing in view.timings)] for name in names]
    head = ["", *(cards.chip(timing.precision) for timing in view.timings)]
    said = [_bound(timing) for timing in view.timings]
    note = "Medians of timed steps, on the device's clock where it has one of its own, else on the host's."
    return cards.card("where the time goes", cards.table(head, rows), *said, cards.paragraph(note, "note"))


def _phase(timing: PrecisionTiming, name: str) -> str:
    found = next((phase for phase in timing.phases if phase.name == name), None)
    if found is None:
        return "–"
    return units.milliseconds(found.host_seconds if found.device_seconds is None else found.device_seconds)


def _bound(timing: PrecisionTiming) -> Markup | None:
    words = [f"{timing.bound}-bound" if timing.bound else "", timing.evidence, timing.limit]
    text = "; ".join(word for word in words if word)
    return element("p", cards.chip(timing.precision), f" {text}", class_="verdict") if text else None


def memory_spent(view: SessionView) -> Markup | None:
    """Kinds of tensors by precision, and torch's peak."""
    if not view.memory:
        return None
    kinds = dict.fromkeys((kind.kind, kind.dtype) for found in view.memory for kind in found.kinds)
    rows = [
        [f"{kind} {dtype}".rstrip(), *(_size(found, kind, dtype) for found in view.memory)]
        for kind, dtype in kinds
    ]
    rows.append(["peak", *(units.number_of_bytes(found.peak_allocated_bytes) for found in view.memory)])
    head = ["", *(cards.chip(found.precision) for found in view.memory)]
    return cards.card("where the memory goes", cards.table(head, rows))


def _size(found: MemoryBreakdown, kind: str, dtype: str) -> str:
    sizes = [each.size_bytes for each in found.kinds if (each.kind, each.dtype) == (kind, dtype)]
    return units.number_of_bytes(sum(sizes)) if sizes else "–"
