"""What happened in a run, as facts: when, how bad it is, and the records that it is about."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from amptui.records.findings import (
    Float8Layers,
    ModelCompiled,
    ModulesTraced,
    PrecisionsCompared,
    XRayTaken,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.ranks import RankLost, RanksAwaited, RanksDisagree, RanksOverflowed, StacksTaken
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
from amptui.telemetry.finding import Finding
from amptui.telemetry.health import (
    found_origin,
    judge_nonfinite,
    judge_trace,
    judge_xray,
    least_agreeing,
)
from amptui.telemetry.scaling import judge_skip
from amptui.telemetry.stragglers import SlowRankNews
from amptui.telemetry.underflow import UnderflowFound

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


KEPT_SKIPS = 5
"""Skips kept from each end of a row: a collapse has hundreds that look the same."""

TRACE_WITHIN_STEPS = 10
"""A trace up to so many steps after trouble belongs to it: hooks are installed once the host knows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRow:
    """Steps in a row that the scaler skipped."""

    first: tuple[StepSkipped, ...]
    """The first ``KEPT_SKIPS`` of them."""
    last: tuple[StepSkipped, ...] = ()
    """The newest ``KEPT_SKIPS`` of the others."""
    count: int = 1
    scale_after: float | None = None
    """The scale after the newest; None if it is not known yet."""
    skips_before: int = 0
    """The run's earlier skips."""
    scale_has_grown: bool = False
    """Whether the scale had ever grown in this run."""
    trace: ModulesTraced | None = None
    """A trace during or right after them: the first that found an origin, else the newest."""

    @property
    def newest(self) -> StepSkipped:
        """The row's newest skip."""
        return (self.last or self.first)[-1]

    @property
    def finding(self) -> Finding:
        """What they mean."""
        return judge_skip(
            self.newest,
            scale_after=self.scale_after,
            skips_before=self.skips_before + self.count - 1,
            scale_has_grown=self.scale_has_grown,
            trace=self.trace,
        )

    def with_skip(self, skip: StepSkipped) -> "SkipRow":
        """With the next step, which was skipped, too."""
        is_early = self.count < KEPT_SKIPS
        first = (*self.first, skip) if is_early else self.first
        last = self.last if is_early else (*self.last, skip)[-KEPT_SKIPS:]
        return replace(self, count=self.count + 1, first=first, last=last, scale_after=None)

    def with_trace(self, trace: ModulesTraced) -> "SkipRow":
        """With a trace, if it is about these steps and no earlier one found an origin."""
        explains = _explains(trace, self.trace, self.first[0].step, self.newest.step)
        return replace(self, trace=trace) if explains else self

    def with_ranks(self, record: RanksOverflowed) -> "SkipRow":
        """With the ranks that a step's overflow came from, if that step is kept."""
        first, last = (_with_ranks(skips, record) for skips in (self.first, self.last))
        return replace(self, first=first, last=last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """NaN or Inf of one kind in one place, and the steps in which it recurred."""

    first: NonFinite
    last: NonFinite
    times: int
    in_float16: bool
    """Whether the first such step ran in ``fp16``."""
    trace: ModulesTraced | None = None
    """Of a loss, as in :class:`SkipRow`."""

    @property
    def finding(self) -> Finding:
        """What it means."""
        return judge_nonfinite(self.first, self.trace, in_float16=self.in_float16)

    def with_trace(self, trace: ModulesTraced) -> "Storm":
        """With a trace, if it is about the loss of these steps and no earlier one found an origin."""
        explains = _explains(trace, self.trace, self.first.step, self.last.step)
        return replace(self, trace=trace) if explains and self.first.what == "loss" else self

    def with_ranks(self, record: RanksOverflowed) -> "Storm":
        """With the ranks that NaN or Inf came from in a step, if that step is kept."""
        first, last = _with_ranks((self.first, self.last), record)
        return replace(self, first=first, last=last)


_Bad = TypeVar("_Bad", StepSkipped, NonFinite)


def _with_ranks(steps: tuple[_Bad, ...], record: RanksOverflowed) -> tuple[_Bad, ...]:
    return tuple(replace(bad, ranks=record.ranks) if bad.step == record.step else bad for bad in steps)


def _explains(trace: ModulesTraced, before: ModulesTraced | None, first_step: int, last_step: int) -> bool:
    if before is trace or (before is not None and found_origin(before)):
        return False
    return first_step <= trace.step <= last_step + TRACE_WITHIN_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMove:
    """A growth of the loss scale, or a backoff without a record of its skipped step."""

    record: LossScaleChanged
    growth_interval: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class XRaySummary:
    """An X-ray with its ``XRAY_WORST_LAYERS`` only, and what all of them come to."""

    record: XRayTaken
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOver:
    """The result of a comparison, and what it was measured on."""

    record: PrecisionsCompared
    run: RunStarted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A resumed run, and the device that it ran on before."""

    record: RunResumed
    device_before: str


Happening = (
    RunStarted
    | PrecisionChanged
    | ScaleMove
    | SkipRow
    | Storm
    | ModulesTraced
    | XRaySummary
    | UnderflowFound
    | ComparisonOver
    | EpochFinished
    | Validated
    | ModelCompiled
    | Float8Layers
    | PauseChanged
    | Note
    | Printed
    | CheckpointWritten
    | WeightsSaved
    | Resumption
    | KeepingChanged
    | ViewersChanged
    | RanksDisagree
    | RanksAwaited
    | StacksTaken
    | RankLost
    | SlowRankNews
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
    record: Any = about
    if isinstance(about, (ScaleMove, XRaySummary, ComparisonOver, Resumption)):
        record = about.record
    elif isinstance(about, (SkipRow, Storm)):
        record = about.newest if isinstance(about, SkipRow) else about.last
    step = record.steps if isinstance(record, RunFinished) else getattr(record, "step", None)
    kind = _KINDS.get(type(record), "note")
    if isinstance(record, LossScaleChanged):
        kind = "growth" if record.reason == "growth" else "skip"
    elif isinstance(record, ModulesTraced) and (record.first is not None or record.lost_count):
        kind = "nonfinite"
    return Event(record.time, step, kind, severity_of(about), about)


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


def optimizer_of(about: Happening) -> str | None:
    """The name of the optimizer in whose steps it happened; None if it is of no optimizer."""
    if isinstance(about, ScaleMove):
        return about.record.optimizer
    if isinstance(about, SkipRow):
        return about.newest.optimizer
    if isinstance(about, Storm):
        return about.first.optimizer
    if isinstance(about, (PrecisionChanged, OptimizerFollowed, GradientsDropped)):
        return about.optimizer
    return None


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
        return isinstance(before, Printed) and (about.text, about.live) == (before.text, before.live)
    if isinstance(about, KeepingChanged) and isinstance(before, KeepingChanged):
        return about == replace(before, time=about.time, unsaved=about.unsaved)
    if isinstance(about, (Note, ViewersChanged)):
        return type(about) is type(before) and about == replace(before, time=about.time)
    return False


def severity_of(about: Happening) -> Severity:
    """How bad it is: an error ends or stops training, is no longer saved, or makes the result doubtful."""
    judge = _SEVERITIES.get(type(about))
    return "info" if judge is None else judge(about)


_SEVERITIES: Mapping[type[Any], Callable[[Any], Severity]] = {
    Note: lambda note: note.severity,
    ModulesTraced: lambda trace: judge_trace(trace).severity,
    **dict.fromkeys((SkipRow, Storm, XRaySummary, UnderflowFound), lambda about: about.finding.severity),
    SlowRankNews: lambda news: "info" if news.verdict is None else "warning",
    RanksAwaited: lambda awaited: "info" if awaited.over else "warning",
    Resumption: lambda resumption: "warning" if resumption.record.restarts > 0 else "info",
    GradientsDropped: lambda _: "warning",
    ScaleMove: lambda move: (
        "error" if move.record.reason == "backoff" and move.record.current < MIN_SOUND_SCALE else "info"
    ),
    PauseChanged: lambda pause: "error" if pause.reason else "info",
    RanksDisagree: lambda disagree: "error" if disagree.count > 0 else "info",
    KeepingChanged: lambda change: "error" if change.trouble else "info",
    RankLost: lambda _: "error",
    RunFailed: lambda _: "error",
}
"""All others are ``info``."""
