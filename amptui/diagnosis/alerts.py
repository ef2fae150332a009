"""What somebody who looks elsewhere should hear of, once: end, failure, alarm, question, stall."""

import time
from collections.abc import Callable

from amptui.base import units
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.labels import run_label
from amptui.telemetry.events import Event
from amptui.telemetry.view import SessionView

MIN_REPEAT_SECONDS = 60.0
"""An overflow or a NaN that comes and goes alerts once a minute at most."""

MIN_STALL_SECONDS = 300.0
"""Less is no stall: a batch that is downloaded, a compilation, a validation between the steps of a script."""

STALL_STEPS = 20.0
"""A stall lasts at least as long as so many median steps: steps of a minute are no reason to worry."""

STALL_PAUSES = 3.0
"""A stall lasts at least so many times as long as the longest time between steps so far.

A script validates between its steps and says nothing of it: its first long validation shows what is usual.
"""

_URGENCY = {"failed": 3, "finished": 2, "pause": 1}
"""Of several that come together only the most urgent is told; alarms of all other kinds come last."""


class Alerts:
    """Follows a session's event list; ``since``, in Unix seconds, is when the viewer began to look.

    ``clock`` returns seconds.
    """

    def __init__(self, since: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._since = since
        self._stall = _Stall(clock)
        self._events: tuple[Event, ...] = ()
        self._reported: set[int] = set()
        self._alarmed_at: dict[str, float] = {}
        self._exit_reported = False

    def news(self, view: SessionView, *, exit_reason: str = "", stop_asked: bool = False) -> str:
        """One line on what happened since the last call; empty if nothing did that deserves a bell.

        ``exit_reason``: what became of a run that ended without its last record. ``stop_asked``: the viewer
        itself asked for the end: its user is there, and needs to hear of a failure only.
        """
        name = run_label(view)
        if exit_reason and not self._exit_reported:
            self._exit_reported = True
            return f"{name}: {exit_reason}"
        stall = "" if stop_asked else self._stall.news(view)
        if view.events is self._events:
            return stall and f"{name}: {stall}"
        self._events = view.events
        fresh = [
            event
            for event in view.events
            if event.time >= self._since
            and (event.severity == "error" or event.kind == "finished")
            and event.number not in self._reported
        ]
        self._reported.update(event.number for event in fresh)
        news = [event for event in fresh if self._is_news(event, view, stop_asked=stop_asked)]
        if not news:
            return stall and f"{name}: {stall}"
        first = max(news, key=lambda event: _URGENCY.get(event.kind, 0))
        if first.kind == "pause":
            return f"{name} needs an answer: {view.pause_reason}"
        return f"{name}: {event_text(first)}"

    def _is_news(self, event: Event, view: SessionView, *, stop_asked: bool) -> bool:
        if stop_asked:
            return event.kind == "failed"
        if event.kind == "pause":
            return bool(view.pause_reason)  # otherwise it has its answer
        cause = event.kind if event.kind in ("skip", "nonfinite") else event_text(event)
        before = self._alarmed_at.get(cause)
        if before is not None and event.time - before < MIN_REPEAT_SECONDS:
            return False
        self._alarmed_at[cause] = event.time
        return True


class _Stall:
    """Notices that steps have stopped coming although the run should make some.

    No stall is a pause, a validation of ours, or what comes before the first step; nor a checkpoint, which
    trains on while it is written and copies its tensors far faster than ``MIN_STALL_SECONDS``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._steps: tuple[int, ...] = ()
        self._since = clock()
        self._longest_pause_seconds = 0.0
        self._is_reported = False

    def news(self, view: SessionView) -> str:
        """What to say of a stall, once until steps come again; empty if there is none."""
        now = self._clock()
        steps = (view.step, *(optimizer.step for optimizer in view.optimizers))
        if steps != self._steps or not _makes_steps(view):
            if self._steps and self._steps[0] and _makes_steps(view):
                self._longest_pause_seconds = max(self._longest_pause_seconds, now - self._since)
            self._steps, self._since, self._is_reported = steps, now, False
            return ""
        seconds = now - self._since
        longest = max(
            MIN_STALL_SECONDS,
            STALL_STEPS * (view.step_seconds or 0.0),
            STALL_PAUSES * self._longest_pause_seconds,
        )
        if self._is_reported or seconds < longest:
            return ""
        self._is_reported = True
        return f"no step for {units.duration(seconds)}, after step {view.step:,}"


def _makes_steps(view: SessionView) -> bool:
    is_training = view.phase is None or view.phase.phase == "training"
    return view.state == "running" and view.step > 0 and is_training
