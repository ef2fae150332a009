"""A precision that was asked for from this screen, until it runs or need not be waited for any more."""

from typing import NamedTuple

from amptui.telemetry.view import PrecisionSwitch, SessionView

_OVERRULED_SECONDS = 5.0
_OVERRULED_STEPS = 8
"""The trainer takes a request at the next step boundary. After so long and so many steps without a switch
another screen has asked for something else, and the last request wins."""


class _Asked(NamedTuple):
    """What was asked for, when, and what the session knew."""

    precision: str
    time: float
    step: int
    newest: tuple[PrecisionSwitch, ...]


class Switching:
    """Remembers what was asked for and tells for how long the header shows it."""

    def __init__(self) -> None:
        self._asked: _Asked | None = None

    def ask(self, precision: str, view: SessionView, now: float) -> None:
        """``precision`` was asked for while the session looked like ``view``; ``now`` is a steady clock's."""
        self._asked = _Asked(precision, now, view.step, view.switches[-1:])

    def wanted(self, view: SessionView, now: float) -> str | None:
        """What the trainer has not confirmed yet; None while nothing is waited for."""
        asked = self._asked
        if asked is None:
            return None
        overruled = (
            now - asked.time > _OVERRULED_SECONDS and view.step - asked.step >= _OVERRULED_STEPS
        ) or view.switches[-1:] != asked.newest
        if asked.precision == view.precision or overruled or view.state in ("finished", "failed"):
            self._asked = None
        return self._asked.precision if self._asked is not None else None
