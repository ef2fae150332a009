"""What of a run is saved, who watches it, and what was requested of it."""

from dataclasses import dataclass, replace
from typing import Any

from amptui.records.answers import Answer, RequestMade
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.run import RunResumed, RunStarted

MAX_KEPT = 64

Kept = CheckpointWritten | WeightsSaved | KeepingChanged | ViewersChanged


@dataclass(slots=True, eq=False)
class RequestWatch:
    """Matches requests with their answers by number, in whatever order they arrive."""

    pending: tuple[RequestMade, ...] = ()
    """The oldest first; the newest ``MAX_KEPT``."""
    answers: tuple[Answer, ...] = ()
    """The same."""

    def make(self, record: RequestMade) -> None:
        """Add a request; a screen knows its own before the run reports it."""
        known = {made.number for made in self.pending} | {told.request.number for told in self.answers}
        if record.number not in known:
            self.pending = (*self.pending, record)[-MAX_KEPT:]

    def answer(self, record: Answer) -> None:
        """Add an answer."""
        self.pending = tuple(made for made in self.pending if made.number != record.request.number)
        self.answers = (*self.answers, record)[-MAX_KEPT:]

    def drop_pending(self) -> None:
        """Forget the pending requests: nobody is left to answer them."""
        self.pending = ()


@dataclass(slots=True, eq=False)
class Keeping:
    """The newest checkpoint, the weights, what is currently not saved, and the number of screens."""

    checkpoint: CheckpointWritten | None = None
    weights: WeightsSaved | None = None
    not_kept: tuple[KeepingChanged, ...] = ()
    viewers: int = 0

    def add(self, record: Kept) -> None:
        """Something was saved, is no longer saved or is saved again; or a screen attached or detached."""
        if isinstance(record, CheckpointWritten):
            self.checkpoint = record
        elif isinstance(record, WeightsSaved):
            self.weights = record
        elif isinstance(record, ViewersChanged):
            self.viewers = record.viewers
        else:
            others = tuple(each for each in self.not_kept if each.what != record.what)
            self.not_kept = (*others, record) if record.trouble else others

    def resume_after(self, step: int) -> None:
        """Another process continues after ``step``: no save has failed yet, and nobody watches."""
        self.weights, self.not_kept, self.viewers = None, (), 0
        if self.checkpoint is not None and self.checkpoint.step > step:
            self.checkpoint = None


def without_ends(run: RunStarted) -> RunStarted:
    """``run`` beside steps that its length is not counted in."""
    return replace(run, total_steps=None, steps_per_epoch=None, total_epochs=0)


def as_resumed(run: RunStarted, resumed: RunResumed) -> RunStarted:
    """``run`` as it goes on in a new process: perhaps longer, on another device, or with other ranks."""
    changed: dict[str, Any] = {
        name: value
        for name in (
            "total_epochs",
            "total_steps",
            "world_size",
            "parallel",
            "batch_size",
            "global_batch_size",
        )
        if (value := getattr(resumed, name)) or value == ""
    }
    if resumed.world_size == 1:
        changed["global_batch_size"] = None
    if resumed.world_size is not None:
        changed["data_parallel"] = resumed.data_parallel
    return replace(
        run,
        device=resumed.device,
        device_name=resumed.device_name,
        gpu_uuid=resumed.gpu_uuid,
        **changed,
    )
