"""The limits and labels of a plot's y axis: round numbers that rarely change from frame to frame."""

import math
from dataclasses import dataclass

import numpy as np

from amptui.telemetry.view import Floats

_STEPS = 5
"""About how many round steps a range has; more would fit better, and change more often."""

_MIN_RELATIVE_RANGE = 0.05
"""A smaller range, relative to the values, is widened: labels of three digits must differ."""

_MIN_RATIO = 2.0
"""The same for a logarithmic axis."""

_MIN_FILL = 0.5
"""Limits are tightened when the curve would fill less than this part of the height."""

_MIN_POSITIVE = 1e-290
"""Smaller values count as zero: a tenth of them would not be a normal number."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A y axis from ``low`` to ``high``; both are positive if it is logarithmic."""

    low: float
    high: float
    log: bool

    def ends(self) -> tuple[float, float]:
        """``low`` and ``high``, or their logarithms: the scale of heights."""
        return (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)

    def fraction(self, values: Floats) -> Floats:
        """The heights of values, from 0 at the bottom to 1 at the top; -inf without a logarithm."""
        low, high = self.ends()
        if self.log:
            values = np.log10(values, out=np.full(values.shape, -np.inf), where=~(values <= 0))
        return (values - low) / (high - low)

    def middle_tick(self) -> float:
        """The round number nearest to the middle; may be an end of a logarithmic axis."""
        if self.log:
            middle = math.sqrt(self.low) * math.sqrt(self.high)
            below, above = _round_below(middle), _round_above(middle)
            return below if middle / below < above / middle else above
        step = _round_above((self.high - self.low) / _STEPS)
        return _tidy(round((self.low + self.high) / 2 / step) * step)


class YLimits:
    """Limits that change only when they must, because every change repaints the whole plot.

    They widen when a value falls outside, and tighten when the curve fills less than half of the height.
    """

    def __init__(self) -> None:
        self._axis: Axis | None = None

    def axis(self, low: float, high: float, *, log: bool) -> Axis:
        """The axis for finite values from ``low`` to ``high``.

        Its ends are multiples of 1, 2 or 5 times a power of ten, or with ``log`` such numbers themselves. A
        constant series gets a margin. For a logarithmic axis ``low`` should be the smallest positive value:
        if it is not positive, ``high`` replaces it, and 1 replaces a ``high`` that is not positive.
        """
        if log:
            high = high if high > 0 else 1.0
            low = low if low > 0 else high
        proposed = Axis(*(_round_log_limits if log else _round_limits)(low, high), log)
        if self._axis is None or not _still_fits(self._axis, low, high, proposed):
            self._axis = proposed
        return self._axis


def _still_fits(axis: Axis, low: float, high: float, proposed: Axis) -> bool:
    """Whether the values lie within ``axis`` and fill enough of it."""
    if axis.log != proposed.log or low < axis.low or high > axis.high:
        return False
    (bottom, top), (low, high) = axis.ends(), proposed.ends()
    return high - low >= _MIN_FILL * (top - bottom)


def _round_limits(low: float, high: float) -> tuple[float, float]:
    size = max(abs(low), abs(high))
    if size < _MIN_POSITIVE:
        return 0.0, 1.0
    least = _MIN_RELATIVE_RANGE * size
    if high - low < least:
        middle = low + (high - low) / 2
        low, high = middle - least / 2, middle + least / 2
    step = _round_above((high - low) / _STEPS)
    return _tidy(math.floor(low / step) * step), _tidy(math.ceil(high / step) * step)


def _round_log_limits(low: float, high: float) -> tuple[float, float]:
    low, high = max(low, _MIN_POSITIVE), max(high, _MIN_POSITIVE)
    if high / low < _MIN_RATIO:
        middle, half = math.sqrt(low) * math.sqrt(high), math.sqrt(_MIN_RATIO)
        low, high = middle / half, middle * half
    return _round_below(low), _round_above(high)


def _round_above(value: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten from ``value`` > 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return _tidy(next(digit * power for digit in (1, 2, 5, 10, 20) if digit * power >= value * (1 - 1e-9)))


def _round_below(value: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten up to ``value`` > 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return _tidy(next(digit * power for digit in (5, 2, 1, 0.5) if digit * power <= value * (1 + 1e-9)))


def _tidy(value: float) -> float:
    """Remove the rounding error: 0.6 for 3 times 0.2."""
    return float(f"{value:.12g}")
