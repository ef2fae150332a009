"""The smoothed loss and the best loss so far."""

import math
from dataclasses import dataclass

from amptui.telemetry.stretch import Stretch

SMOOTHING = 0.98
"""The decay of the moving average per finite loss: it spans about 50 steps."""


@dataclass(slots=True, eq=False)
class LossSummary:
    """Exponential moving average and minimum of the finite losses, and the number of unmeasured ones."""

    best: float | None = None
    best_step: int | None = None
    unmeasured_steps: int = 0
    _average: float = 0.0
    _weight: float = 0.0

    def add(self, stretch: Stretch) -> None:
        """Add a stretch of steps."""
        losses = stretch.losses
        finite = [loss for loss in losses if loss is not None and -math.inf < loss < math.inf]
        if len(finite) < len(losses):
            self.unmeasured_steps += losses.count(None)
        if not finite:
            return
        average, weight = self._average, self._weight
        for loss in finite:
            average += (1 - SMOOTHING) * (loss - average)
            weight += (1 - SMOOTHING) * (1 - weight)
        self._average, self._weight = average, weight
        lowest = min(finite)
        if self.best is None or lowest < self.best:
            self.best, self.best_step = lowest, stretch.first_step + losses.index(lowest)

    @property
    def smoothed(self) -> float | None:
        """The moving average with bias correction, as in Adam (Kingma and Ba, 2015)."""
        return self._average / self._weight if self._weight else None
