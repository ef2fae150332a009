"""How often to draw: two to four times a second, for no more than one percent of the machine."""

import time
from collections import deque
from statistics import median

MAX_FRAMES_PER_SECOND = 4.0

CPU_BUDGET = 0.01
"""The fraction of all cores that the screen may take: it is in a process of its own, but the training needs
the same cores to load its batches and to launch its kernels."""

MAX_INTERVAL_SECONDS = 0.5
"""The slowest rate: however expensive a frame is, the screen visibly updates."""

_FRAMES_REMEMBERED = 9
"""The median over these sets the pace, so that one expensive frame (an import, a resize) does not."""


class Pace:
    """Measures what the calling thread spends between frames and sets the next interval by it.

    ``cores`` is how many this process may use. ``frames_per_second`` fixes the rate instead. Call from the
    one thread that draws.
    """

    def __init__(self, frames_per_second: float | None = None, *, cores: float = 1.0) -> None:
        self._budget = CPU_BUDGET * cores
        self._fixed = frames_per_second
        self._cpu_seconds = time.thread_time()
        self._wall_seconds = time.monotonic()
        self._costs: deque[float] = deque(maxlen=_FRAMES_REMEMBERED)
        self._intervals: deque[float] = deque(maxlen=_FRAMES_REMEMBERED)

    @property
    def frames_per_second(self) -> float | None:
        """As measured over the last frames."""
        return len(self._intervals) / sum(self._intervals) if sum(self._intervals) else None

    @property
    def cpu_percent(self) -> float | None:
        """Of one core: all that the drawing thread did over the last frames."""
        return 100 * sum(self._costs) / sum(self._intervals) if sum(self._intervals) else None

    def next_interval_seconds(self) -> float:
        """Account for the frame that was just drawn; how long to wait until the next."""
        cpu, wall = time.thread_time(), time.monotonic()
        self._costs.append(cpu - self._cpu_seconds)
        self._intervals.append(wall - self._wall_seconds)
        self._cpu_seconds, self._wall_seconds = cpu, wall
        if self._fixed is not None:
            return 1 / self._fixed
        return min(MAX_INTERVAL_SECONDS, max(1 / MAX_FRAMES_PER_SECOND, median(self._costs) / self._budget))
