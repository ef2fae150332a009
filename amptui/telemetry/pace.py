"""How fast steps run now, and when the run will end at that pace."""

from collections import deque
from dataclasses import dataclass, field

from amptui.telemetry.comparison import median, samples_per_second
from amptui.telemetry.stretch import Stretch

WINDOW_STEPS = 50
"""The pace is over so many of the newest timed steps."""


@dataclass(slots=True, eq=False)
class Pace:
    """The newest timed steps in any precision, and those of the current one after warm-up."""

    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _samples: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _settled_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _precision: str | None = None

    def add(self, stretch: Stretch) -> None:
        """Add a stretch of steps; warm-up or another precision resets the estimate of the time left."""
        self._seconds.extend(stretch.timed_seconds[-WINDOW_STEPS:])
        self._samples.extend(stretch.timed_samples[-WINDOW_STEPS:])
        if stretch.settling or stretch.precision != self._precision:
            self._settled_seconds.clear()
        self._precision = stretch.precision
        if not stretch.settling:
            self._settled_seconds.extend(stretch.timed_seconds[-WINDOW_STEPS:])

    @property
    def step_seconds(self) -> float | None:
        """The mean of the newest timed steps, hiccups included."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    @property
    def samples_per_second(self) -> float | None:
        """Over the same steps."""
        return samples_per_second(self._samples, self._seconds)

    def eta_seconds(self, steps_left: int) -> float | None:
        """The time for the remaining steps, without validation; None during warm-up."""
        seconds = median(self._settled_seconds)
        return None if seconds is None else seconds * max(0, steps_left)
