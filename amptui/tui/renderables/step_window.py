"""Which steps a plot shows, and in which of its columns each of them falls."""

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from amptui.telemetry.view import Counts, PrecisionSwitch, Series

GUTTER = 8
"""Cells left of a plot's first column: seven for the y label, one blank. Ribbon and axis keep it free too."""

_FEWEST_STEPS = 32
"""A window never shows fewer: the first steps of a run grow into it from the left."""

_SLACK = 16
"""At most one in so many columns is left free at the right end of a curve that grows slowly."""

_STAND_SECONDS = 6.0
"""How long a curve that grows quickly stands before it is drawn anew, some 4 KB of changed cells."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps from ``first_step`` to ``last_step``, both included, spread evenly over all columns.

    Several steps share a column, or a step has several, of which it begins in the first.
    """

    first_step: int
    last_step: int

    @property
    def steps(self) -> int:
        """How many steps are shown; one at least."""
        return max(1, self.last_step - self.first_step + 1)

    def column_of(self, step: int, columns: int) -> int:
        """The column where ``step`` begins, kept within ``[0, columns)`` for steps outside of the window."""
        return min(max(0, self._columns_before(step, columns)), columns - 1)

    def columns_through(self, step: int, columns: int) -> int:
        """How many columns there are up to the end of ``step``, its first column included in any case."""
        begin = self.column_of(step, columns)
        return min(max(begin + 1, self._columns_before(step + 1, columns)), columns)

    def _columns_before(self, step: int, columns: int) -> int:
        return (step - self.first_step) * columns // self.steps

    def columns_of(self, steps: Counts, columns: int) -> Counts:
        """``column_of`` for many steps at once."""
        columns_of: Counts = np.clip((steps - self.first_step) * columns // self.steps, 0, columns - 1)
        return columns_of


def visible_window(series: Series, zoom: int, *, ahead: int = 0) -> Window:
    """The window of ``series`` at a zoom level: 0 is the whole run, each level halves the steps shown.

    It ends at a round step at or after the newest one, so that the curve grows into free columns and only
    now and then moves as a whole: the cells that stay as they were cost nothing to send. At most a sixteenth
    of the width is free, or the place of ``ahead`` steps (see `steps_ahead`), up to half of it.
    """
    first, newest = series.first_step, max(series.first_step, series.last_step)
    count = newest - first + 1
    end = max(first + _FEWEST_STEPS - 1, _round_end(newest, count, min(ahead, count)))
    if zoom <= 0:
        return Window(first, end)
    steps = max(_FEWEST_STEPS, (end - first + 1) >> min(zoom, 62))
    end = max(first + steps - 1, _round_end(newest, steps, min(ahead, steps // 2)))
    return Window(end - steps + 1, end)


def steps_ahead(kept: int, step_seconds: float | None) -> int:
    """For how many steps curves leave room: those of `_STAND_SECONDS`; ``kept`` as long as that will do.

    Every change may move all curves.
    """
    if not step_seconds or step_seconds <= 0:
        return kept
    soon = int(min(_STAND_SECONDS / step_seconds, 1e9))
    return kept if kept // 2 <= soon <= 4 * kept else _round_below(max(1, soon))


def _round_end(newest: int, steps: int, ahead: int) -> int:
    """A round step at or after ``newest``, by less than a sixteenth of ``steps`` or than ``ahead``."""
    grain = _round_below(max(_FEWEST_STEPS // _SLACK, steps // _SLACK, ahead))
    return -(-newest // grain) * grain


def _round_below(steps: int) -> int:
    """The largest of 1, 2, 5, 10, 20, ... that is not above ``steps``, which is 1 or more."""
    power: int = 10 ** (len(str(steps)) - 1)
    return power * max(digit for digit in (1, 2, 5) if digit * power <= steps)


def round_above(steps: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that is not below ``steps``, which is 1 or more."""
    power: int = 10 ** (len(str(steps)) - 1)
    return power * min(digit for digit in (1, 2, 5, 10) if digit * power >= steps)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Columns ``[start, stop)``, whose steps ran in ``precision``; None where it is not known."""

    start: int
    stop: int
    precision: str | None


def stretches(window: Window, switches: tuple[PrecisionSwitch, ...], columns: int) -> list[Stretch]:
    """The precision of every column, in order; of several switches in one column the last counts.

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
