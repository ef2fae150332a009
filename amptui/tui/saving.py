"""A checkpoint that was asked for from this screen, until it is there or came to nothing."""

from typing import NamedTuple

from amptui.records import CheckpointWritten
from amptui.telemetry.view import Event, SessionView

_FAILED = "no checkpoint"
"""How the engine's note begins when one came to nothing: training goes on without it."""


class _Asked(NamedTuple):
    """What the session knew when it was asked for: what is newer answers it."""

    newest: CheckpointWritten | None
    trouble: Event | None
    step: int


class Saving:
    """Remembers that a checkpoint was asked for, and tells once what became of it."""

    def __init__(self) -> None:
        self._asked: _Asked | None = None

    def ask(self, view: SessionView) -> None:
        """A checkpoint was asked for while the session looked like ``view``."""
        self._asked = self._asked or _Asked(view.checkpoint, _trouble(view), view.step)

    def came(self, view: SessionView) -> Event | None:
        """The line that tells of the checkpoint, or why there is none, once there is one."""
        if self._asked is None:
            return None
        trouble = _trouble(view)
        if trouble is not None and trouble != self._asked.trouble:
            self._asked = None
            return trouble
        if _answers(view.checkpoint, self._asked):
            self._asked = None
            return _line_of(view)
        if view.state in ("finished", "failed"):
            self._asked = None
        return None

    def words(self) -> str:
        """``checkpoint after this step …``; empty when nothing is waited for."""
        return "checkpoint after this step …" if self._asked is not None else ""


def _answers(written: CheckpointWritten | None, asked: _Asked) -> bool:
    """Whether it is the one that was asked for, not one that was being written at that time."""
    if written is None or written == asked.newest:
        return False
    return written.reason == "asked" or written.step > asked.step


def _line_of(view: SessionView) -> Event | None:
    """The newest checkpoint's line in the list of events."""
    begins = f"checkpoint {view.checkpoint.name}" if view.checkpoint is not None else ""
    return next((event for event in view.events if event.text.startswith(begins)), None)


def _trouble(view: SessionView) -> Event | None:
    """The newest line that tells of a checkpoint that could not be written."""
    return next((event for event in view.events if event.text.startswith(_FAILED)), None)
