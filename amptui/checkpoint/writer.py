"""Decides when a checkpoint is due and writes it in a thread while training continues."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from amptui.base.text import NO_ROOM, one_line
from amptui.checkpoint.file import Checkpoint, Place, checkpoint_name, clear, prune, write
from amptui.checkpoint.states import Part
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import Note, Record

Reason = Literal["asked", "epoch", "interval", "end"]

Requests = tuple[RequestMade, ...]

EPOCH_BUDGET = 0.003
"""The fraction of the time that training may be blocked for checkpoints at the ends of epochs. If copying the
state takes 10 ms, some epochs shorter than 3 s get none; the end of the run always does."""


class CheckpointWriter:
    """Writes checkpoints into ``folder``, one at a time; without a folder it writes none.

    If one comes due during a write, it waits and training goes on. Errors are reported, each once, and
    training goes on. ``journaled`` returns when the journal has everything that was emitted up to a step;
    ``resumed_from`` is the place of the checkpoint that the run was resumed from, and ``resume_command``
    returns the command that resumes it, "" if nothing does.
    """

    def __init__(  # noqa: PLR0913 - options by name
        self,
        folder: Path | None,
        *,
        control: Control,
        emit: Callable[[Record], object],
        every: int | None = None,
        journaled: Callable[[int], object] = lambda _step: None,
        resumed_from: Place | None = None,
        resume_command: Callable[[], str] = lambda: "amptui train --resume",
        epoch_budget: float = EPOCH_BUDGET,
    ) -> None:
        self._folder = folder
        self._control = control
        self._emit = emit
        self._interval = every
        self._journaled = journaled
        self._newest = resumed_from
        self._taken_step = resumed_from[0] if resumed_from else 0
        self._epoch_budget = epoch_budget
        self._last_end = time.perf_counter()
        self._last_blocked_seconds = 0.0
        self._troubles: set[str] = set()
        self._missing = 0
        """Checkpoints that could not be written since the last one that was."""
        self._why_missing = ""
        self._warned: set[str] = set()
        self._requests: Requests = ()
        """What the next checkpoint answers."""
        self._lock = threading.Lock()  # guards the next two
        self._wanted: Reason | None = None
        self.writing = False
        """Whether a checkpoint is being written."""
        self._thread: threading.Thread | None = None
        self._resume_command = resume_command
        self.follows = False
        """Whether another process writes the file, and this one only sends its own states."""
        self.finite_names: Collection[str] = ()
        """Parameters in which Inf means that the model is lost."""
        self._taken: Checkpoint | None = None
        """The last one, kept until the next: after the device has failed, pinned memory must not be freed."""
        if folder is not None:
            clear(folder, after=self._taken_step)

    @property
    def keeps(self) -> bool:
        """Whether it writes any."""
        return self._folder is not None

    @property
    def resume_hint(self) -> str:
        """How to resume from the newest checkpoint, whose weights are sound; empty if there is none."""
        if self._folder is None or self._newest is None:
            return ""
        name, command = checkpoint_name(self._newest[0]), self._resume_command()
        return f"go back to checkpoint {name}: {command}" if command else f"the weights of {name} are sound"

    def lacks(self, place: Place) -> bool:
        """Whether ``place``, if a step led to it, differs from that of the last written checkpoint."""
        return self.keeps and place[0] > 0 and place != self._newest

    def want_epoch(self) -> None:
        """An epoch ended: a checkpoint is due, if ``epoch_budget`` has covered the last one."""
        earned_seconds = self._epoch_budget * (time.perf_counter() - self._last_end)
        if earned_seconds >= self._last_blocked_seconds:
            self._want_epoch()

    @property
    def every(self) -> int | None:
        """Steps from one checkpoint to the next; None if none is due at a step."""
        return self._interval if self.keeps else None

    def due(self, step: int, *, only_asked: bool) -> Reason | None:
        """Why a checkpoint is due after ``step``; None if none is.

        ``only_asked``: only requested ones are, because a precision is on trial or the epoch has no batch
        left. Its own checkpoint follows the validation; one before it would repeat the validation's record.
        """
        request = self._control.take("checkpoint")
        if not self.keeps:
            if request is not None:
                self._warn("no checkpoint: this run does not write any")
                self._control.refuse(request, "unavailable", "this run does not write any")
            return None
        self._requests += () if request is None else (request,)
        interval = self._interval and step % self._interval == 0 and step != self._taken_step
        if not (request or interval or self._wanted):
            return None
        with self._lock:
            if request:
                self._wanted = "asked"
            elif interval:
                self._wanted = self._wanted or "interval"
            waits = self._busy or (only_asked and self._wanted != "asked")
            return None if waits else self._wanted

    def keep(self, take: Callable[[], Checkpoint], reason: Reason, *, began: float) -> None:
        """Call ``take`` and write its checkpoint in a thread; returns when training may go on.

        ``began`` is when the step boundary was reached, by ``perf_counter``. Do not call it during a write.
        """
        assert not self.writing, "one at a time"
        blocked_since = time.perf_counter()
        with self._lock:
            self._wanted = None
        self._taken = None
        requests, self._requests = self._requests, ()
        try:
            checkpoint = self._taken = take()
        except Exception as error:  # noqa: BLE001 - a tensor subclass may raise anything; the run must go on
            self._report(error, reason, requests)
            return
        self._taken_step = checkpoint.step
        self._last_end = time.perf_counter()
        self._last_blocked_seconds = self._last_end - began
        self.writing = True
        timing = {"blocked_seconds": self._last_end - blocked_since, "began": began}
        self._start_thread(lambda: self._write(checkpoint, reason, requests, **timing))

    def send_states(self, states: dict[str, Any], take: Callable[[], list[Part]]) -> None:
        """Send this process's :meth:`DataPosition.states` to the one that writes the file.

        Of a sharded model ``take`` its parts and write them in a thread.
        """

    def give_up(self) -> None:
        """Training failed: do not wait for other ranks."""

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def last_due(self, place: Place) -> Reason | None:
        """Wait until nothing is being written; why the last checkpoint, of ``place``, is due, if it is."""
        self.wait()
        return self._last_reason() if self.lacks(place) else None

    def _last_reason(self) -> Reason:
        request = self._control.take("checkpoint")  # it came after the last step boundary
        self._requests += () if request is None else (request,)
        return "asked" if self._requests else self._wanted or "end"

    def warn(self, text: str) -> None:
        """Emit a warning, each text once."""
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    @property
    def _busy(self) -> bool:
        """Whether the next checkpoint has to wait."""
        return self.writing

    def _want_epoch(self) -> None:
        with self._lock:
            self._wanted = "asked" if self._wanted == "asked" else "epoch"

    def _complete(self, checkpoint: Checkpoint) -> Checkpoint:
        """``checkpoint`` with what other ranks add to it; called in the writing thread."""
        return checkpoint

    def _start_thread(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, name="amptui-checkpoint", daemon=True)
        self._thread.start()

    def _write(
        self,
        checkpoint: Checkpoint,
        reason: Reason,
        requests: Requests,
        *,
        began: float,
        blocked_seconds: float,
    ) -> None:
        assert self._folder is not None, "nothing is taken without a folder"
        try:
            checkpoint = self._complete(checkpoint)
            refuse_lost(checkpoint.model, self.finite_names)
            size_bytes = write(
                checkpoint, self._folder, before_it_counts=lambda: self._journaled(checkpoint.step)
            )
            self._newest = checkpoint.place
            self._emit(
                CheckpointWritten(
                    time=time.time(),
                    step=checkpoint.step,
                    name=checkpoint_name(checkpoint.step),
                    size_bytes=size_bytes,
                    reason=reason,
                    blocked_seconds=blocked_seconds,
                    seconds=time.perf_counter() - began,
                )
            )
            for request in requests:
                self._control.answer(request)
            prune(self._folder)
            self._missing = 0
            if self._troubles:
                self._troubles.clear()
                self._tell_missing("")
        except Exception as error:  # noqa: BLE001 - the run must go on, whatever the disk or the journal does
            self._report(error, reason, requests)
        with self._lock:
            self.writing = False
            waits = self._wanted is not None
        if waits:
            self._control.wake()

    def _report(self, error: Exception, reason: Reason, requests: Requests) -> None:
        why = explained(error)
        for request in requests:
            self._control.answer(request, why)
        self._missing, self._why_missing = self._missing + 1, why
        if why not in self._troubles or reason == "asked":
            self._troubles.add(why)
            self._tell_missing(f"no checkpoint in {self._folder}: {why}; training continues without it")

    def close(self) -> None:
        """Wait until nothing is being written; emit how many checkpoints are missing, as no other follows."""
        self.wait()
        if self._missing:
            newest = "there is none" if self._newest is None else f"the newest is of step {self._newest[0]:,}"
            some = f"{self._missing:,} could not be written in {self._folder}"
            self._tell_missing(f"checkpoints: {self._why_missing}: {some}; {newest}")

    def _tell_missing(self, trouble: str) -> None:
        now = time.time()
        self._emit(KeepingChanged(time=now, what="checkpoints", trouble=trouble, unsaved=self._missing))

    def _warn(self, text: str) -> None:
        self._emit(Note(time=time.time(), severity="warning", text=text))


def refuse_lost(state: Mapping[str, Any], finite_names: Collection[str]) -> None:
    """Raise ValueError for a model with NaN, or with Inf in a parameter of ``finite_names``.

    Its checkpoints would replace the earlier ones. Elsewhere Inf is allowed, because masks contain it.
    """
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_meta or not value.is_floating_point():
            continue
        if bool(value.isnan().any()):
            raise ValueError(f"{name} contains NaN (earlier checkpoints are kept)")
        if name in finite_names and bool(value.isinf().any()):
            raise ValueError(f"{name} contains Inf (earlier checkpoints are kept)")


def explained(error: Exception) -> str:
    """The message of ``error``, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} (free some space)" if error.errno in NO_ROOM else error.strerror
    return one_line(str(error)) or type(error).__name__
