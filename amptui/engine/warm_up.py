"""Decides from step times, not from a fixed number, when the warm-up after a start or a switch ends."""

from collections import deque
from statistics import median

MIN_STEPS = 10
"""Steps that are left out in any case: autotuning, allocator and caches take the first ones."""

MAX_STEPS = 50
"""Steps after which a stretch counts as settled whatever its times do: some loops never are."""

_WITHIN = 0.03
"""Two medians of five steps that are nearer than that are taken for the same."""

_NOISE_FACTOR = 1.55
"""So many spreads apart two medians of five normal values are in 5% of cases: 1.96 x 1.25 x sqrt(2 / 5)."""

_MAD_TO_SPREAD = 1.4826
"""A normal distribution's standard deviation by its median absolute deviation."""


class WarmUp:
    """Watches the step times of one stretch until their median is stable.

    Settled are the steps after the first ten if the last ten tell of no trend: the median of their older
    half and that of their newer one differ by 3% at most, or by no more than their noise explains.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=MIN_STEPS)
        self._steps = 0
        self._stands_still = False

    def begin_step(self) -> bool:
        """Count a step that is about to run; whether it is still a warm-up step."""
        self._steps += 1
        return self._steps <= MIN_STEPS or not (self._stands_still or self._steps > MAX_STEPS)

    def add(self, step_seconds: float | None) -> None:
        """Take in a step's time as it becomes known; None where it was not measured."""
        if step_seconds is None or self._stands_still:
            return
        self._recent.append(step_seconds)
        if len(self._recent) == MIN_STEPS:
            self._stands_still = _without_trend(list(self._recent))


def _without_trend(seconds: list[float]) -> bool:
    half = len(seconds) // 2
    older, newer = seconds[:half], seconds[half:]
    before, after = median(older), median(newer)
    apart = [*(abs(value - before) for value in older), *(abs(value - after) for value in newer)]
    noise = _NOISE_FACTOR * _MAD_TO_SPREAD * median(apart)
    return abs(after - before) <= max(_WITHIN * before, noise)
