"""Pending requests to the run, and the newest answers."""

from dataclasses import dataclass

from amptui.answers import Answer, RequestMade

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
