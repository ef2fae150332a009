"""The session's event list: bounded, newest first, with repeated events in one line."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from operator import attrgetter

from amptui import units
from amptui.findings import ModulesTraced
from amptui.records import LossScaleChanged, NonFinite, Printed, Severity, StepSkipped
from amptui.telemetry import events, nonfinite, scaling
from amptui.telemetry.nonfinite import Judgement
from amptui.telemetry.postmortem import PostMortem
from amptui.telemetry.view import Event

PRINTS = 200
"""Printed lines kept at most: user code that prints must not push out the warnings."""

OTHERS = 800
"""Lines of all other kinds kept at most."""

STORM_GAP_STEPS = 100
"""NaN or Inf of one kind is one line as long as it recurs within so many steps."""

_BY_SEQUENCE = attrgetter("sequence")
_BY_LAST_CHANGE = attrgetter("last_change")


@dataclass(slots=True, eq=False)
class EventLog:
    """Lines to read; a line that counts repeats moves to the top with each, so that problems stay visible."""

    _prints: "deque[_AnyLine]" = field(default_factory=lambda: deque(maxlen=PRINTS))
    _others: "deque[_AnyLine]" = field(default_factory=lambda: deque(maxlen=OTHERS))
    _trace: ModulesTraced | None = None
    _skip_count: int = 0
    _scale_has_grown: bool = False
    _lines: Counter[Severity] = field(default_factory=Counter)
    _sequence: int = 0
    _changes: int = 0
    _newest: "_AnyLine | None" = field(default=None, init=False)
    _skips: "_SkipLine | None" = field(default=None, init=False)
    """The newest, as are the storms of each kind."""
    _storms: dict[tuple[str, str], "_StormLine"] = field(default_factory=dict, init=False)
    _events: tuple[Event, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # A log restored from a state has lines already.
        for line in sorted([*self._others, *self._prints], key=_BY_SEQUENCE):
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
            lines = sorted([*self._others, *self._prints], key=_BY_LAST_CHANGE, reverse=True)
            self._events = tuple([line.event for line in lines])
        return self._events

    def add(self, event: Event) -> None:
        """Add a line; if it repeats the newest line, count it there."""
        newest = self._newest
        if isinstance(newest, _PlainLine) and newest.says(event):
            newest.repeat()
            self._events = None
        else:
            self._append(_PlainLine(event))

    def add_print(self, record: Printed) -> None:
        """Add a line that user code printed."""
        self.add(Event(record.time, None, "print", "info", record.text.rstrip()))

    def add_skip(self, record: StepSkipped) -> None:
        """Add a skipped step; skips in a row are one line."""
        line = self._skips
        if line is not None and record.step == line.last_step + 1:
            line.add_skip(record)
            self._changed(line)
        else:
            line = _SkipLine(PostMortem([record]), self._skip_count, self._scale_has_grown)
            self._append(line)
        if self._trace is not None:
            line.add_trace(self._trace)
        self._skip_count += 1

    def add_trace(self, record: ModulesTraced) -> None:
        """Add the result of a trace, also to the line of the skips that caused it."""
        self._trace = record
        if self._skips is not None and self._skips.add_trace(record):
            self._changed(self._skips)
        self.add(events.modules_traced(record))

    def add_scale_change(self, record: LossScaleChanged, growth_interval: int | None) -> None:
        """Add a growth of the scale, or a backoff to the line of its skipped step."""
        line = self._skips
        if record.reason == "growth":
            self._scale_has_grown = True
            self.add(events.loss_scale_changed(record, growth_interval))
        elif line is not None and record.step == line.last_step:
            line.add_backoff(record)
            self._changed(line)
        else:
            self.add(events.loss_scale_changed(record, None))

    def add_nonfinite(self, record: NonFinite, precision: str | None) -> None:
        """Add NaN or Inf found in a step that ran in ``precision``."""
        storm = self._storms.get((record.what, record.kind))
        if storm is not None and storm.continues_at(record.step):
            storm.add(record)
            self._changed(storm)
        else:
            self._append(_StormLine(record, nonfinite.judge_nonfinite(record, precision), record))

    def _append(self, line: "_AnyLine") -> None:
        self._sequence += 1
        line.sequence = self._sequence
        (self._prints if line.event.kind == "print" else self._others).append(line)
        self._follow(line)
        self._lines[line.severity] += 1
        line.counted_as = line.severity
        self._rise(line)

    def _follow(self, line: "_AnyLine") -> None:
        """Let the next events of its kind continue ``line``."""
        self._newest = line
        if isinstance(line, _SkipLine):
            self._skips = line
        elif isinstance(line, _StormLine):
            self._storms[line.key] = line

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
    """A line whose event is written on demand, since a storm changes its line at each step."""

    sequence: int = 0
    last_change: int = 0
    counted_as: Severity = "info"
    _event: Event | None = field(default=None, init=False)

    @property
    def severity(self) -> Severity:
        raise NotImplementedError

    @property
    def event(self) -> Event:
        if self._event is None:
            self._event = replace(self._written(), number=self.sequence)
        return self._event

    def _written(self) -> Event:
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class _PlainLine(_Line):
    """An event, and how often it occurred in a row."""

    _first: Event
    _times: int = 1

    @property
    def severity(self) -> Severity:
        return self._first.severity

    def says(self, event: Event) -> bool:
        first = self._first
        return (first.text, first.kind, first.severity, first.detail) == (
            event.text,
            event.kind,
            event.severity,
            event.detail,
        )

    def repeat(self) -> None:
        self._times += 1
        self._event = None

    def _written(self) -> Event:
        if self._times == 1:
            return self._first
        return replace(self._first, text=f"{self._first.text} (×{units.count(self._times)})")


@dataclass(slots=True, eq=False)
class _SkipLine(_Line):
    """Steps in a row that the scaler skipped, and how far the scale fell."""

    _post_mortem: PostMortem
    _skips_before: int
    _scale_has_grown: bool
    _scale_after: float | None = None
    _judgement: Judgement = field(init=False)

    def __post_init__(self) -> None:
        self._judge()

    @property
    def severity(self) -> Severity:
        return self._judgement.verdict.severity

    @property
    def last_step(self) -> int:
        return self._post_mortem.last.step

    def add_skip(self, skip: StepSkipped) -> None:
        self._scale_after = None
        self._post_mortem.add(skip)
        self._judge()

    def add_backoff(self, change: LossScaleChanged) -> None:
        self._scale_after = change.current
        self._judge()

    def add_trace(self, trace: ModulesTraced) -> bool:
        """Add a trace; false if it is not about these skips."""
        told = self._post_mortem.add_trace(trace)
        if told:
            self._judge()
        return told

    def _judge(self) -> None:
        self._event = None
        self._judgement = scaling.judge_skip(
            self._post_mortem.last,
            scale_after=self._scale_after,
            skips_before=self._skips_before + self._post_mortem.count - 1,
            scale_has_grown=self._scale_has_grown,
            began=self._post_mortem.began,
        )

    def _written(self) -> Event:
        first, last, steps = self._post_mortem.first, self._post_mortem.last, self._post_mortem.count
        skipped = (
            "step skipped"
            if steps == 1
            else f"{units.count(steps)} steps in a row skipped {_span(first.step, last.step)}"
        )
        scale = events.scale_move(first.loss_scale, self._scale_now())
        where = f", non-finite gradient in {nonfinite.named(last.names, last.count)}" if last.names else ""
        text = f"overflow: {skipped}, scale {scale}{where}; {self._judgement.verdict.text}"
        detail = "\n".join([self._judgement.explanation, *self._post_mortem.lines()])
        return Event(last.time, last.step, "skip", self.severity, text, detail)

    def _scale_now(self) -> float | None:
        """The scale after the newest skip or, if that is unknown, the lowest known one."""
        if self._scale_after is not None:
            return self._scale_after
        return None if self._post_mortem.count == 1 else self._post_mortem.last.loss_scale


@dataclass(slots=True, eq=False)
class _StormLine(_Line):
    """NaN or Inf of one kind, and the steps in which it recurred."""

    _first: NonFinite
    _judgement: Judgement
    _last: NonFinite
    _times: int = 1

    @property
    def severity(self) -> Severity:
        return self._judgement.verdict.severity

    @property
    def key(self) -> tuple[str, str]:
        return self._first.what, self._first.kind

    def continues_at(self, step: int) -> bool:
        return 0 <= step - self._last.step <= STORM_GAP_STEPS

    def add(self, found: NonFinite) -> None:
        self._last = found
        self._times += 1
        self._event = None

    def _written(self) -> Event:
        first, last = self._first, self._last
        text = nonfinite.what_is_not_finite(first)
        if self._times > 1:
            text += f", {units.count(self._times)} times {_span(first.step, last.step)}"
        text += f"; {self._judgement.verdict.text}"
        found = dict.fromkeys(line for line in map(nonfinite.found_line, (first, last)) if line)
        detail = "\n".join([self._judgement.explanation, *found])
        return Event(last.time, last.step, "nonfinite", self.severity, text, detail)


_AnyLine = _PlainLine | _SkipLine | _StormLine


def _span(first_step: int, last_step: int) -> str:
    """``(612–614)``."""
    return f"({units.count(first_step)}–{units.count(last_step)})"
