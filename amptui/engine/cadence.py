"""How often a measurement may be taken so that all of them together stay a small part of the time."""

import time
from collections import deque
from collections.abc import Callable


class Cadence:
    """Allows a measurement whenever ``budget`` of the time since the last one would pay for it.

    The first two are always allowed. What one costs is the cheaper of the last two: the first of all, say,
    is slow because its code is cold.
    """

    def __init__(self, budget: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._budget = budget
        self._clock = clock
        self._costs_seconds: deque[float] = deque((0.0, 0.0), maxlen=2)
        self._last = clock()

    def due(self) -> bool:
        """Whether the next measurement is paid for."""
        return (self._clock() - self._last) * self._budget >= min(self._costs_seconds)

    def measured(self, began: float) -> None:
        """Account for a measurement that ``began`` at that time of the clock and ends now."""
        self._last = self._clock()
        self._costs_seconds.append(self._last - began)
