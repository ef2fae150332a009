"""A run's description, status and newest steps, read from its run.json, its lock and its journal's end."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from amptui.base.errors import RunFolderError
from amptui.base.text import one_line
from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.keeping import KeepingChanged
from amptui.records.ranks import RankLost
from amptui.records.run import (
    Note,
    PauseChanged,
    PrecisionChanged,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from amptui.records.samples import DeviceSample
from amptui.records.steps import Steps
from amptui.runs.journal import records_at_end
from amptui.runs.lock import Holder, holder
from amptui.runs.rundir import RunDir, read_run_json, reason, written

State = Literal[
    "starting",
    "running",
    "paused",
    "stalled",
    "finished",
    "stopped",
    "ended",
    "failed",
    "died",
    "unreadable",
]
"""``stalled``: it is being trained here, and its trainer has recorded nothing for ``STALLED_SECONDS``.
``died``: no process trains it and it has no last record. ``unreadable``: its journal cannot be opened."""

STALLED_SECONDS = 1200.0
"""A run that is silent for less has not stalled: a validation, a download or a compiler may take as long."""

_TAIL_BYTES = (2**15, 2**20, 2**24)
"""How far back to look for its newest step; a long pause comes after it."""

_BYSTANDERS = RequestMade | RequestTaken | RequestRefused | KeepingChanged
"""Records that a run writes while its trainer makes no headway, beside samples of the device."""

_WORDS = RunFinished | RunFailed | RunResumed | Steps
"""Records of which the last one says whether the run has ended."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """One run at this moment; None for what its files do not contain."""

    name: str
    folder: Path
    state: State
    model: str | None = None
    precision: str | None = None
    """Of the newest step."""
    step: int | None = None
    """Of the first optimizer of a script that has several, unless that has made none lately."""
    total_steps: int | None = None
    loss: float | None = None
    """Of the newest step that has one."""
    started: float | None = None
    """Unix seconds, as are ``began`` and ``written``."""
    began: float | None = None
    """When the process that trains it now started."""
    written: float | None = None
    """When its journal was last written."""
    seconds: float | None = None
    """How long it has trained: from its start to its trainer's newest record, or to now if it is live."""
    silent_seconds: float | None = None
    """How long a stalled run has recorded nothing."""
    device: str | None = None
    device_name: str | None = None
    host: str | None = None
    """The machine that trains it now, and the process there; None if none does."""
    pid: int | None = None
    is_here: bool = True
    """Whether it is not being trained on another machine."""
    error: str | None = None
    """Why it failed, or cannot be read, in one line."""
    trouble: Note | RankLost | None = None
    """The newest error, or rank that was lost, after the last steps."""

    @property
    def is_live(self) -> bool:
        return self.host is not None


def described(record: RunStarted | RunResumed) -> dict[str, Any]:
    """What ``run.json`` says of the run: all of it as it starts, on resume what may have changed."""
    names = ["device", "device_name", "versions", "total_steps"]
    if isinstance(record, RunStarted):
        names += ["model", "precision", "config", "hardware"]
    facts = {name: getattr(record, name) for name in names}
    return facts | {"started": record.time} if isinstance(record, RunStarted) else facts


def look_at(run_dir: RunDir) -> KeptRun:
    """The run in a folder; what cannot be read is None, and never raises."""
    trains, now = holder(run_dir.path), time.time()
    records, unreadable = _end_of(run_dir.journal_path)
    run_json: dict[str, Any] = {}
    with suppress(RunFolderError):
        run_json = read_run_json(run_dir.path)

    def known(kind: type[_T], name: str) -> _T | None:
        value = run_json.get(name)
        return value if isinstance(value, kind) else None

    # Its length is counted in steps of its first optimizer, unless that has long made none.
    names = [record.optimizer for record in records if isinstance(record, Steps)]
    front = "" if "" in names or not names else names[-1]
    own = [
        record
        for record in records
        if not isinstance(record, Steps | PrecisionChanged) or record.optimizer == front
    ]
    marks = [record for record in (_last(own, RunResumed), _last(own, Steps)) if record is not None]
    newest = max(marks, key=lambda record: record.step, default=None)
    precision = known(str, "precision") if newest is None else newest.precision
    switch = _last(own, PrecisionChanged)
    # It may be recorded before earlier steps that were still being measured.
    if switch is not None and (newest is None or switch.step > newest.step):
        precision = switch.current
    began = None if trains is None else trains.started
    started = known(float, "started") or began
    state = _state(own, trains, newest, has_begun="started" in run_json, is_readable=unreadable is None)
    headway = next((record.time for record in reversed(records) if not isinstance(record, _BYSTANDERS)), None)
    until = headway if trains is None else now
    silent = now - max(headway or now, began or 0.0)
    # A run on another machine writes by a clock that is not ours.
    if state == "running" and trains is not None and trains.is_here and silent > STALLED_SECONDS:
        state = "stalled"
    failure = _last(own, RunFailed) if state == "failed" else None
    losses = [loss for record in own if isinstance(record, Steps) for loss in record.loss]
    return KeptRun(
        name=run_dir.path.absolute().name,
        folder=run_dir.path,
        state=state,
        model=known(str, "model"),
        precision=precision,
        step=None if newest is None else newest.step,
        total_steps=known(int, "total_steps"),
        loss=next((loss for loss in reversed(losses) if loss is not None), None),
        started=started,
        began=began,
        written=written(run_dir),
        seconds=None if started is None or until is None else max(0.0, until - started),
        silent_seconds=silent if state == "stalled" else None,
        device=known(str, "device"),
        device_name=known(str, "device_name"),
        host=trains.host if trains is not None else None,
        pid=trains.pid if trains is not None else None,
        is_here=trains is None or trains.is_here,
        error=unreadable if failure is None else one_line(failure.error),
        trouble=_trouble(records),
    )


def _state(
    records: Sequence[Record],
    trains: Holder | None,
    newest: Steps | RunResumed | None,
    *,
    has_begun: bool,
    is_readable: bool,
) -> State:
    # The end of a run that was resumed later is not its last record.
    word = next((record for record in reversed(records) if isinstance(record, _WORDS)), None)
    if isinstance(word, RunFinished | RunFailed):
        if trains is not None and (trains.started or 0.0) > word.time:
            return "starting"
        if isinstance(word, RunFailed):
            return "failed"
        return "finished" if word.reason == "done" else word.reason
    if trains is None:
        return "died" if is_readable else "unreadable"
    if newest is None and not has_begun:
        return "starting"
    pause = _last(records, PauseChanged)
    is_paused = pause is not None and pause.paused and (newest is None or pause.step >= newest.step)
    return "paused" if is_paused else "running"


def _trouble(records: Sequence[Record]) -> Note | RankLost | None:
    last_step_time = -math.inf
    for record in reversed(records):
        # By their times: rows of steps arrive late, and are written after what happened meanwhile.
        if isinstance(record, RankLost) or (isinstance(record, Note) and record.severity == "error"):
            return record if record.time >= last_step_time else None
        if isinstance(record, Steps):
            last_step_time = max(last_step_time, record.time)
    return None


def _end_of(journal: Path) -> tuple[list[Record], str | None]:
    """The newest records but samples of the device, which are many; and why none can be read."""
    records: list[Record] = []
    try:
        for length in _TAIL_BYTES:
            records = records_at_end(journal, length, leave_out=DeviceSample)
            is_all = journal.stat().st_size <= length
            if is_all or any(isinstance(record, Steps) for record in records):
                break
    except FileNotFoundError:
        pass  # it may be starting
    except OSError as error:
        return [], f"cannot read {journal}: {reason(error)}"
    return records, None


def _last(records: Sequence[Record], kind: type[_T]) -> _T | None:
    return next((record for record in reversed(records) if isinstance(record, kind)), None)
