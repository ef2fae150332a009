"""The limits and labels of a plot's y axis: round, and kept from frame to frame while they serve."""

import math
from dataclasses import dataclass

import numpy as np

from amptui.telemetry.view import Floats

_STEPS = 5
"""About how many round steps a range is divided into; more would be tighter, and change more often."""

_MIN_RELATIVE_RANGE = 0.05
"""A range below this part of the values is widened to it: labels of three digits then still differ."""

_MIN_RATIO = 2.0
"""The same for a logarithmic axis."""

_MIN_FILL = 0.5
"""Limits are tightened when the curve would fill less than this part of the height."""

_SMALLEST = 1e-290
"""Below, a value is as good as zero: a tenth of it would no longer be a normal number."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A y axis from ``low`` to ``high``, which are positive where it is logarithmic."""

    low: float
    high: float
    log: bool

    def ends(self) -> tuple[float, float]:
        """``low`` and ``high``, or their logarithms: what heights are measured in."""
        return (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)

    def fraction(self, values: Floats) -> Floats:
        """Where values stand, from the bottom (0) to the top (1); -inf for those without a logarithm."""
        low, high = self.ends()
        if self.log:
            values = np.log10(values, out=np.full(values.shape, -np.inf), where=~(values <= 0))
        return (values - low) / (high - low)

    def middle_tick(self) -> float:
        """The round number nearest to the middle; an end where a logarithmic axis has none between."""
        if self.log:
            middle = math.sqrt(self.low) * math.sqrt(self.high)
            below, above = _round_below(middle), _round_above(middle)
            return below if middle / below < above / middle else above
        step = _round_above((self.high - self.low) / _STEPS)
        return _tidy(round((self.low + self.high) / 2 / step) * step)


class YLimits:
    """Sticky limits: every change repaints the whole plot, so they change only when they must.

    They widen as soon as a value falls outside, and tighten when the curve fills less than half of them.
    """

    def __init__(self) -> None:
        self._axis: Axis | None = None

    def axis(self, low: float, high: float, *, log: bool) -> Axis:
        """The axis for finite values from ``low`` to ``high``.

        Its ends are multiples of 1, 2 or 5 times a power of ten, or with ``log`` such numbers themselves. A
        constant series gets a margin. A logarithmic axis begins at the smallest positive value, so
        ``low`` should be it; one of 0 or below is taken for ``high``, and a ``high`` of 0 or below for 1.
        """
        if log:
            high = high if high > 0 else 1.0
            low = low if low > 0 else high
        proposed = Axis(*(_round_log_limits if log else _round_limits)(low, high), log)
        if self._axis is None or not _serves(self._axis, low, high, proposed):
            self._axis = proposed
        return self._axis


def _serves(axis: Axis, low: float, high: float, proposed: Axis) -> bool:
    """Whether ``axis`` holds the values without dwarfing them."""
    if axis.log != proposed.log or low < axis.low or high > axis.high:
        return False
    (bottom, top), (low, high) = axis.ends(), proposed.ends()
    return high - low >= _MIN_FILL * (top - bottom)


def _round_limits(low: float, high: float) -> tuple[float, float]:
    size = max(abs(low), abs(high))
    if size < _SMALLEST:
        return 0.0, 1.0
    least = _MIN_RELATIVE_RANGE * size
    if high - low < least:
        middle = low + (high - low) / 2
        low, high = middle - least / 2, middle + least / 2
    step = _round_above((high - low) / _STEPS)
    return _tidy(math.floor(low / step) * step), _tidy(math.ceil(high / step) * step)


def _round_log_limits(low: float, high: float) -> tuple[float, float]:
    low, high = max(low, _SMALLEST), max(high, _SMALLEST)
    if high / low < _MIN_RATIO:
        middle, half = math.sqrt(low) * math.sqrt(high), math.sqrt(_MIN_RATIO)
        low, high = middle / half, middle * half
    return _round_below(low), _round_above(high)


def _round_above(value: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below ``value`` > 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return _tidy(next(digit * power for digit in (1, 2, 5, 10, 20) if digit * power >= value * (1 - 1e-9)))


def _round_below(value: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above ``value`` > 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return _tidy(next(digit * power for digit in (5, 2, 1, 0.5) if digit * power <= value * (1 + 1e-9)))


def _tidy(value: float) -> float:
    """The float nearest to the decimal number that is meant: 0.6 for 3 times 0.2."""
    return float(f"{value:.12g}")
