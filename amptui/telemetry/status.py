"""What of a run is saved, who watches it, and what was requested of it."""

from dataclasses import dataclass

from amptui.answers import Answer, RequestMade
from amptui.records import CheckpointWritten, KeepingChanged, ViewersChanged

MAX_KEPT = 64


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
    """The newest checkpoint, what is currently not saved, and the number of screens."""

    checkpoint: CheckpointWritten | None = None
    not_kept: tuple[str, ...] = ()
    viewers: int = 0

    def change(self, record: KeepingChanged) -> None:
        """Something is no longer saved, or is saved again."""
        others = tuple(what for what in self.not_kept if what != record.what)
        self.not_kept = (*others, record.what) if record.trouble else others

    def change_viewers(self, record: ViewersChanged) -> None:
        """A screen attached or detached."""
        self.viewers = record.viewers

    def resume_after(self, step: int) -> None:
        """Another process continues after ``step``: no save has failed yet, and nobody watches."""
        self.not_kept, self.viewers = (), 0
        if self.checkpoint is not None and self.checkpoint.step > step:
            self.checkpoint = None
