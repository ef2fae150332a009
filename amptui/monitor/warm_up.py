"""Decides from step times when the warm-up after a start or a switch ends."""

from collections import deque
from collections.abc import Iterable
from statistics import median

MIN_STEPS = 10
"""The shortest warm-up: autotuning, the allocator and caches slow down the first steps."""

MAX_STEPS = 50
"""The longest warm-up: the step times of some loops never become stable."""

_TOLERANCE = 0.03
"""Two medians of five steps that differ by less count as equal."""

_NOISE_FACTOR = 1.55
"""Two medians of five normal values differ by this many standard deviations in 5% of cases:
1.96 x 1.25 x sqrt(2 / 5)."""

_MAD_TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation divided by its median absolute deviation."""


class WarmUp:
    """Watches step times until their median is stable.

    The warm-up ends after ten steps or more, when the last ten show no trend: the medians of their older and
    their newer half differ by at most 3%, or by no more than noise explains.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=MIN_STEPS)
        self._steps = 0
        self._stable = False

    def begin_step(self) -> bool:
        """Count a step that is about to run; returns whether it is a warm-up step."""
        self._steps += 1
        return self._steps <= MIN_STEPS or not (self._stable or self._steps > MAX_STEPS)

    def add(self, step_seconds: Iterable[float | None]) -> None:
        """Add the times of steps when they become known; None for one that was not measured."""
        for seconds in () if self._stable else step_seconds:
            if seconds is not None and not self._stable:
                self._recent.append(seconds)
                self._stable = len(self._recent) == MIN_STEPS and _has_no_trend(list(self._recent))


def _has_no_trend(seconds: list[float]) -> bool:
    half = len(seconds) // 2
    older, newer = seconds[:half], seconds[half:]
    before, after = median(older), median(newer)
    deviations = [*(abs(value - before) for value in older), *(abs(value - after) for value in newer)]
    noise = _NOISE_FACTOR * _MAD_TO_DEVIATION * median(deviations)
    return abs(after - before) <= max(_TOLERANCE * before, noise)
