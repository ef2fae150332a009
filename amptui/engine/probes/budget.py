"""Limits how often a measurement is taken, so that all of them together take a small part of the time."""

import time
from collections import deque
from collections.abc import Callable

GRADIENTS_BUDGET = 0.0012
WINDOW_BUDGET = 0.001
TIMELINE_BUDGET = 0.0006
BUFFERS_BUDGET = 0.0002
"""The fractions of the time that gradient norms, float16 histograms, timed steps and buffer checks may take:
together 0.3%, so that watching a training does not slow it down."""


class Cadence:
    """Allows a measurement as soon as ``budget``, a fraction of the time, covers its cost.

    The first ``free`` (one or two) are not charged: code is cold then. After that, time earns credit, and a
    measurement is due when the credit covers the expected cost, the lower of the last two. Its real cost is
    deducted, so an expensive one delays the next. Credit does not accumulate beyond one measurement. A
    device's cost is known only later: it is charged then, and no measurement is due before.
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
        """Whether a measurement may be taken now."""
        if self._uncharged:
            return False
        return self._free > 0 or self._credit_at(self._clock()) >= min(self._costs_seconds)

    @property
    def may_borrow(self) -> bool:
        """Whether a measurement that cannot wait may be taken: no debt is left of the one before.

        It is charged like any other, so that the next one comes later.
        """
        return not self._uncharged and self._credit_at(self._clock()) >= 0.0

    def measured(self, began: float) -> None:
        """Charge a measurement that ``began`` at that time of the clock and ends now."""
        now = self._clock()
        self._credit_seconds, self._last = self._credit_at(began), now
        self.charge(now - began)

    def begin(self) -> None:
        """Begin a measurement; :meth:`charge` follows later."""
        now = self._clock()
        self._credit_seconds, self._last = self._credit_at(now), now
        self._uncharged = True

    def charge(self, seconds: float | None) -> None:
        """Charge the last measurement; None if its cost was not measured."""
        self._uncharged = False
        if seconds is None:
            if not self._costs_seconds:
                return
            seconds = min(self._costs_seconds)
        if self._free:
            self._free -= 1
        else:
            self._credit_seconds -= seconds
        self._costs_seconds.append(seconds)

    def _credit_at(self, now: float) -> float:
        credit = self._credit_seconds + (now - self._last) * self._budget
        return min(credit, min(self._costs_seconds, default=0.0))
