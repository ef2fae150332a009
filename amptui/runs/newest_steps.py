"""The newest steps of a run, read from its journal's end, and whether it has stalled."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.keeping import KeepingChanged, ViewersChanged
from amptui.records.ranks import RankLost
from amptui.records.run import Note, PhaseChanged, Record
from amptui.records.samples import DeviceSample
from amptui.records.steps import Steps
from amptui.runs.kept_run import KeptRun
from amptui.runs.reader import records_at_end

_TAIL_BYTES = (2**16, 2**20)
"""How far back to read, and how far if there is nothing but samples of the device: an hour of them."""

STALLED_SECONDS = 120.0
"""A run that is silent for less has not stalled. Between its steps a script may validate or write a file, and
says nothing of it."""

STALLED_STEPS = 20
"""A run that is silent for less than so many of its steps has not stalled either, however long they take."""

BUSY_SECONDS = 1200.0
"""What is between steps by the run's own word may take so long: a validation, a download, and before the
first step the compiler. Ranks wait as long for one of them that compiles."""

_BYSTANDERS = DeviceSample | RequestMade | RequestTaken | RequestRefused | ViewersChanged | KeepingChanged
"""Records that a run writes while its trainer makes no headway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSteps:
    """The end of a journal."""

    losses: Sequence[float | None]
    """Of the first optimizer's newest steps, or of the newest optimizer's if that has made none lately."""
    step_seconds: float | None
    """The median of those steps; None if none was timed."""
    headway: float | None
    """When the trainer last recorded anything, in Unix seconds; of a journal's end without that, its oldest
    record."""
    is_between_steps: bool
    """Whether that says that no step runs at the moment."""
    last_time: float | None
    """Of the last record, whatever it is."""
    trouble: Note | RankLost | None = None
    """The newest error, or rank that was lost, after the last steps."""


NOTHING = NewestSteps(losses=(), step_seconds=None, headway=None, is_between_steps=False, last_time=None)


def newest_steps(journal: Path) -> NewestSteps:
    """The end of ``journal``, of which at most 1 MiB is read. Never raises."""
    records: list[Record] = []
    try:
        for length in _TAIL_BYTES:
            records = records_at_end(journal, length)
            if not all(isinstance(record, _BYSTANDERS) for record in records):
                break
    except OSError:
        return NOTHING
    if not records:
        return NOTHING
    headway = next((record for record in reversed(records) if not isinstance(record, _BYSTANDERS)), None)
    steps = [record for record in records if isinstance(record, Steps)]
    front = [record for record in steps if not record.optimizer] or [
        record for record in steps if record.optimizer == steps[-1].optimizer
    ]
    timed = [seconds for record in front for seconds in record.step_seconds if seconds is not None]
    return NewestSteps(
        losses=tuple(loss for record in front for loss in record.loss),
        step_seconds=statistics.median(timed) if timed else None,
        headway=(headway or records[0]).time,
        is_between_steps=isinstance(headway, PhaseChanged) and headway.phase != "training",
        last_time=records[-1].time,
        trouble=_trouble_after_steps(records),
    )


def _trouble_after_steps(records: Sequence[Record]) -> Note | RankLost | None:
    """By their times: rows of steps arrive late, and are written after what happened meanwhile."""
    last_step_time = -math.inf
    for record in reversed(records):
        if isinstance(record, RankLost) or (isinstance(record, Note) and record.severity == "error"):
            return record if record.time >= last_step_time else None
        if isinstance(record, Steps):
            last_step_time = max(last_step_time, record.time)
    return None


def silent_seconds(run: KeptRun, newest: NewestSteps, now: float) -> float | None:
    """How long a run that has stalled has made no headway; None for one that has not.

    A run has stalled if it runs on this machine, neither paused nor starting, and its journal has had nothing
    of its trainer for longer than ``STALLED_SECONDS`` and than ``STALLED_STEPS`` of its steps, or than
    ``BUSY_SECONDS`` between steps. The limits are this program's own, chosen so that ordinary pauses of
    a script do not count. A run on another machine writes by a clock that is not ours.
    """
    if run.state != "running" or not run.is_here or newest.headway is None:
        return None
    step_seconds = newest.step_seconds
    if step_seconds is None and run.step and run.started is not None:
        step_seconds = (newest.headway - run.started) / run.step
    limit = max(STALLED_SECONDS, STALLED_STEPS * (step_seconds or 0.0))
    if newest.is_between_steps or not run.step:
        limit = max(limit, BUSY_SECONDS)
    silent = now - newest.headway
    return silent if silent > limit else None
