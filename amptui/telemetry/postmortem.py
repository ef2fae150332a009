"""What is known of consecutive skipped steps, as lines to read."""

import math
from collections import deque
from dataclasses import dataclass, field

from amptui import units
from amptui.findings import ModuleRange, ModulesTraced
from amptui.records import StepSkipped
from amptui.telemetry.health import what_overflowed_first
from amptui.telemetry.nonfinite import by_module

KEPT = 5
"""Skips kept from each end of a row: a collapse has hundreds that look the same."""

TRACE_WITHIN_STEPS = 10
"""A trace up to so many steps after a skip belongs to it: hooks are installed once the host knows of it."""


@dataclass(slots=True, eq=False)
class PostMortem:
    """The first and last skips of a row, and the result of a trace during or right after it."""

    _first: list[StepSkipped]
    _last: deque[StepSkipped] = field(default_factory=lambda: deque(maxlen=KEPT))
    count: int = 1
    _trace: ModulesTraced | None = None

    @property
    def first(self) -> StepSkipped:
        """The row's first skip."""
        return self._first[0]

    @property
    def last(self) -> StepSkipped:
        """The row's newest skip."""
        return (self._last or self._first)[-1]

    def add(self, skip: StepSkipped) -> None:
        """Add the row's next skip."""
        self.count += 1
        if len(self._first) < KEPT:
            self._first.append(skip)
        else:
            self._last.append(skip)

    def add_trace(self, trace: ModulesTraced) -> bool:
        """Add a trace if it belongs to these skips and no earlier one named a module."""
        if self._trace is not None and self._trace.first is not None:
            return False
        if not self.first.step <= trace.step <= self.last.step + TRACE_WITHIN_STEPS:
            return False
        self._trace = trace
        return True

    @property
    def began(self) -> ModuleRange | None:
        """The module that a trace found to overflow first."""
        return self._trace.first if self._trace is not None else None

    def lines(self) -> list[str]:
        """A line for each skip kept, and one for the trace."""
        left_out = self.count - len(self._first) - len(self._last)
        lines = [_line(skip) for skip in self._first]
        if left_out:
            lines.append(f"{units.count(left_out)} more")
        lines += [_line(skip) for skip in self._last]
        if self._trace is not None:
            found = what_overflowed_first(self._trace) or "nothing overflowed"
            lines.append(f"trace of step {units.count(self._trace.step)}: {found}")
        return lines


def _line(skip: StepSkipped) -> str:
    """``step 612, scale 131,072, loss 0.503: Inf in features.13.conv (weight); 2 more``."""
    loss = "not measured" if skip.loss is None else units.loss(skip.loss)
    finite = "" if skip.loss is None or math.isfinite(skip.loss) else " (not finite)"
    step = f"step {units.count(skip.step)}, scale {units.count(skip.loss_scale)}, loss {loss}{finite}"
    found = by_module(skip.names, skip.kinds, skip.count)
    if not found and skip.count:
        found = f"NaN or Inf in {units.count(skip.count)} gradients"
    return f"{step}: {found}" if found else step
