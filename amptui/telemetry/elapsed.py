"""How long a run has been training by the times of its records, whatever is done to the clock meanwhile."""

import math
from dataclasses import dataclass

LATE_SECONDS = 60.0
"""By how much a record may be older than one that came before it: threads emit them, and some wait for a
device. What is older yet was written after the clock had been set back."""

SILENT_SECONDS = 600.0
"""A run that trains is never silent for so long: its sampler speaks once a second. What lies between two
records further apart was a sleeping machine, or the clock was set forward."""


@dataclass(slots=True, eq=False)
class RunningTime:
    """Adds up the time between records, but for what no process of the run was awake in.

    The clock is the one people see: it jumps when it is set, and goes on while a laptop sleeps.
    """

    seconds: float = 0.0
    _newest: float | None = None

    def start(self, time: float) -> None:
        """A run begins at ``time``, Unix seconds."""
        self.seconds = 0.0
        self.resume(time)

    def resume(self, time: float) -> None:
        """Another process goes on at ``time``: what lies before it was nobody's."""
        self._newest = time if math.isfinite(time) else None

    def see(self, time: float, busy_seconds: float | None = None) -> None:
        """A record of ``time`` came; a step that took ``busy_seconds`` explains a silence of so long."""
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
