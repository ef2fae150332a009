"""The vertical axis of a chart: limits, labels and the heights of values."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from amptui.telemetry.view import Floats

Kind = Literal["linear", "log10", "log2"]

_LABELS = 5
"""The most labels of an axis, or one more, depending on where its ends are."""

_LARGEST = 1e300
"""Larger values are drawn as this one, so that the arithmetic of an axis stays finite."""

_WIDE = 100.0
"""An axis is logarithmic if the largest value is at least this many times the smallest."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``, which are logarithms if the axis is logarithmic."""

    kind: Kind
    low: float
    high: float
    ticks: tuple[float, ...]
    """The values with a label."""

    def heights(self, values: Floats) -> Floats:
        """The height of each value, from 0 at the bottom to 1; NaN for values that cannot be shown."""
        return (_measured(values, self.kind) - self.low) / (self.high - self.low)


def axis(values: Floats, kind: Kind | None = None) -> Axis | None:
    """The axis for all ``values``; None if it can show none of them.

    Without a ``kind``, it is logarithmic for positive values over a wide range.
    """
    values = values[np.isfinite(values)]
    if kind is None:
        wide = len(values) > 0 and values.min() > 0 and values.max() / _WIDE >= values.min()
        kind = "log10" if wide else "linear"
    shown = _measured(values, kind)
    shown = shown[np.isfinite(shown)]
    if not len(shown):
        return None
    low, high = float(shown.min()), float(shown.max())
    return _linear(low, high) if kind == "linear" else _logarithmic(low, high, kind)


def _measured(values: Floats, kind: Kind) -> Floats:
    if kind == "linear":
        return np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponents = np.log2(values) if kind == "log2" else np.log10(values)
    return np.where(np.isfinite(exponents), exponents, np.nan)


def _linear(low: float, high: float) -> Axis:
    if high - low <= max(abs(low), abs(high), 1 / _LARGEST) * 1e-9:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    interval = nice(high / _LABELS - low / _LABELS)
    first, last = math.floor(low / interval), math.ceil(high / interval)
    ticks = tuple(i * interval for i in range(first, last + 1))
    return Axis("linear", ticks[0], ticks[-1], ticks)


def _logarithmic(low: float, high: float, kind: Kind) -> Axis:
    """Limits at whole powers, and a label at every power or every second, fifth and so on."""
    first, last = math.floor(low), math.ceil(high)
    if first == last:
        first, last = first - 1, last + 1
    interval = max(1, math.ceil(nice((last - first) / _LABELS)))
    base = 2.0 if kind == "log2" else 10.0
    exponents = range(first, last + 1, interval)
    return Axis(kind, first, last, tuple(_power(base, exponent) for exponent in exponents))


def _power(base: float, exponent: int) -> float:
    """``base ** exponent``, or Inf beyond float64's range."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf


def nice(interval: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below ``interval``."""
    power = 10.0 ** math.floor(math.log10(interval))
    fits = (factor * power for factor in (1, 2, 5) if factor * power >= interval * (1 - 1e-9))
    return next(fits, 10 * power)
