"""When a checkpoint is due, and the thread that writes it while training continues."""

import errno
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from amptui.control import Asked, CheckpointRequest, Control
from amptui.engine.checkpoint.file import Checkpoint, Place, checkpoint_name, clear, prune, write
from amptui.records import CheckpointWritten, KeepingChanged, Note, Record, Severity

Reason = Literal["asked", "epoch", "interval", "end"]

EPOCH_BUDGET = 0.003
"""The part of the time that training may stand still for checkpoints at epochs' ends. Where a copy of the
state takes 10 ms, not every epoch of less than 3 s has one; the run's end always has."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _at_once(_step: int) -> None:
    """There is no journal to wait for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    checkpoint: Checkpoint
    reason: Reason
    began: float
    """When the step boundary was reached, by ``perf_counter``."""
    blocked_seconds: float
    asked: tuple[Asked[CheckpointRequest], ...]
    """The requests that it answers."""


class CheckpointWriter:
    """Keeps checkpoints in ``folder``, one write at a time; without a folder it keeps none.

    What comes due while one is written waits for it, and the training does not. What goes wrong is told, each
    kind of it once, and the training goes on. ``journaled`` returns when the journal holds all that was
    emitted up to a step; ``kept`` is the place of the checkpoint that the run goes on from.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        control: Control,
        emit: Callable[[Record], object],
        every: int | None = None,
        journaled: Callable[[int], object] = _at_once,
        kept: Place | None = None,
        epoch_budget: float = EPOCH_BUDGET,
    ) -> None:
        self._folder = folder
        self._control = control
        self._emit = emit
        self._every = every
        self._journaled = journaled
        self._kept = kept
        self._taken_step = kept[0] if kept else 0
        self._epoch_budget = epoch_budget
        self._last_end = time.perf_counter()
        self._last_blocked_seconds = 0.0
        self._troubles: set[str] = set()
        self._warned: set[str] = set()
        self._asked: tuple[Asked[CheckpointRequest], ...] = ()
        """The requests that the next one answers."""
        self._lock = threading.Lock()  # guards the next two
        self._wanted: Reason | None = None
        self._writing = False
        self._thread: threading.Thread | None = None
        self.resume_command: Callable[[], str] = lambda: "amptui train --resume"
        """The command that resumes the run."""
        self._job: _Job | None = None
        """Held until the next is taken: a device that has failed allows no pinned memory to be freed."""
        if folder is not None:
            clear(folder, after=self._taken_step)

    @property
    def keeps(self) -> bool:
        """Whether it keeps any; a forked copy of it never does."""
        return self._folder is not None and not self._control.is_copy

    @property
    def writing(self) -> bool:
        """Whether one is being written."""
        return self._writing

    @property
    def way_back(self) -> str:
        """How a person goes on from the newest one, none of which holds NaN; empty without one."""
        if self._folder is None or self._kept is None:
            return ""
        return f"go back to checkpoint {checkpoint_name(self._kept[0])}: {self.resume_command()}"

    def lacks(self, place: Place) -> bool:
        """Whether ``place``, if any step led to it, is not that of the last checkpoint that was written."""
        return self.keeps and place[0] > 0 and place != self._kept

    def want_epoch(self) -> None:
        """An epoch ended: one is due as soon as none is being written, if time has paid for the last one."""
        earned_seconds = self._epoch_budget * (time.perf_counter() - self._last_end)
        if earned_seconds < self._last_blocked_seconds:
            return
        with self._lock:
            self._wanted = "asked" if self._wanted == "asked" else "epoch"

    def next_step(self, step: int) -> int | None:
        """The next step at which one comes due by its number; None if there is none."""
        return step + self._every - step % self._every if self._every and self.keeps else None

    def due(self, step: int, *, only_asked: bool) -> Reason | None:
        """Why one is to be taken at this boundary; None if none is.

        ``only_asked``: any other waits. A precision is on trial, or no batch of the epoch is left: its own
        checkpoint follows the validation, and from one before it the validation would be told of twice.
        """
        asked = self._control.take(CheckpointRequest)
        if not self.keeps:
            if asked is not None:
                self._say("warning", "no checkpoint: this run does not write any")
                self._control.refuse(asked, "unavailable", "this run does not write any")
            return None
        self._asked += () if asked is None else (asked,)
        interval = self._every and step % self._every == 0 and step != self._taken_step
        if not (asked or interval or self._wanted):
            return None
        with self._lock:
            if asked:
                self._wanted = "asked"
            elif interval:
                self._wanted = self._wanted or "interval"
            waits = self._writing or (only_asked and self._wanted != "asked")
            return None if waits else self._wanted

    def keep(self, take: Callable[[], Checkpoint], reason: Reason, *, began: float) -> None:
        """Take one, and let it be written; ``began``: when the boundary was reached, by ``perf_counter``.

        Returns as soon as training may go on. Not to be called while one is being written.
        """
        assert not self._writing, "one at a time"
        stood_still = time.perf_counter()
        with self._lock:
            self._wanted = None
        self._job = None
        asked, self._asked = self._asked, ()
        try:
            checkpoint = take()
        except Exception as error:  # noqa: BLE001 - tensors come in kinds nobody foresaw; the run must go on
            self._tell_trouble(error, reason, asked)
            return
        self._taken_step = checkpoint.step
        self._last_end = time.perf_counter()
        self._last_blocked_seconds = self._last_end - began
        self._writing = True
        job = _Job(checkpoint, reason, began, time.perf_counter() - stood_still, asked)
        self._job = job
        self._thread = threading.Thread(
            target=self._write, args=(job,), name="amptui-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def last_reason(self) -> Reason:
        """Why the run's last one is taken."""
        asked = self._control.take(CheckpointRequest)  # no boundary came that took it
        self._asked += () if asked is None else (asked,)
        return "asked" if self._asked else self._wanted or "end"

    def warn(self, text: str) -> None:
        """Tell a person what is not kept, once."""
        if text not in self._warned:
            self._warned.add(text)
            self._say("warning", text)

    def _write(self, job: _Job) -> None:
        try:
            self._keep_file(job)
        except Exception as error:  # noqa: BLE001 - no disk's or journal's trouble may cost the run
            self._tell_trouble(error, job.reason, job.asked)
        with self._lock:
            self._writing = False
            waits = self._wanted is not None
        if waits:
            self._control.wake()

    def _keep_file(self, job: _Job) -> None:
        assert self._folder is not None, "nothing is taken without"
        checkpoint = job.checkpoint
        _refuse_nan(checkpoint.model)
        try:
            size_bytes = self._write_file(checkpoint, self._folder)
        except FileNotFoundError:  # the folder was removed under it
            size_bytes = self._write_file(checkpoint, self._folder)
        self._kept = checkpoint.place
        now = time.perf_counter()
        self._emit(
            CheckpointWritten(
                time=time.time(),
                step=checkpoint.step,
                name=checkpoint_name(checkpoint.step),
                size_bytes=size_bytes,
                reason=job.reason,
                blocked_seconds=job.blocked_seconds,
                seconds=now - job.began,
            )
        )
        for asked in job.asked:
            self._control.answer(asked)
        prune(self._folder)
        if self._troubles:
            self._troubles.clear()
            self._emit(KeepingChanged(time=time.time(), what="checkpoints", trouble=""))

    def _write_file(self, checkpoint: Checkpoint, folder: Path) -> int:
        return write(checkpoint, folder, before_it_counts=lambda: self._journaled(checkpoint.step))

    def _tell_trouble(
        self, error: Exception, reason: Reason, asked: tuple[Asked[CheckpointRequest], ...]
    ) -> None:
        kind, why = _explained(error)
        for each in asked:
            self._control.answer(each, why)
        if kind not in self._troubles or reason == "asked":
            self._troubles.add(kind)
            trouble = f"no checkpoint in {self._folder}: {why}; training continues without it"
            self._emit(KeepingChanged(time=time.time(), what="checkpoints", trouble=trouble))

    def _say(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))


def _refuse_nan(state: Mapping[str, Any]) -> None:
    """Raise ValueError for a model that is lost: its checkpoints would push out those from before it was.

    Inf is left alone, since masks are made of it.
    """
    for name, value in state.items():
        if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
            raise ValueError(f"{name} contains NaN (earlier checkpoints are kept)")


def _explained(error: Exception) -> tuple[str, str]:
    """The kind of trouble, and what to tell of it."""
    if isinstance(error, OSError) and error.errno is not None:
        why = error.strerror or str(error)
        return str(error.errno), f"{why} (free some space)" if error.errno in _NO_ROOM else why
    text = " ".join(str(error).split())[:500]
    return type(error).__name__, text or type(error).__name__
