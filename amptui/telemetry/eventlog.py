"""The session's event list: bounded, newest first, with repeated events in one line."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from amptui.records.findings import ModulesTraced
from amptui.records.ranks import RanksOverflowed
from amptui.records.run import LossScaleChanged, NonFinite, Printed, Severity, StepSkipped
from amptui.telemetry.events import (
    Event,
    Happening,
    cut_label,
    event_of,
    is_repeated,
    optimizer_of,
    severity_of,
)
from amptui.telemetry.scaling import ScalerWatch
from amptui.telemetry.trouble import SkipRow, Storm, with_ranks

PRINTS = 300
"""Printed lines kept at most: user code that prints must not push out the warnings."""

OTHERS = 800
"""Lines of all other kinds kept at most."""


@dataclass(slots=True, eq=False)
class EventLog:
    """Lines to read; a line that counts repeats moves to the top with each, so that problems stay visible."""

    _prints: "deque[_Line]" = field(default_factory=lambda: deque(maxlen=PRINTS))
    _others: "deque[_Line]" = field(default_factory=lambda: deque(maxlen=OTHERS))
    first_optimizer: str = ""
    """What lines call a run's first optimizer; empty while it is the only one."""
    _trace: ModulesTraced | None = None
    _lines: Counter[Severity] = field(default_factory=Counter)
    _sequence: int = 0
    _changes: int = 0
    _newest: "_Line | None" = field(default=None, init=False)
    _rows: "dict[tuple[str, str], _Line]" = field(default_factory=dict, init=False)
    """The newest skips and storms of each kind and optimizer."""
    """The live line of each stream of output."""
    _events: tuple[Event, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # A log restored from a state has lines already.
        for line in sorted([*self._others, *self._prints], key=attrgetter("sequence")):
            self._follow(line)

    @property
    def warnings(self) -> int:
        """Warnings so far, including those that fell out of the list."""
        return self._lines["warning"]

    @property
    def errors(self) -> int:
        """Errors so far, including those that fell out of the list."""
        return self._lines["error"]

    def events(self) -> tuple[Event, ...]:
        """The lines kept but for those printed, newest first."""
        if self._events is None:
            lines = sorted(self._others, key=attrgetter("last_change"), reverse=True)
            self._events = tuple([line.event for line in lines])
        return self._events

    def printed(self) -> tuple[Event, ...]:
        """The printed lines kept, oldest first."""
        return tuple([line.event for line in self._prints])

    def add(self, about: Happening) -> None:
        """Add a line; if it repeats the newest line, count it there."""
        newest = self._newest
        if newest is not None and is_repeated(about, newest.about):
            newest.times += 1
            newest.cached = self._events = None
        else:
            self._append(_Line(about))

    def add_skip(self, record: StepSkipped, scaler: ScalerWatch) -> None:
        """Add a skipped step; skips in a row, and harmless ones near each other, are one line."""
        before, has_grown = scaler.skips_told, scaler.has_grown
        self._add_row(SkipRow(first=record, last=record, skips_before=before, scale_has_grown=has_grown))

    def add_nonfinite(self, record: NonFinite, precision: str | None) -> None:
        """Add NaN or Inf found in a step that ran in ``precision``; those of a kind are one line."""
        self._add_row(Storm(first=record, last=record, in_float16=precision == "fp16"))

    def _add_row(self, row: SkipRow | Storm) -> None:
        """Let the line of such steps tell of one more, or begin another."""
        line = self._rows.get(_key_of(row))
        about: Any = None if line is None else line.about
        longer = about and about.with_step(row.last)
        if line is not None and longer is not None:
            self._change(line, longer)
        else:
            line = self._append(_Line(row))
        self._explain(line)

    def add_trace(self, record: ModulesTraced) -> None:
        """Add the result of a trace, also to the lines of the steps that caused it."""
        self._trace = record
        for line in self._rows.values():
            self._explain(line)
        self.add(record)

    def _explain(self, line: "_Line") -> None:
        """Add the newest trace to a line that it is about: it is of steps of the first optimizer."""
        about: Any = line.about
        if self._trace is not None and not optimizer_of(about):
            explained = about.with_trace(self._trace)
            if explained is not about:
                self._change(line, explained)

    def add_scale_change(self, record: LossScaleChanged) -> None:
        """Add a growth of the scale, or a backoff to the line of its skipped step."""
        line = self._rows.get(("skip", record.optimizer)) if record.reason == "backoff" else None
        row = None if line is None else line.about
        if line is not None and isinstance(row, SkipRow) and row.last.step == record.step:
            self._change(line, replace(row, scale_after=record.current))
        else:
            self.add(record)

    def add_overflow(self, record: RanksOverflowed) -> None:
        """Add to the lines of a step's trouble which ranks it came from: they tell of the first optimizer."""
        for line in self._rows.values():
            if isinstance(line.about, SkipRow | Storm) and not optimizer_of(line.about):
                line.about = with_ranks(line.about, record)
                line.cached = self._events = None

    def _append(self, line: "_Line") -> "_Line":
        self._sequence += 1
        line.sequence = self._sequence
        if (name := optimizer_of(line.about)) is not None:
            line.optimizer = cut_label(name or self.first_optimizer)
        (self._prints if isinstance(line.about, Printed) else self._others).append(line)
        self._follow(line)
        line.severity = severity_of(line.about)
        self._lines[line.severity] += 1
        self._rise(line)
        return line

    def _follow(self, line: "_Line") -> None:
        """Let the next events of its kind continue ``line``."""
        self._newest, about = line, line.about
        if isinstance(about, SkipRow | Storm):
            self._rows[_key_of(about)] = line

    def _change(self, line: "_Line", about: Happening) -> None:
        """Let a line tell of more; it is counted under its new severity and rises to the top."""
        line.about, line.cached = about, None
        self._lines[line.severity] -= 1
        line.severity = severity_of(about)
        self._lines[line.severity] += 1
        self._rise(line)

    def _rise(self, line: "_Line") -> None:
        """Put ``line`` on top."""
        self._changes += 1
        line.last_change = self._changes
        self._events = None


def _key_of(row: SkipRow | Storm) -> tuple[str, str]:
    """The kind of trouble, and the optimizer in whose steps it is."""
    kind = "skip" if isinstance(row, SkipRow) else f"{row.first.what} {row.first.kind}"
    return kind, row.first.optimizer


@dataclass(slots=True, eq=False)
class _Line:
    """A line whose event is made on demand, since a storm changes its line at each step."""

    about: Happening
    times: int = 1
    sequence: int = 0
    optimizer: str = ""
    """What a screen calls the optimizer of its steps, if there were several when it was added."""
    last_change: int = 0
    severity: Severity = "info"
    """That it is counted under."""
    cached: Event | None = field(default=None, init=False)

    @property
    def event(self) -> Event:
        if self.cached is None:
            self.cached = replace(
                event_of(self.about), times=self.times, number=self.sequence, optimizer=self.optimizer
            )
        return self.cached
