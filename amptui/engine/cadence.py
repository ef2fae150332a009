"""How often a measurement may be taken so that all of them together stay a small part of the time."""

import time
from collections.abc import Callable


class Cadence:
    """Allows a measurement whenever ``budget`` of the time since the last one would pay for it.

    The first is always allowed. What one costs is taken from those before: the newest counts half.
    """

    def __init__(self, budget: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._budget = budget
        self._clock = clock
        self._cost_seconds = 0.0
        self._last = clock()

    def due(self) -> bool:
        """Whether the next measurement is paid for."""
        return (self._clock() - self._last) * self._budget >= self._cost_seconds

    def measured(self, began: float) -> None:
        """Account for a measurement that ``began`` at that time of the clock and ends now."""
        self._last = self._clock()
        seconds = self._last - began
        self._cost_seconds = (self._cost_seconds + seconds) / 2 if self._cost_seconds else seconds
