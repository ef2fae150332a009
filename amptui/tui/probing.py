"""Which measurements were asked for from this screen and have not come yet."""

from typing import NamedTuple

from amptui.control import Probe
from amptui.telemetry.view import SessionView

_NAMES: dict[Probe, str] = {"x-ray": "X-ray", "trace": "trace"}

_FAILED = "no X-ray: "
"""How the engine's note begins when an X-ray came to nothing: training goes on without it."""


class Came(NamedTuple):
    """A measurement that is not waited for any more."""

    probe: Probe
    failure: str = ""
    """Why there is none; empty when its record is in the view."""


class _Asked(NamedTuple):
    """What the session knew when the measurement was asked for: what is newer answers it."""

    newest_time: float | None
    failure: str


class Probing:
    """Remembers what was asked for, and tells once what became of it."""

    def __init__(self) -> None:
        self._asked: dict[Probe, _Asked] = {}

    def ask(self, probe: Probe, view: SessionView) -> None:
        """``probe`` was asked for while the session looked like ``view``."""
        self._asked.setdefault(probe, _Asked(_newest_time(view, probe), _failure(view)))

    def came(self, view: SessionView) -> list[Came]:
        """What came since the last call; a run that ended leaves nothing to wait for."""
        came = [each for probe, asked in self._asked.items() if (each := _answer(view, probe, asked))]
        for each in came:
            del self._asked[each.probe]
        if view.state in ("finished", "failed"):
            self._asked.clear()
        return came

    def words(self, view: SessionView) -> str:
        """``X-ray with the next step …``; empty when nothing is waited for."""
        if not self._asked:
            return ""
        names = " and ".join(_NAMES[probe] for probe in self._asked)
        when = "when training goes on" if view.state == "paused" else "with the next step"
        return f"{names} {when} …"


def _answer(view: SessionView, probe: Probe, asked: _Asked) -> Came | None:
    if _newest_time(view, probe) != asked.newest_time:
        return Came(probe)
    failure = _failure(view)
    failed = probe == "x-ray" and failure not in ("", asked.failure)
    return Came(probe, failure) if failed else None


def _newest_time(view: SessionView, probe: Probe) -> float | None:
    """When the newest measurement of that kind was taken; None before the first."""
    newest = view.numerics.xray if probe == "x-ray" else view.numerics.trace
    return None if newest is None else newest.time


def _failure(view: SessionView) -> str:
    """The newest line that tells of a failed X-ray; a second one for the same reason is counted there."""
    return next((event.text for event in view.events if event.text.startswith(_FAILED)), "")
