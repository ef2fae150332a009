"""What somebody who looks elsewhere should hear of, once: the end, a failure, an alarm, a question."""

from amptui.diagnosis.event_words import event_text
from amptui.telemetry.events import Event
from amptui.telemetry.view import SessionView

MIN_REPEAT_SECONDS = 60.0
"""An overflow or a NaN that comes and goes alerts once a minute at most."""

_URGENCY = {"failed": 3, "finished": 2, "pause": 1}
"""Of several that come together only the most urgent is told; alarms of all other kinds come last."""


class Alerts:
    """Follows a session's event list; ``since``, in Unix seconds, is when the viewer began to look."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._events: tuple[Event, ...] = ()
        self._reported: set[int] = set()
        self._alarmed_at: dict[str, float] = {}
        self._fate_reported = False

    def news(self, view: SessionView, *, fate: str = "", stop_asked: bool = False) -> str:
        """One line on what happened since the last call; empty if nothing did that deserves a bell.

        ``fate``: what became of a run that ended without its last record. ``stop_asked``: the viewer itself
        asked for the end: its user is there, and needs to hear of a failure only.
        """
        name = view.run.model if view.run is not None else "run"
        if fate and not self._fate_reported:
            self._fate_reported = True
            return f"{name}: {fate}"
        if view.events is self._events:
            return ""
        self._events = view.events
        urgent = filter(self._matters, view.events)
        fresh = [event for event in urgent if event.number not in self._reported]
        self._reported.update(event.number for event in fresh)
        news = [event for event in fresh if self._is_news(event, view, stop_asked=stop_asked)]
        if not news:
            return ""
        first = max(news, key=lambda event: _URGENCY.get(event.kind, 0))
        return (
            f"{name} needs an answer: {view.pause_reason}" if _asks(first) else f"{name}: {event_text(first)}"
        )

    def _matters(self, event: Event) -> bool:
        return event.time >= self._since and (event.severity == "error" or event.kind == "finished")

    def _is_news(self, event: Event, view: SessionView, *, stop_asked: bool) -> bool:
        if stop_asked:
            return event.kind == "failed"
        if _asks(event):
            return bool(view.pause_reason)  # otherwise it has its answer
        cause = event.kind if event.kind in ("skip", "nonfinite") else event_text(event)
        before = self._alarmed_at.get(cause)
        if before is not None and event.time - before < MIN_REPEAT_SECONDS:
            return False
        self._alarmed_at[cause] = event.time
        return True


def _asks(event: Event) -> bool:
    return event.kind == "pause"
