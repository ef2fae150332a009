"""How far a run is: its speed, the time left, and the time it has been training."""

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile

from amptui.models import CATALOGUE
from amptui.records.run import PhaseChanged, Record, RunResumed, RunStarted
from amptui.records.steps import Steps
from amptui.telemetry.comparison import mean, samples_per_second
from amptui.telemetry.finding import Finding

WINDOW_STEPS = 50
"""The pace is over so many of the newest timed steps."""

SLOW_SECONDS = 300.0
"""An epoch that takes longer is slow: a first look is shorter, and simple-cnn's epoch takes a minute on two
cores."""


@dataclass(slots=True, eq=False)
class Pace:
    """The newest timed and applied steps in any precision, and those of the current one after warm-up.

    While the scaler has skipped so many steps in a row, there is no pace: the older steps say nothing of now.
    """

    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _samples: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _settled_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _precision: str | None = None
    _skips_in_a_row: int = 0

    def add(self, steps: Steps) -> None:
        """Add steps; the forecast is of settled ones in one precision."""
        skips = sum(1 for _ in takewhile(bool, reversed(steps.skips)))
        self._skips_in_a_row = skips + (self._skips_in_a_row if skips == steps.count else 0)
        if self._skips_in_a_row >= WINDOW_STEPS:
            self._seconds.clear()
            self._samples.clear()
        seconds = steps.timed("step_seconds")[-WINDOW_STEPS:]
        self._seconds.extend(seconds)
        self._samples.extend(steps.timed("samples")[-WINDOW_STEPS:])
        if not steps.settling and seconds:
            if steps.precision != self._precision:
                self._settled_seconds.clear()
            self._precision = steps.precision
            self._settled_seconds.extend(seconds)

    @property
    def step_seconds(self) -> float | None:
        """The mean of the newest timed steps, hiccups included."""
        return mean(self._seconds)

    @property
    def samples_per_second(self) -> float | None:
        """Over the same steps."""
        return samples_per_second(self._samples, self._seconds)

    def eta_seconds(self, steps_left: int) -> float | None:
        """The time for the remaining steps at the mean pace of the newest settled ones, without validation.

        A second at least while steps are left. None during the first warm-up: a later one, after a switch or
        beside a trace, keeps the forecast.
        """
        seconds = mean(self._settled_seconds)
        return None if seconds is None else max(1.0, seconds * steps_left) if steps_left > 0 else 0.0


@dataclass(slots=True, eq=False)
class RunningTime:
    """Adds up the time from the first to the newest record of each process of the run, on the wall clock."""

    _earlier_seconds: float = 0.0
    """Of the processes before."""
    _began: float | None = None
    _newest: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self._earlier_seconds + (0.0 if self._began is None else self._newest - self._began)

    def take(self, record: Record) -> None:
        """Count the time until ``record``."""
        begins = isinstance(record, PhaseChanged) and record.phase == "importing"
        if begins or isinstance(record, (RunStarted, RunResumed)):  # another process
            self._earlier_seconds = 0.0 if isinstance(record, RunStarted) else self.seconds
            self._began = None
        self._extend_to(record.time)

    def see_steps(self, steps: Steps) -> None:
        """A block of steps ended."""
        self._extend_to(steps.time - sum(filter(None, steps.step_seconds[1:])))
        self._extend_to(steps.time)

    def _extend_to(self, time: float) -> None:
        if not math.isfinite(time):
            return
        if self._began is None:
            self._began = self._newest = time
        self._newest = max(self._newest, time)


def judge_start(block: Steps, run: RunStarted) -> Finding | None:
    """What a step and an epoch cost on a CPU, where that is much; None without the second step or where not.

    The first step has work that comes once. Only of a training that has amptui's options.
    """
    at, epoch = 2 - block.first_step, run.steps_per_epoch or 0
    if not 0 <= at < block.count or block.optimizer or run.device != "cpu" or "experiment" not in run.config:
        return None
    seconds = block.step_seconds[at] or 0.0
    if not epoch * seconds > SLOW_SECONDS or (run.total_steps or epoch) < epoch:
        return None
    ways = [f"--batch-size {min(32, math.ceil(batch / 4))}"] if (batch := run.batch_size or 1) > 1 else []
    ways += ["simple-cnn"] if run.model in CATALOGUE and run.model != "simple-cnn" else []
    numbers = {"seconds": seconds, "epoch_seconds": epoch * seconds}
    names = {"cheaper": " or ".join(ways)}
    return Finding(subject="cost", state="slow", grade="warning", numbers=numbers, names=names, step=2)
