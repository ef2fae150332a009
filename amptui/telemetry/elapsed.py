"""How long a run has been training, from the times of its records, even if the clock is changed meanwhile."""

import math
from dataclasses import dataclass

from amptui.records import Record, RunResumed, RunStarted

LATE_SECONDS = 60.0
"""How much older a record may be than the one before it: several threads emit them, and some wait for a
device. A record that is older still was written after the clock had been set back."""

SILENT_SECONDS = 600.0
"""A training run is never silent for so long: its sampler emits once a second. Between two records further
apart the machine slept, or the clock was set forward."""


@dataclass(slots=True, eq=False)
class RunningTime:
    """Adds up the time between records, without the time in which no process of the run was awake.

    It is the wall clock: it jumps when it is set, and continues while a laptop sleeps.
    """

    seconds: float = 0.0
    _newest: float | None = None

    def take(self, record: Record) -> None:
        """Count the time until ``record``."""
        if isinstance(record, RunStarted):
            self.start(record.time)
        elif isinstance(record, RunResumed):
            self.resume(record.time)
        else:
            self.see(record.time)

    def start(self, time: float) -> None:
        """A run begins at ``time``, Unix seconds."""
        self.seconds = 0.0
        self.resume(time)

    def resume(self, time: float) -> None:
        """Another process continues the run at ``time``; the time since the last record does not count."""
        self._newest = time if math.isfinite(time) else None

    def see(self, time: float, busy_seconds: float | None = None) -> None:
        """A record of ``time`` arrived; a step that took ``busy_seconds`` explains a silence of so long."""
        newest = self._newest
        if newest is None or time < newest - LATE_SECONDS:
            self.resume(time)
            return
        passed = time - newest
        if not 0.0 < passed < math.inf:
            return
        self._newest = time
        if passed > SILENT_SECONDS:
            known = busy_seconds if busy_seconds is not None and busy_seconds > 0.0 else 0.0
            passed = min(passed, known)
        self.seconds += passed
