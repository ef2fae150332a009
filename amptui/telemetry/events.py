"""What happened in a run, as facts: when, how bad it is, and the records that it is about."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from amptui.records.findings import (
    Float8Layers,
    ModelCompiled,
    ModulesTraced,
    PrecisionsCompared,
    XRayTaken,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, WeightsSaved
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.run import (
    MIN_SOUND_SCALE,
    EpochFinished,
    LossScaleChanged,
    NonFinite,
    Note,
    PauseChanged,
    PrecisionChanged,
    Printed,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    Severity,
    StepSkipped,
    Validated,
)
from amptui.telemetry.finding import Finding, FindingReported
from amptui.telemetry.health import (
    judge_trace,
    judge_xray,
    least_agreeing,
)
from amptui.telemetry.trouble import SkipRow, Storm

XRAY_WORST_LAYERS = 8
"""The event of an X-ray keeps so many layers, those that agree least."""

MAX_LABEL = 40
"""Characters of what an optimizer is called; a name that is longer is cut."""

EventKind = Literal[
    "switch",
    "skip",
    "growth",
    "nonfinite",
    "epoch",
    "pause",
    "note",
    "print",
    "finished",
    "failed",
    "compared",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class XRaySummary:
    """An X-ray with its ``XRAY_WORST_LAYERS`` only, and what all of them come to."""

    record: XRayTaken
    finding: Finding


Happening = (
    RunStarted
    | PrecisionChanged
    | LossScaleChanged
    | SkipRow
    | Storm
    | ModulesTraced
    | XRaySummary
    | FindingReported
    | PrecisionsCompared
    | EpochFinished
    | Validated
    | ModelCompiled
    | Float8Layers
    | PauseChanged
    | Note
    | Printed
    | CheckpointWritten
    | WeightsSaved
    | RunResumed
    | KeepingChanged
    | OptimizerFollowed
    | GradientsDropped
    | RunFinished
    | RunFailed
)
"""What is an event: a record, some with what else there is to say of it, or a row of records."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event list."""

    time: float
    step: int | None
    kind: EventKind
    severity: Severity
    about: Happening
    times: int = 1
    """How often it happened in a row."""
    optimizer: str = ""
    """Whose step it is, as a screen calls it; empty where a run has one optimizer only."""
    number: int = field(default=0, compare=False)
    """Lines are numbered in order of creation; a line that counts repeats keeps its number."""


def event_of(about: Happening) -> Event:
    """The event of what happened."""
    record = _record_of(about)
    step = record.steps if isinstance(record, RunFinished) else getattr(record, "step", None)
    kind = _KINDS.get(type(record), "note")
    if isinstance(record, LossScaleChanged):
        kind = "growth" if record.reason == "growth" else "skip"
    elif isinstance(record, ModulesTraced) and (record.first is not None or record.lost_count):
        kind = "nonfinite"
    return Event(record.time, step, kind, severity_of(about), about)


def optimizer_of(about: Happening) -> str | None:
    """The name of the optimizer in whose steps it happened; None if it is of no optimizer."""
    # That of a run that starts is what it is called in torch.
    record = _record_of(about)
    return None if isinstance(record, RunStarted) else getattr(record, "optimizer", None)


def _record_of(about: Happening) -> Any:
    """The record that it is about, the newest of several."""
    if isinstance(about, XRaySummary):
        return about.record
    return about.last if isinstance(about, SkipRow | Storm) else about


_KINDS: Mapping[type[Any], EventKind] = {
    Printed: "print",
    StepSkipped: "skip",
    NonFinite: "nonfinite",
    PrecisionChanged: "switch",
    PrecisionsCompared: "compared",
    EpochFinished: "epoch",
    Validated: "epoch",
    PauseChanged: "pause",
    RunFinished: "finished",
    RunFailed: "failed",
}
"""Of the others the kind is ``note``, or follows from what they hold."""


def cut_label(name: str) -> str:
    """What an optimizer of that name is called."""
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


def summary_of_xray(record: XRayTaken) -> XRaySummary:
    """The verdict on an X-ray, and the layers that agree least."""
    worst = least_agreeing(record.layers)[:XRAY_WORST_LAYERS]
    summary = replace(record, layers=tuple(worst), operators=(), output_dtypes={})
    return XRaySummary(record=summary, finding=judge_xray(record))


def is_repeated(about: Happening, before: Happening) -> bool:
    """Whether the same happened as ``before`` but for the time; what belongs to a step never does."""
    if isinstance(about, Printed):
        return isinstance(before, Printed) and about.text == before.text
    if isinstance(about, KeepingChanged) and isinstance(before, KeepingChanged):
        return about == replace(before, time=about.time, unsaved=about.unsaved)
    return isinstance(about, Note) and isinstance(before, Note) and about == replace(before, time=about.time)


def severity_of(about: Happening) -> Severity:
    """How bad it is: an error ends or stops training, is no longer saved, or makes the result doubtful."""
    judge = _SEVERITIES.get(type(about))
    return "info" if judge is None else judge(about)


_SEVERITIES: Mapping[type[Any], Callable[[Any], Severity]] = {
    Note: lambda note: note.severity,
    ModulesTraced: lambda trace: judge_trace(trace).severity,
    **dict.fromkeys(
        (SkipRow, Storm, XRaySummary, FindingReported),
        lambda about: about.finding.severity,
    ),
    RunResumed: lambda resumed: "warning" if resumed.restarts > 0 else "info",
    GradientsDropped: lambda _: "warning",
    LossScaleChanged: lambda change: (
        "error" if change.reason == "backoff" and change.current < MIN_SOUND_SCALE else "info"
    ),
    PauseChanged: lambda pause: "error" if pause.reason else "info",
    KeepingChanged: lambda change: "error" if change.trouble else "info",
    RunFailed: lambda _: "error",
}
"""All others are ``info``."""
