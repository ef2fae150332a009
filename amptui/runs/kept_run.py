"""A run's description, status and newest steps, read from its run.json, its lock and its journal's end."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from amptui.base.errors import RunFolderError
from amptui.records import codec
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
    "starting", "running", "paused", "finished", "stopped", "ended", "failed", "died", "unreadable"
]
"""``died``: no process trains it and it has no last record. ``unreadable``: its journal cannot be
opened."""

_TAIL_BYTES = (2**16, 2**20, 2**24)
"""How far back to look for its newest step; a long pause comes after it."""

_MAX_DAMAGED = 100
"""Unreadable or unfit lines of one kind after which the search for it ends: a list has many runs."""

_R = TypeVar("_R", bound=Record)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """One run at this moment; None for what its files do not contain."""

    name: str
    folder: Path
    state: State
    model: str | None
    precision: str | None
    """Of the newest step."""
    step: int | None
    """Of the first optimizer of a script that has several."""
    total_steps: int | None
    started: float | None
    """Unix seconds, as are ``began`` and ``written``."""
    began: float | None
    """When the process that trains it now started."""
    written: float | None
    """When its journal was last written."""
    device: str | None
    device_name: str | None
    host: str | None
    """The machine that trains it now, and the process there; None if none does."""
    pid: int | None
    is_here: bool
    """Whether it is not being trained on another machine."""
    error: str | None
    """Why it failed, or cannot be read, in one line."""

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
    trains = holder(run_dir.path)
    newest, trouble = _end_of(run_dir.journal_path)
    run_json: dict[str, Any] = {}
    with suppress(RunFolderError):
        run_json = read_run_json(run_dir.path)
    began = trains.started if trains is not None else None

    def known(kind: type[_T], name: str) -> _T | None:
        value = run_json.get(name)
        return value if isinstance(value, kind) else None

    has_begun = "started" in run_json or newest.last is not None
    return KeptRun(
        name=run_dir.path.absolute().name,
        folder=run_dir.path,
        state=_state(trains, newest, has_begun=has_begun, is_readable=trouble is None),
        model=known(str, "model"),
        precision=newest.precision or known(str, "precision"),
        step=None if newest.last is None else newest.last.step,
        total_steps=known(int, "total_steps"),
        started=known(float, "started") or began,
        began=began,
        written=written(run_dir),
        device=known(str, "device"),
        device_name=known(str, "device_name"),
        host=trains.host if trains is not None else None,
        pid=trains.pid if trains is not None else None,
        is_here=trains is None or trains.is_here,
        error=newest.word.error if isinstance(newest.word, RunFailed) else trouble,
    )


class _Newest(NamedTuple):
    """The newest record of each kind that shows a run's status."""

    stepped: Steps | None = None
    switched: PrecisionChanged | None = None
    pause: PauseChanged | None = None
    resumed: RunResumed | None = None
    word: RunFinished | RunFailed | None = None

    @property
    def last(self) -> Steps | RunResumed | None:
        """What has the newest step."""
        records = [record for record in (self.resumed, self.stepped) if record is not None]
        return max(records, key=lambda record: record.step, default=None)

    @property
    def precision(self) -> str | None:
        # A switch may be recorded before earlier steps that were still being measured.
        if self.switched is not None and (self.last is None or self.switched.step > self.last.step):
            return self.switched.current
        return None if self.last is None else self.last.precision


def _state(trains: Holder | None, newest: _Newest, *, has_begun: bool, is_readable: bool) -> State:
    word = newest.word
    going_on = trains is not None and word is not None and (trains.started or 0.0) > word.time
    if word is not None and not going_on:
        if isinstance(word, RunFailed):
            return "failed"
        return "finished" if word.reason == "done" else word.reason
    if trains is None:
        return "died" if is_readable else "unreadable"
    if going_on or not has_begun:
        return "starting"
    pause = newest.pause
    is_paused = pause is not None and pause.paused and (newest.last is None or pause.step >= newest.last.step)
    return "paused" if is_paused else "running"


def _end_of(journal: Path) -> tuple[_Newest, str | None]:
    """The run's newest records, if present; and why none can be read."""
    newest = _Newest()
    try:
        with journal.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for length in _TAIL_BYTES:
                start = max(0, size - length)
                file.seek(start)
                newest = _newest_in(file.read(length) if start else b"\n" + file.read(length))
                if newest.stepped is not None or not start:
                    break
    except FileNotFoundError:
        pass  # it may be starting
    except OSError as error:
        return _Newest(), f"cannot read {journal}: {reason(error)}"
    return newest, None


def _newest_in(data: bytes) -> _Newest:
    # The run's length is counted in steps of its first optimizer, unless that has long made none.
    at, stepped = _last(data, Steps, lambda record: not record.optimizer)
    if stepped is None:
        at, stepped = _last(data, Steps)
    optimizer = stepped.optimizer if stepped is not None else ""
    resumed_at, resumed = _last(data, RunResumed)
    # The end of a run that was resumed later is not its last record.
    word_at, word = max(_last(data, RunFinished), _last(data, RunFailed), key=itemgetter(0))
    return _Newest(
        stepped=stepped,
        resumed=resumed,
        switched=_last(data, PrecisionChanged, lambda record: record.optimizer == optimizer)[1],
        pause=_last(data, PauseChanged)[1],
        word=word if word_at > max(at, resumed_at) else None,
    )


def _last(
    data: bytes, kind: type[_R], fits: Callable[[_R], bool] = lambda _record: True
) -> tuple[int, _R | None]:
    """The last record of that ``kind`` that ``fits``, and where its line begins; damaged ones are skipped."""
    mark, at = f'\n{{"type":"{kind.__name__}"'.encode(), len(data)
    for _ in range(_MAX_DAMAGED):
        at = data.rfind(mark, 0, at)
        if at < 0:
            break
        line_end = data.find(b"\n", at + 1)
        with suppress(ValueError):
            record = codec.loads(data[at + 1 : line_end if line_end >= 0 else len(data)])
            if isinstance(record, kind) and fits(record):
                return at, record
    return -1, None


_NEWEST_BYTES = (2**16, 2**20)
"""How far back to read, and how far if there is nothing but samples of the device: an hour of them."""

STALLED_SECONDS = 1200.0
"""A run that is silent for less has not stalled: a validation, a download or a compiler may take as long."""

_BYSTANDERS = DeviceSample | RequestMade | RequestTaken | RequestRefused | KeepingChanged
"""Records that a run writes while its trainer makes no headway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSteps:
    """The end of a journal."""

    losses: Sequence[float | None]
    """Of the first optimizer's newest steps, or of the newest optimizer's if that has made none lately."""
    headway: float | None
    """When the trainer last recorded anything, in Unix seconds; of a journal's end without that, its oldest
    record."""
    last_time: float | None
    """Of the last record, whatever it is."""
    trouble: Note | RankLost | None = None
    """The newest error, or rank that was lost, after the last steps."""


NOTHING = NewestSteps(losses=(), headway=None, last_time=None)


def newest_steps(journal: Path) -> NewestSteps:
    """The end of ``journal``, of which at most 1 MiB is read. Never raises."""
    records: list[Record] = []
    try:
        for length in _NEWEST_BYTES:
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
    trouble, last_step_time = None, -math.inf
    for record in reversed(records):
        # By their times: rows of steps arrive late, and are written after what happened meanwhile.
        if isinstance(record, RankLost) or (isinstance(record, Note) and record.severity == "error"):
            trouble = record if record.time >= last_step_time else None
            break
        if isinstance(record, Steps):
            last_step_time = max(last_step_time, record.time)
    return NewestSteps(
        losses=tuple(loss for record in front for loss in record.loss),
        headway=(headway or records[0]).time,
        last_time=records[-1].time,
        trouble=trouble,
    )


def silent_seconds(run: KeptRun, newest: NewestSteps, now: float) -> float | None:
    """How long a run that has stalled has made no headway; None for one that has not.

    A run has stalled if it runs on this machine, neither paused nor starting, and its journal has had nothing
    of its trainer for longer than ``STALLED_SECONDS``. A run on another machine writes by a clock that is not
    ours.
    """
    if run.state != "running" or not run.is_here or newest.headway is None:
        return None
    silent = now - newest.headway
    return silent if silent > STALLED_SECONDS else None
