"""Which steps a plot shows, and the column of each step."""

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from amptui.telemetry.axis import round_down
from amptui.telemetry.view import Counts, PrecisionSwitch, Series

GUTTER = 8
"""Cells left of a plot's first column: seven for the y label and a blank, also left of ribbon and axis."""

_MIN_STEPS = 32
"""A window shows at least so many steps: a run begins at its left end."""

_MAX_FREE_PART = 16
"""Right of a slow curve, at most one in so many columns is free."""

_STILL_SECONDS = 6.0
"""How long a fast curve grows before its window moves, which changes some 4 KB of cells."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps from ``first_step`` to ``last_step``, both included, spread evenly over all columns.

    Several steps may share a column. A step may also have several columns: it begins in the first.
    """

    first_step: int
    last_step: int

    @property
    def steps(self) -> int:
        """How many steps are shown, at least 1."""
        return max(1, self.last_step - self.first_step + 1)

    def __contains__(self, step: int) -> bool:
        return self.first_step <= step <= self.last_step

    def within(self, whole: "Window") -> "Window":
        """As many steps, moved into ``whole``; that if there are more."""
        if self.steps >= whole.steps:
            return whole
        first = min(max(self.first_step, whole.first_step), whole.last_step - self.steps + 1)
        return Window(first, first + self.steps - 1)

    def centred_on(self, step: int) -> "Window":
        """As many steps around ``step``."""
        first = step - self.steps // 2
        return Window(first, first + self.steps - 1)

    def zoomed(self, step: int, steps: int) -> "Window":
        """``steps`` of them, at least ``_MIN_STEPS``; ``step`` keeps its place across the width."""
        steps = max(_MIN_STEPS, steps)
        first = step - (step - self.first_step) * steps // self.steps
        return Window(first, first + steps - 1)

    def column_of(self, step: int, columns: int) -> int:
        """The column where ``step`` begins, limited to ``[0, columns)``."""
        return min(max(0, self._columns_before(step, columns)), columns - 1)

    def columns_through(self, step: int, columns: int) -> int:
        """How many columns there are up to the end of ``step``, at least to the one where it begins."""
        begin = self.column_of(step, columns)
        return min(max(begin + 1, self._columns_before(step + 1, columns)), columns)

    def _columns_before(self, step: int, columns: int) -> int:
        return (step - self.first_step) * columns // self.steps

    def columns_of(self, steps: Counts, columns: int) -> Counts:
        """``column_of`` for many steps at once."""
        columns_of: Counts = np.clip((steps - self.first_step) * columns // self.steps, 0, columns - 1)
        return columns_of


def visible_window(series: Series, zoom: int, *, ahead: int = 0) -> Window:
    """The window of ``series`` at a zoom level: 0 shows the whole run, each level half as many steps.

    It ends at a round step at or after the newest: the curve grows into free columns and rarely moves as a
    whole, and cells that do not change cost nothing to send. At most a sixteenth of the width is free, or
    the columns of ``ahead`` steps (see `steps_ahead`), up to half of the width.
    """
    first, newest = series.first_step, max(series.first_step, series.last_step)
    count = newest - first + 1
    end = max(first + _MIN_STEPS - 1, _round_end(newest, count, min(ahead, count)))
    if zoom <= 0:
        return Window(first, end)
    steps = max(_MIN_STEPS, (end - first + 1) >> min(zoom, 62))
    end = max(first + steps - 1, _round_end(newest, steps, min(ahead, steps // 2)))
    return Window(end - steps + 1, end)


def steps_ahead(previous: int, step_seconds: float | None) -> int:
    """For how many steps curves leave room: those of `_STILL_SECONDS`.

    The answer stays ``previous`` while that is about right, since a change may move all curves.
    """
    if not step_seconds or step_seconds <= 0:
        return previous
    soon = int(min(_STILL_SECONDS / step_seconds, 1e9))
    return previous if previous // 2 <= soon <= 4 * previous else round(round_down(max(1, soon)))


def _round_end(newest: int, steps: int, ahead: int) -> int:
    """A round step from ``newest`` on, nearer than a sixteenth of ``steps`` or than ``ahead``."""
    grain = round(round_down(max(_MIN_STEPS // _MAX_FREE_PART, steps // _MAX_FREE_PART, ahead)))
    return -(-newest // grain) * grain


@dataclass(frozen=True, slots=True)
class Stretch:
    """Columns ``[start, stop)``, whose steps ran in ``precision``; None if unknown."""

    start: int
    stop: int
    precision: str | None


def stretches(window: Window, switches: tuple[PrecisionSwitch, ...], columns: int) -> list[Stretch]:
    """The precision of every column, in order. Of several switches in one column the last counts.

    ``switches`` are sorted by step.
    """
    if columns <= 0:
        return []
    step_of = attrgetter("step")
    before = max(0, bisect_right(switches, window.first_step, key=step_of) - 1)
    within = switches[before : bisect_right(switches, window.last_step, key=step_of)]
    precisions: dict[int, str | None] = {0: None}
    for switch in within:
        precisions[window.column_of(switch.step, columns)] = switch.precision
    starts = list(precisions)
    return [
        Stretch(start, stop, precisions[start])
        for start, stop in zip(starts, [*starts[1:], columns], strict=True)
    ]
