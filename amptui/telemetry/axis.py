"""The value axis of every plot, on screen and pages: range, limits and labels, heights, the smoothed line."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from amptui.telemetry.view import Counts, Floats

Kind = Literal["linear", "log10", "log2"]

_STEPS = 5
"""About how many round steps a range has; more would fit better, and change more often."""

_MIN_RELATIVE_RANGE = 0.05
"""A smaller range, relative to the values, is widened: labels of three digits must differ."""

_MIN_RATIO = 2.0
"""The same for a logarithmic axis."""

_MIN_POSITIVE = 1e-290
"""Smaller values count as zero: a tenth of them would not be a normal number."""

LARGEST = 1e300
"""Larger values are drawn as this one, so that the arithmetic of an axis stays finite."""

_WIDE = 100.0
"""An axis is logarithmic if the largest value is at least this many times the smallest."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``; both are positive if it is logarithmic."""

    low: float
    high: float
    kind: Kind = "linear"

    @property
    def is_logarithmic(self) -> bool:
        """Whether equal heights are equal ratios: a plot must say so."""
        return self.kind != "linear"

    def ends(self) -> tuple[float, float]:
        """``low`` and ``high``, or their logarithms: the scale of heights."""
        if self.kind == "linear":
            return self.low, self.high
        log = math.log2 if self.kind == "log2" else math.log10
        return log(self.low), log(self.high)

    def heights(self, values: Floats) -> Floats:
        """The height of each value, from 0 at the bottom to 1; NaN for NaN, -inf without a logarithm."""
        low, high = self.ends()
        least, most = min(-LARGEST, self.low), max(LARGEST, self.high)  # a round end can lie beyond
        values = np.minimum(np.maximum(values, least), most)
        if self.kind != "linear":
            log: np.ufunc = np.log2 if self.kind == "log2" else np.log10
            values = log(values, out=np.full(values.shape, -np.inf), where=~(values <= 0))
        return (values - low) / (high - low)

    def ticks(self, most: int) -> tuple[float, ...]:
        """At least two values to label, at most so many: round numbers at equal distances, from below.

        Where no two round numbers are far enough apart, they are both ends.
        """
        if self.kind == "linear":
            interval = round_up(self.high / (most - 1) - self.low / (most - 1))
            first, last = _whole_up(self.low / interval), _whole_down(self.high / interval)
            values = tuple(tidy(number * interval) for number in range(first, last + 1))
        else:
            values = self._powers(most)
        return values if len(values) > 1 else (self.low, self.high)

    def _powers(self, most: int) -> tuple[float, ...]:
        """1, 2 and 5 times the powers of ten, if there is room; else powers, or every so many."""
        low, high = self.ends()
        first, last = _whole_up(low), _whole_down(high)
        if self.kind == "log10":
            below, above = self.low * (1 - 1e-9), self.high * (1 + 1e-9)
            digits = (digit * 10.0**power for power in range(first - 1, last + 1) for digit in (1, 2, 5))
            values = tuple(tidy(value) for value in digits if below <= value <= above)
            if len(values) <= most:
                return values
        interval = max(1, math.ceil(round_up(max(1, last - first) / (most - 1))))
        base = 2.0 if self.kind == "log2" else 10.0
        return tuple(base**power for power in range(-(-first // interval) * interval, last + 1, interval))


def axis(low: float, high: float, kind: Kind, *, ceiling: float = math.inf) -> Axis:
    """The axis for finite values from ``low`` to ``high``: its ends are round.

    They are multiples of 1, 2 or 5 times a power of ten, such numbers themselves on an axis of powers of ten,
    and powers of two on one of these. A constant gets a margin. For a logarithmic axis ``low`` should be the
    smallest positive value: ``high`` replaces one that is not, and 1 a ``high`` that is not.

    ``ceiling``: what the values cannot exceed, 1 or 100 for a share. A linear axis of values up to there ends
    at most there.
    """
    low, high = (min(max(value, -LARGEST), LARGEST) for value in (low, high))
    if kind == "linear":
        return Axis(*_linear_limits(low, high, ceiling if high <= ceiling else math.inf))
    high = max(high if high > 0 else 1.0, _MIN_POSITIVE)
    low = max(low if low > 0 else high, _MIN_POSITIVE)
    if kind == "log2":
        first, last = _whole_down(math.log2(low)), _whole_up(math.log2(high))
        return Axis(2.0 ** (first - (first == last)), 2.0 ** (last + (first == last)), kind)
    if high < low * _MIN_RATIO:
        middle, half = math.sqrt(low) * math.sqrt(high), math.sqrt(_MIN_RATIO)
        low, high = middle / half, middle * half
    return Axis(round_down(low), round_up(high), kind)


def kind_for(values: Floats) -> Kind:
    """Logarithmic for positive values over a wide range."""
    values = values[np.isfinite(values)]
    wide = len(values) > 0 and values.min() > 0 and values.max() / _WIDE >= values.min()
    return "log10" if wide else "linear"


def _linear_limits(low: float, high: float, ceiling: float) -> tuple[float, float]:
    size = max(abs(low), abs(high))
    if size < _MIN_POSITIVE:
        return 0.0, 1.0
    least = _MIN_RELATIVE_RANGE * size
    if high - low < least:
        middle = low + (high - low) / 2
        low, high = middle - least / 2, middle + least / 2
    if high > ceiling:
        low, high = low - (high - ceiling), ceiling
    step = round_up((high - low) / _STEPS)
    return tidy(math.floor(low / step) * step), min(tidy(math.ceil(high / step) * step), ceiling)


def round_up(value: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten from ``value`` > 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return tidy(next(digit * power for digit in (1, 2, 5, 10, 20) if digit * power >= value * (1 - 1e-9)))


def round_down(value: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten up to ``value`` > 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return tidy(next(digit * power for digit in (5, 2, 1, 0.5) if digit * power <= value * (1 + 1e-9)))


def tidy(value: float) -> float:
    """Remove the rounding error: 0.6 for 3 times 0.2."""
    return float(f"{value:.12g}")


def _whole_up(value: float) -> int:
    return math.ceil(value - 1e-9)


def _whole_down(value: float) -> int:
    return math.floor(value + 1e-9)


# -------------------------------------------------------------------------------- the range of values

_BODY = 0.98
_OUTLIER_FACTOR = 4
_MIN_BODY = 0.25
"""An outlier lies this many times as far as 98% of the columns reach; their reach counts as at least a
quarter of their value, or of a decade."""

_MIN_COLUMNS_FOR_OUTLIERS = 16
"""Of fewer columns, none is an outlier: one of them is more than 2%."""

_SHARE = 0.98
"""The range is about the rates of this fraction of the time, and of this fraction of the points."""

_REACH = 2.0
"""It reaches so many times as far, up and down: the curve takes at least half of the height."""


def extent(low: Floats, high: Floats, kind: Kind, *, with_outliers: bool) -> tuple[float, float]:
    """The smallest and the largest value to show of columns from ``low`` to ``high``; some must be finite.

    They are positive for a logarithmic axis, for which some must be. Without outliers, values are left out
    that lie more than four times as far from the other end as 98% of the columns do. Then a first loss of 40
    does not flatten a curve near 0.1, but the usual fall of a loss, which takes more than 2% of the columns,
    is shown completely, also where there are outliers.
    """
    log = kind != "linear"
    low, high = (np.sort(np.clip(values[np.isfinite(values)], -LARGEST, LARGEST)) for values in (low, high))
    if log:
        high = high[high > 0]
        low = low[low > 0] if (low > 0).any() else high
    if with_outliers or min(len(low), len(high)) < _MIN_COLUMNS_FOR_OUTLIERS:
        return float(low[0]), float(high[-1])
    lows, highs = (np.log10(values) if log else values for values in (low, high))
    bottom, top = lows[-1 - int(_BODY * (len(lows) - 1))], highs[int(_BODY * (len(highs) - 1))]
    reach = _OUTLIER_FACTOR * max(top - bottom, _MIN_BODY * (1.0 if log else abs(top)))
    return float(low[lows >= top - reach][0]), float(high[highs <= bottom + reach][-1])


def rate_limits(rates: Floats, seconds: Floats) -> tuple[float, float]:
    """The lowest and the highest rate to show, of points with these rates that took so many seconds.

    A fast step takes little time, and a slow one is one point among many: the highest usual rate is by time,
    the lowest by points. Some rate must be finite.
    """
    finite = np.isfinite(rates)
    order = np.argsort(rates[finite])
    rates, seconds = rates[finite][order], np.nan_to_num(seconds[finite][order])
    passed = np.cumsum(seconds)
    by_time = min(int(np.searchsorted(passed, _SHARE * passed[-1])), len(rates) - 1)
    highest = max(float(rates[by_time]), float(rates[(len(rates) - 1) // 2]))
    lowest = float(rates[len(rates) - 1 - int(_SHARE * (len(rates) - 1))])
    return min(lowest, highest) / _REACH, highest * _REACH


_NO_BREAKS: Counts = np.empty(0, np.int64)


def smoothed(line: Floats, reach: int, breaks: Counts = _NO_BREAKS, weights: Floats | None = None) -> Floats:
    """The running mean of a curve over ``reach`` columns to both sides, and at an end over those there are.

    NaN is a gap, and at each of ``breaks`` a stretch begins: no mean reaches over either. Each column counts
    by its weight, a rate for example by its seconds.
    """
    if not reach:
        return line
    finite = np.isfinite(line)
    begins = np.ones(len(line), np.bool_)
    begins[1:] = finite[1:] != finite[:-1]
    begins[breaks] = True
    starts = begins.nonzero()[0]
    lengths = np.diff(np.append(starts, len(line)))
    at = np.arange(len(line))
    first = np.maximum(at - reach, np.repeat(starts, lengths))
    end = np.minimum(at + reach + 1, np.repeat(starts + lengths, lengths))
    # One column more: a window may end behind the last one.
    both = np.zeros((2, len(line) + 1))
    both[1, :-1] = np.where(finite, 1.0 if weights is None else weights, 0.0)
    both[0, :-1] = np.where(finite, line, 0.0) * both[1, :-1]
    # Each window is summed by itself: differences of running sums would hold the others' rounding.
    sums, totals = np.add.reduceat(both, np.stack((first, end), axis=1).ravel(), axis=-1)[:, ::2]
    result: Floats = np.divide(sums, totals, out=np.full(len(line), np.nan), where=finite & (totals > 0))
    return result
