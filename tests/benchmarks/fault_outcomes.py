"""How a run of several ranks ended after a fault, how it should have, and both as a row of a table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from amptui.records.ranks import RankLost, RanksAwaited, StacksTaken
from amptui.records.run import Record, RunFailed, RunFinished
from amptui.records.steps import StepRecord
from tests.benchmarks.figures import columns

R = TypeVar("R")

UNWRITTEN_SECONDS = 2.0
"""How old a step may be that is not in the journal of a rank 0 that was killed, or is blocked in NCCL."""

_WORDS_SHOWN = 100

_WAY_ON = re.compile(r"to resume from step-\d+\.pt: .*--resume \S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """How a run has to end."""

    status: int = 1
    """The exit status of what was started: the launcher, or each rank that has none."""
    finishes: bool = False
    """Whether the journal ends with :class:`RunFinished`."""
    says: str = ""
    """A pattern in the journal's last record and in what the program wrote to standard error."""
    never_says: str = ""
    """A pattern that neither may have."""
    awaited: tuple[int, str] | None = None
    """The rank that is named while others wait for it, and what it was doing."""
    lost: tuple[int, str] | None = None
    """The rank that is told as lost, and why."""
    stacks: bool = False
    """Whether the journal has what the ranks executed."""
    keeps_all: bool = True
    """Whether the journal has all finished steps; else those of the last moment may be missing."""
    checkpoint: bool = False
    """Whether the last step has a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was seen of a run."""

    statuses: tuple[int | None, ...]
    """None of a process that had to be killed."""
    errors: str
    """What was written to standard error."""
    output: str
    records: Sequence[Record]
    steps_made: Mapping[int, Sequence[float]]
    """By rank, when each step was finished, in Unix seconds."""
    fault_at: float | None
    """When the fault began; None if it never did."""
    ended_at: float
    """When the last process of the run was gone."""
    left: int
    """Processes of the run that were still there later."""
    checkpoint_step: int = 0

    @property
    def steps_trained(self) -> int:
        """The steps that all ranks have finished."""
        return min((len(times) for times in self.steps_made.values()), default=0)

    @property
    def steps_written(self) -> int:
        """The steps that the journal has."""
        return len({record.step for record in self.records if isinstance(record, StepRecord)})

    @property
    def last(self) -> RunFinished | RunFailed | None:
        """The journal's word on the end."""
        words = [record for record in self.records if isinstance(record, RunFinished | RunFailed)]
        return words[-1] if words else None

    @property
    def last_words(self) -> str:
        """The last line that a person sees."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1] if lines else ""

    @property
    def seconds(self) -> float | None:
        """From the fault to the end."""
        return None if self.fault_at is None else self.ended_at - self.fault_at

    @property
    def unwritten_seconds(self) -> float:
        """How long before the fault the first step was finished that the journal lacks; 0 if it has all."""
        times = self.steps_made.get(0, ())
        if self.steps_written >= self.steps_trained or self.fault_at is None:
            return 0.0
        return self.fault_at - times[self.steps_written]


def wrongs(outcome: Outcome, expected: Expected) -> list[str]:
    """What is not as it has to be."""
    found = []
    if outcome.fault_at is None:
        found.append("the fault never began")
    if set(outcome.statuses) != {expected.status}:
        found.append(f"exit status {_statuses(outcome)}, not {expected.status}")
    if outcome.left:
        found.append(f"{outcome.left} processes are left")
    return [*found, *_wrong_words(outcome, expected), *_wrong_records(outcome, expected)]


def _wrong_words(outcome: Outcome, expected: Expected) -> list[str]:
    last = outcome.last
    kind = RunFinished if expected.finishes else RunFailed
    if not isinstance(last, kind):
        return [f"the journal ends with {type(last).__name__}, not {kind.__name__}"]
    wrong = []
    ends = {"the journal's end": _end_text(last), "standard error": outcome.errors}
    for place, text in ends.items():
        if expected.says and not re.search(expected.says, text):
            wrong.append(f"{place} does not say {expected.says!r}")
        if expected.never_says and re.search(expected.never_says, text):
            wrong.append(f"{place} says {expected.never_says!r}")
    if isinstance(last, RunFailed) and outcome.checkpoint_step and not _WAY_ON.search(outcome.errors):
        wrong.append("the command that resumes the run is not told")
    if "Traceback" in outcome.errors:
        wrong.append("a traceback on standard error")
    return wrong


def _wrong_records(outcome: Outcome, expected: Expected) -> list[str]:
    wrong = []
    named = {(record.ranks, record.phase) for record in _of(outcome, RanksAwaited)}
    if expected.awaited is not None and ((expected.awaited[0],), expected.awaited[1]) not in named:
        wrong.append(f"never told that rank {expected.awaited[0]} is {expected.awaited[1]}")
    blamed = {rank for ranks, _ in named for rank in ranks}
    if expected.awaited is not None and blamed - {expected.awaited[0]}:
        wrong.append(f"named ranks {sorted(blamed)}")
    lost = [(record.rank, record.cause) for record in _of(outcome, RankLost)]
    if lost != ([expected.lost] if expected.lost else []):
        wrong.append(f"lost: {lost or 'nobody'}, not {expected.lost or 'nobody'}")
    if expected.stacks and not _of(outcome, StacksTaken):
        wrong.append("no stacks")
    if outcome.steps_written < outcome.steps_trained and (
        expected.keeps_all or outcome.unwritten_seconds > UNWRITTEN_SECONDS
    ):
        missing = outcome.steps_trained - outcome.steps_written
        wrong.append(f"{missing} steps missing, the first {outcome.unwritten_seconds:.1f} s old")
    if expected.checkpoint and (outcome.last is None or outcome.checkpoint_step < outcome.steps_trained):
        wrong.append(f"the last checkpoint is of step {outcome.checkpoint_step}")
    return wrong


def _of(outcome: Outcome, kind: type[R]) -> list[R]:
    return [record for record in outcome.records if isinstance(record, kind)]


def _end_text(last: RunFinished | RunFailed) -> str:
    return last.error if isinstance(last, RunFailed) else last.reason


def _statuses(outcome: Outcome) -> str:
    return " ".join("-" if status is None else str(status) for status in outcome.statuses)


# ------------------------------------------------------------------------------ the table

HEAD = (
    *("fault", "backend", "status", "last words", "the journal ends with"),
    *("steps trained / written / missing", "seconds", "left", "verdict"),
)


def row(name: str, backend: str, outcome: Outcome, expected: Expected) -> tuple[str, ...]:
    """One fault in cells."""
    found = wrongs(outcome, expected)
    last = outcome.last
    end = "nothing" if last is None else f"{type(last).__name__}: {_end_text(last)}"
    trained, written = outcome.steps_trained, outcome.steps_written
    return (
        *(name, backend, _statuses(outcome), _short(outcome.last_words), _short(end)),
        f"{trained} / {written} / {max(0, trained - written)}",
        "-" if outcome.seconds is None else f"{outcome.seconds:.0f}",
        *(str(outcome.left), f"WRONG: {'; '.join(found)}" if found else "OK"),
    )


def skipped_row(name: str, backend: str, reason: str) -> tuple[str, ...]:
    """One that could not be tried here."""
    return (name, backend, *[""] * (len(HEAD) - 3), f"skipped: {reason}")


def table(rows: Sequence[Sequence[str]]) -> str:
    """All of them in columns."""
    return columns([HEAD, *rows])


def _short(text: str) -> str:
    return text if len(text) <= _WORDS_SHOWN else f"{text[:_WORDS_SHOWN]}..."
