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
    ScaleMove,
    SkipRow,
    Storm,
    cut_label,
    event_of,
    is_repeated,
    optimizer_of,
    severity_of,
)
from amptui.telemetry.scaling import judge_skip

PRINTS = 300
"""Printed lines kept at most: user code that prints must not push out the warnings."""

OTHERS = 800
"""Lines of all other kinds kept at most."""

STORM_GAP_STEPS = 100
"""NaN or Inf of one kind is one line as long as it recurs within so many steps."""

KEPT_SKIPS = 5
"""Skips kept from each end of a row: a collapse has hundreds that look the same."""

TRACE_WITHIN_STEPS = 10
"""A trace up to so many steps after a skip belongs to it: hooks are installed once the host knows of it."""


@dataclass(slots=True, eq=False)
class EventLog:
    """Lines to read; a line that counts repeats moves to the top with each, so that problems stay visible."""

    _prints: "deque[_AnyLine]" = field(default_factory=lambda: deque(maxlen=PRINTS))
    _others: "deque[_AnyLine]" = field(default_factory=lambda: deque(maxlen=OTHERS))
    first_optimizer: str = ""
    """What lines call a run's first optimizer; empty while it is the only one."""
    _trace: ModulesTraced | None = None
    _skip_counts: Counter[str] = field(default_factory=Counter)
    """By optimizer."""
    _have_grown: dict[str, bool] = field(default_factory=dict)
    """The optimizers whose scale has grown."""
    _lines: Counter[Severity] = field(default_factory=Counter)
    _sequence: int = 0
    _changes: int = 0
    _newest: "_AnyLine | None" = field(default=None, init=False)
    _skips: dict[str, "_SkipLine"] = field(default_factory=dict, init=False)
    """The newest of each optimizer, as are the storms of each kind."""
    _storms: dict[tuple[str, str, str], "_StormLine"] = field(default_factory=dict, init=False)
    _bars: "dict[str, _PlainLine]" = field(default_factory=dict, init=False)
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
        """The lines kept, newest first."""
        if self._events is None:
            lines = sorted([*self._others, *self._prints], key=attrgetter("last_change"), reverse=True)
            self._events = tuple([line.event for line in lines])
        return self._events

    def add(self, about: Happening) -> None:
        """Add a line; if it repeats the newest line, count it there.

        A progress bar is one line, until the stream's next line takes its place.
        """
        if isinstance(about, Printed) and not self._takes_a_line(about):
            return
        newest = self._newest
        if isinstance(newest, _PlainLine) and is_repeated(about, newest.about):
            newest.times += 1
            newest.cached = self._events = None
        else:
            self._append(_PlainLine(about))

    def _takes_a_line(self, printed: Printed) -> bool:
        """Change or remove the stream's live line; return whether ``printed`` is to be added."""
        bar = self._bars.get(printed.stream)
        if bar is not None and bar not in self._prints:
            bar = None
        if bar is not None and printed.live and printed.text:
            bar.about, bar.cached = printed, None
            self._rise(bar)
            return False
        self._bars.pop(printed.stream, None)
        if bar is not None:
            self._prints.remove(bar)
            self._newest = None if self._newest is bar else self._newest
            self._events = None
        return not printed.live or bool(printed.text)

    def add_skip(self, record: StepSkipped) -> None:
        """Add a skipped step; skips in a row are one line."""
        name = record.optimizer
        line = self._skips.get(name)
        if line is not None and record.step == line.row.newest.step + 1:
            line.add_skip(record)
            self._changed(line)
        else:
            line = _SkipLine(record, self._skip_counts[name], name in self._have_grown)
            self._append(line)
        # Modules are traced in steps of the first optimizer.
        if self._trace is not None and not name:
            line.add_trace(self._trace)
        self._skip_counts[name] += 1

    def add_trace(self, record: ModulesTraced) -> None:
        """Add the result of a trace, also to the line of the skips that caused it."""
        self._trace = record
        skips = self._skips.get("")
        if skips is not None and skips.add_trace(record):
            self._changed(skips)
        self.add(record)

    def add_scale_change(self, record: LossScaleChanged, growth_interval: int | None) -> None:
        """Add a growth of the scale, or a backoff to the line of its skipped step."""
        line = self._skips.get(record.optimizer)
        if record.reason == "growth":
            self._have_grown[record.optimizer] = True
            self.add(ScaleMove(record=record, growth_interval=growth_interval))
        elif line is not None and record.step == line.row.newest.step:
            line.change(scale_after=record.current)
            self._changed(line)
        else:
            self.add(ScaleMove(record=record, growth_interval=None))

    def add_nonfinite(self, record: NonFinite, precision: str | None) -> None:
        """Add NaN or Inf found in a step that ran in ``precision``."""
        line = self._storms.get((record.what, record.kind, record.optimizer))
        if line is not None and 0 <= record.step - line.storm.last.step <= STORM_GAP_STEPS:
            line.change(last=record, times=line.storm.times + 1)
            self._changed(line)
        else:
            storm = Storm(first=record, last=record, times=1, in_float16=precision == "fp16")
            self._append(_StormLine(storm))

    def add_overflow(self, record: RanksOverflowed) -> None:
        """Add to the line of a step's trouble which ranks it came from."""
        lines: list[_SkipLine | _StormLine] = [*self._skips.values(), *self._storms.values()]
        for line in lines:
            if line.add_ranks(record):
                self._events = None

    def _append(self, line: "_AnyLine") -> None:
        self._sequence += 1
        line.sequence = self._sequence
        if (name := line.optimizer_name) is not None:
            line.optimizer = cut_label(name or self.first_optimizer)
        is_printed = isinstance(line, _PlainLine) and isinstance(line.about, Printed)
        (self._prints if is_printed else self._others).append(line)
        self._follow(line)
        self._lines[line.severity] += 1
        line.counted_as = line.severity
        self._rise(line)

    def _follow(self, line: "_AnyLine") -> None:
        """Let the next events of its kind continue ``line``."""
        self._newest = line
        if isinstance(line, _PlainLine) and isinstance(line.about, Printed) and line.about.live:
            self._bars[line.about.stream] = line
        elif isinstance(line, _SkipLine):
            self._skips[line.optimizer_name] = line
        elif isinstance(line, _StormLine):
            first = line.storm.first
            self._storms[first.what, first.kind, first.optimizer] = line

    def _changed(self, line: "_Line") -> None:
        """Count a line, which was counted before, under its new severity."""
        self._rise(line)
        if line.severity != line.counted_as:
            self._lines[line.counted_as] -= 1
            self._lines[line.severity] += 1
            line.counted_as = line.severity

    def _rise(self, line: "_Line") -> None:
        """Put ``line`` on top."""
        self._changes += 1
        line.last_change = self._changes
        self._events = None


@dataclass(slots=True, eq=False, kw_only=True)
class _Line:
    """A line whose event is made on demand, since a storm changes its line at each step."""

    sequence: int = 0
    optimizer: str = ""
    """What a screen calls the optimizer of its steps, if there were several when it was added."""
    last_change: int = 0
    counted_as: Severity = "info"
    cached: Event | None = field(default=None, init=False)

    @property
    def severity(self) -> Severity:
        raise NotImplementedError

    @property
    def optimizer_name(self) -> str | None:
        """The optimizer in whose steps it happened, empty for the first; None for other lines."""
        raise NotImplementedError

    @property
    def event(self) -> Event:
        if self.cached is None:
            self.cached = replace(self._event(), number=self.sequence, optimizer=self.optimizer)
        return self.cached

    def _event(self) -> Event:
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class _PlainLine(_Line):
    """What happened, and how often in a row."""

    about: Happening
    times: int = 1

    @property
    def severity(self) -> Severity:
        return severity_of(self.about)

    @property
    def optimizer_name(self) -> str | None:
        return optimizer_of(self.about)

    def _event(self) -> Event:
        return replace(event_of(self.about), times=self.times)


@dataclass(slots=True, eq=False)
class _SkipLine(_Line):
    """Steps in a row that the scaler skipped, how far the scale fell, and a trace of them."""

    _began: StepSkipped
    _skips_before: int
    _scale_has_grown: bool
    row: SkipRow = field(default_factory=SkipRow)
    _severity: Severity = "info"

    def __post_init__(self) -> None:
        if not self.row.count:
            self.add_skip(self._began)

    @property
    def severity(self) -> Severity:
        return self._severity

    @property
    def optimizer_name(self) -> str:
        return self._began.optimizer

    def add_skip(self, skip: StepSkipped) -> None:
        row = self.row
        is_early = row.count < KEPT_SKIPS
        first = (*row.first, skip) if is_early else row.first
        last = row.last if is_early else (*row.last, skip)[-KEPT_SKIPS:]
        self.change(count=row.count + 1, first=first, last=last, scale_after=None)

    def add_trace(self, trace: ModulesTraced) -> bool:
        """Add a trace if it is about these skips and no earlier one named a module."""
        row = self.row
        if row.trace is not None and row.trace.first is not None:
            return False
        if not self._began.step <= trace.step <= row.newest.step + TRACE_WITHIN_STEPS:
            return False
        self.change(trace=trace)
        return True

    def add_ranks(self, record: RanksOverflowed) -> bool:
        """Add the ranks to the skip of that step, if it is kept; they tell of the first optimizer."""
        if self.optimizer_name or record.step not in {
            skip.step for skip in (*self.row.first, *self.row.last)
        }:
            return False
        first, last = (
            tuple(replace(skip, ranks=record.ranks) if skip.step == record.step else skip for skip in skips)
            for skips in (self.row.first, self.row.last)
        )
        self.change(first=first, last=last)
        return True

    def change(self, **facts: Any) -> None:
        row = replace(self.row, **facts)
        meaning, self._severity = judge_skip(
            row.newest,
            scale_after=row.scale_after,
            skips_before=self._skips_before + row.count - 1,
            scale_has_grown=self._scale_has_grown,
        )
        self.row, self.cached = replace(row, meaning=meaning), None

    def _event(self) -> Event:
        newest = self.row.newest
        return Event(newest.time, newest.step, "skip", self._severity, self.row)


@dataclass(slots=True, eq=False)
class _StormLine(_Line):
    """NaN or Inf of one kind, and the steps in which it recurred."""

    storm: Storm

    @property
    def severity(self) -> Severity:
        """Buffers are not the scaler's to check, nor are steps outside float16: their weights changed."""
        return "warning" if self.storm.in_float16 and self.storm.first.what != "buffer" else "error"

    @property
    def optimizer_name(self) -> str:
        return self.storm.first.optimizer

    def add_ranks(self, record: RanksOverflowed) -> bool:
        """Add the ranks to what was found in that step, if it is kept."""
        ends = {"first": self.storm.first, "last": self.storm.last}
        changed = {
            end: replace(bad, ranks=record.ranks) for end, bad in ends.items() if bad.step == record.step
        }
        if self.optimizer_name or not changed:
            return False
        self.change(**changed)
        return True

    def change(self, **facts: Any) -> None:
        self.storm, self.cached = replace(self.storm, **facts), None

    def _event(self) -> Event:
        last = self.storm.last
        return Event(last.time, last.step, "nonfinite", self.severity, self.storm)


_AnyLine = _PlainLine | _SkipLine | _StormLine
