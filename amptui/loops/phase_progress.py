"""Emits the progress of long work between steps, a few times a second."""

import time
from collections.abc import Callable
from typing import Literal

from amptui.records.run import Phase, PhaseChanged, Record

INTERVAL_SECONDS = 0.25


class PhaseProgress:
    """Emits the progress of one phase."""

    def __init__(self, emit: Callable[[Record], object], phase: Phase) -> None:
        self._emit = emit
        self._phase: Phase = phase
        self._due = 0.0
        self._detail = ""

    def report(
        self,
        detail: str,
        count: int | None = None,
        total: int | None = None,
        unit: Literal["bytes", "samples", "batches"] | None = None,
    ) -> None:
        """Emit the progress if it is time, and always if ``detail`` changes or ``count`` is ``total``."""
        now, at_end = time.monotonic(), count is not None and count == total
        if now >= self._due or detail != self._detail or at_end:
            self._due, self._detail = now + INTERVAL_SECONDS, detail
            self._emit(
                PhaseChanged(
                    time=time.time(), phase=self._phase, detail=detail, done=count, total=total, unit=unit
                )
            )
