"""How often a measurement may be taken so that all of them together stay a small part of the time."""

import time
from collections import deque
from collections.abc import Callable

GRADIENTS_BUDGET = 0.0012
WINDOW_BUDGET = 0.001
TIMELINE_BUDGET = 0.0006
BUFFERS_BUDGET = 0.0002
"""The parts of the time that gradient norms, float16 windows, timed steps and looks at buffers may take:
together 0.3%, so that what watches a training is not what slows it."""


class Cadence:
    """Allows a measurement whenever ``budget`` of the time has paid for it.

    The first ``free``, one or two, cost nothing: code is cold then. From there on time earns credit, and a
    measurement is due when the credit covers what it is expected to cost, the cheaper of the last two. What
    it really costs is taken off: a dear one is paid for before the next. Credit is not saved up over a
    pause. A cost that is known only later, a device's, is charged when it is; until then none is due.
    """

    def __init__(
        self, budget: float, *, free: int = 2, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._budget = budget
        self._free = free
        self._clock = clock
        self._costs_seconds: deque[float] = deque(maxlen=2)
        self._credit_seconds = 0.0
        self._last = clock()
        self._uncharged = False

    def due(self) -> bool:
        """Whether the next measurement is paid for."""
        if self._uncharged:
            return False
        return self._free > 0 or self._credit_at(self._clock()) >= min(self._costs_seconds)

    def measured(self, began: float) -> None:
        """Account for a measurement that ``began`` at that time of the clock and ends now."""
        now = self._clock()
        self._credit_seconds, self._last = self._credit_at(began), now
        self._pay(now - began)

    def begin(self) -> None:
        """A measurement begins whose cost will be charged."""
        now = self._clock()
        self._credit_seconds, self._last = self._credit_at(now), now
        self._uncharged = True

    def charge(self, seconds: float | None) -> None:
        """Account for the measurement that began last; None if its cost was not measured."""
        self._uncharged = False
        if seconds is not None:
            self._pay(seconds)
        elif self._costs_seconds:
            self._pay(min(self._costs_seconds))

    def _pay(self, seconds: float) -> None:
        if self._free:
            self._free -= 1
        else:
            self._credit_seconds -= seconds
        self._costs_seconds.append(seconds)

    def _credit_at(self, now: float) -> float:
        credit = self._credit_seconds + (now - self._last) * self._budget
        return min(credit, min(self._costs_seconds, default=0.0))
