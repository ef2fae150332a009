"""What was asked of the run and waits for its answer, and the newest answers."""

from dataclasses import dataclass

from amptui.answers import Answer, RequestMade

MAX_KEPT = 64


@dataclass(slots=True, eq=False)
class RequestWatch:
    """Pairs requests with their answers by number, in whatever order they come."""

    pending: tuple[RequestMade, ...] = ()
    """The oldest first; the newest ``MAX_KEPT``."""
    answers: tuple[Answer, ...] = ()
    """The same."""

    def make(self, record: RequestMade) -> None:
        """Take in a request; a screen knows of its own before the run tells of it."""
        known = {made.number for made in self.pending} | {told.request.number for told in self.answers}
        if record.number not in known:
            self.pending = (*self.pending, record)[-MAX_KEPT:]

    def answer(self, record: Answer) -> None:
        """Take in an answer."""
        self.pending = tuple(made for made in self.pending if made.number != record.request.number)
        self.answers = (*self.answers, record)[-MAX_KEPT:]

    def drop_pending(self) -> None:
        """Nobody is there any more who would answer."""
        self.pending = ()
