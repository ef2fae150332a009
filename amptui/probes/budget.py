"""Limits how often a measurement is taken, so that all of them together take a small part of the time."""

import time
from collections import deque
from collections.abc import Callable

GRADIENTS_BUDGET = 0.0012
WINDOW_BUDGET = 0.001
TIMELINE_BUDGET = 0.0006
BUFFERS_BUDGET = 0.0002
UPDATES_BUDGET = 0.0003
"""The fraction of the training's time that each measurement may take: gradient norms, float16 histograms,
timed steps, buffer checks and update ratios. Together 0.33%, so that watching a training does not slow it
down noticeably."""


class Cadence:
    """Decides when a measurement may be taken, so that it costs at most ``budget``, a fraction of the time.

    Each second earns ``budget`` seconds of credit, up to the cost of one measurement. A measurement is due
    when the credit covers its expected cost, the lower of the last two; then its real cost is deducted. The
    first ``free`` measurements (one or two) cost no credit: they run cold code and say little about later
    ones. What a measurement costs on a GPU is known only later; until it is charged, no other is due.
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
        """Whether an urgent measurement may be taken on credit: the one before is paid off.

        It is charged like any other, so the next one comes later.
        """
        return not self._uncharged and self._credit_at(self._clock()) >= 0.0

    def charge_since(self, began: float) -> None:
        """Charge a measurement that ``began`` at that time of the clock and ends now."""
        now = self._clock()
        self._credit_seconds, self._last = self._credit_at(began), now
        self.charge(now - began)

    def begin(self) -> None:
        """Begin a measurement whose cost :meth:`charge` gets later."""
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
