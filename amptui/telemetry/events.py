"""What happened in a run, as facts: when, how bad it is, and the records that it is about.

Their list is bounded, newest first, with repeated events in one line.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, get_args

from amptui.records.findings import (
    Float8Layers,
    ModelCompiled,
    ModulesTraced,
    PrecisionsCompared,
    XRayTaken,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, WeightsSaved
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.ranks import RanksOverflowed
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
from amptui.telemetry.finding import FindingReported
from amptui.telemetry.health import judge_trace, judge_xray
from amptui.telemetry.scaling import ScalerWatch
from amptui.telemetry.trouble import SkipRow, Storm, with_ranks

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


Happening = (
    RunStarted
    | PrecisionChanged
    | LossScaleChanged
    | SkipRow
    | Storm
    | ModulesTraced
    | XRayTaken
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


def event_of(about: Happening, **line: Any) -> Event:
    """The event of what happened; ``line``: its other fields."""
    record = _record_of(about)
    step = record.steps if isinstance(record, RunFinished) else getattr(record, "step", None)
    kind = _KINDS.get(type(record), "note")
    if isinstance(record, LossScaleChanged):
        kind = "growth" if record.reason == "growth" else "skip"
    elif isinstance(record, ModulesTraced) and (record.first is not None or record.lost_count):
        kind = "nonfinite"
    return Event(record.time, step, kind, severity_of(about), about, **line)


def optimizer_of(about: Happening) -> str | None:
    """The name of the optimizer in whose steps it happened; None if it is of no optimizer."""
    # That of a run that starts is what it is called in torch.
    record = _record_of(about)
    return None if isinstance(record, RunStarted) else getattr(record, "optimizer", None)


def _record_of(about: Happening) -> Any:
    """The record that it is about, the newest of several."""
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
    XRayTaken: lambda xray: judge_xray(xray).severity,
    **dict.fromkeys(
        (SkipRow, Storm, FindingReported),
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


# ------------------------------------------------------------------------------------- their list

PRINTS = 300
"""Printed lines kept at most: user code that prints must not push out the warnings."""

OTHERS = 800
"""Lines of all other kinds kept at most."""


@dataclass(slots=True, eq=False)
class EventLog:
    """Lines to read; a line that counts steps moves to the top with each, so that problems stay visible."""

    _prints: deque[Event] = field(default_factory=lambda: deque(maxlen=PRINTS))
    """The oldest first."""
    _others: deque[Event] = field(default_factory=lambda: deque(maxlen=OTHERS))
    """The newest first."""
    first_optimizer: str = ""
    """What lines call a run's first optimizer; empty while it is the only one."""
    _trace: ModulesTraced | None = None
    counts: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(get_args(Severity), 0))
    """Lines of each severity so far, including those that fell out of the list."""
    _number: int = 0
    _newest: Event | None = field(default=None, init=False)
    _rows: dict[tuple[str, str], Event] = field(default_factory=dict, init=False)
    """The newest skips and storms of each kind and optimizer."""

    def __post_init__(self) -> None:
        # A log restored from a state has lines already.
        for event in sorted([*self._others, *self._prints], key=attrgetter("number")):
            self._newest = event
            self._follow(event)

    def events(self) -> tuple[Event, ...]:
        """The lines kept but for those printed, newest first."""
        return tuple(self._others)

    def printed(self) -> tuple[Event, ...]:
        """The printed lines kept, oldest first."""
        return tuple(self._prints)

    def add(self, about: Happening) -> None:
        """Add a line; if it repeats the newest line, count it there."""
        newest = self._newest
        if newest is not None and is_repeated(about, newest.about):
            self._replace(newest, replace(newest, times=newest.times + 1))
        else:
            self._append(about)

    def add_skip(self, record: StepSkipped, scaler: ScalerWatch) -> None:
        """Add a skipped step; skips in a row, and harmless ones near each other, are one line."""
        before, has_grown = scaler.skips_told, scaler.counts.has_grown
        self._add_row(SkipRow(first=record, last=record, skips_before=before, scale_has_grown=has_grown))

    def add_nonfinite(self, record: NonFinite, precision: str | None) -> None:
        """Add NaN or Inf found in a step that ran in ``precision``; those of a kind are one line."""
        self._add_row(Storm(first=record, last=record, in_float16=precision == "fp16"))

    def _add_row(self, row: SkipRow | Storm) -> None:
        """Let the line of such steps tell of one more, or begin another."""
        event = self._rows.get(_key_of(row))
        about: Any = None if event is None else event.about
        longer = about and about.with_step(row.last)
        self._explain(self._change(event, longer) if event is not None and longer else self._append(row))

    def add_trace(self, record: ModulesTraced) -> None:
        """Add the result of a trace, also to the lines of the steps that caused it."""
        self._trace = record
        for event in list(self._rows.values()):
            self._explain(event)
        self.add(record)

    def _explain(self, event: Event) -> None:
        """Add the newest trace to a line that it is about: it is of steps of the first optimizer."""
        about: Any = event.about
        if self._trace is not None and not optimizer_of(about):
            explained = about.with_trace(self._trace)
            if explained is not about:
                self._change(event, explained)

    def add_scale_change(self, record: LossScaleChanged) -> None:
        """Add a growth of the scale, or a backoff to the line of its skipped step."""
        event = self._rows.get(("skip", record.optimizer)) if record.reason == "backoff" else None
        row = None if event is None else event.about
        if event is not None and isinstance(row, SkipRow) and row.last.step == record.step:
            self._change(event, replace(row, scale_after=record.current))
        else:
            self.add(record)

    def add_overflow(self, record: RanksOverflowed) -> None:
        """Add to the lines of a step's trouble which ranks it came from: they tell of the first optimizer."""
        for event in list(self._rows.values()):
            if isinstance(event.about, SkipRow | Storm) and not optimizer_of(event.about):
                self._replace(event, replace(event, about=with_ranks(event.about, record)))

    def _append(self, about: Happening) -> Event:
        self._number += 1
        name = optimizer_of(about)
        label = "" if name is None else cut_label(name or self.first_optimizer)
        event = self._newest = event_of(about, number=self._number, optimizer=label)
        if isinstance(about, Printed):
            self._prints.append(event)
        else:
            self._others.appendleft(event)
        self._follow(event)
        self.counts[event.severity] += 1
        return event

    def _follow(self, event: Event) -> None:
        """Let the next events of its kind continue ``event``."""
        if isinstance(event.about, SkipRow | Storm):
            self._rows[_key_of(event.about)] = event

    def _change(self, event: Event, about: Happening) -> Event:
        """Let a line tell of more; it is counted under its new severity and rises to the top."""
        changed = event_of(about, times=event.times, number=event.number, optimizer=event.optimizer)
        self.counts[event.severity] -= 1
        self.counts[changed.severity] += 1
        self._replace(event, changed)
        if (place := _place_of(changed, self._others)) is not None:
            del self._others[place]
        self._others.appendleft(changed)
        return changed

    def _replace(self, event: Event, changed: Event) -> None:
        """Put ``changed`` in the place of ``event``."""
        lines = self._prints if isinstance(changed.about, Printed) else self._others
        if (place := _place_of(event, lines)) is not None:
            lines[place] = changed
        if self._newest is event:
            self._newest = changed
        self._follow(changed)


def _place_of(event: Event, lines: deque[Event]) -> int | None:
    """Where this very line is; lines that say the same are equal."""
    return next((place for place, line in enumerate(lines) if line is event), None)


def _key_of(row: SkipRow | Storm) -> tuple[str, str]:
    """The kind of trouble, and the optimizer in whose steps it is."""
    kind = "skip" if isinstance(row, SkipRow) else f"{row.first.what} {row.first.kind}"
    return kind, row.first.optimizer
