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

_REACH = 2.0
"""Rates are usual up to so many times those of 98% of the time, down to that part of 98% of the columns'."""

_USUAL = 0.9
"""So many of the columns are as near to the smoothed line as is usual."""

SMOOTHING_PART = 30
"""On screens the line is the running mean over a thirtieth of the plot's width to both sides."""


def usual_range(values: Floats, kind: Kind, seconds: Floats | None = None) -> tuple[float, float]:
    """The smallest and the largest of the values of a curve's columns, without outliers; some must be finite.

    They are positive for a logarithmic axis, for which some must be. Values are left out that lie more than
    four times as far from the other end as 98% of them do. Then a first loss of 40 does not flatten a curve
    near 0.1, but the usual fall of a loss, which takes more than 2% of the columns, is within. Of rates, with
    the seconds of each column, a fast step takes little time, and a slow one is one column among many.
    """
    order = np.argsort(values)[: np.count_nonzero(np.isfinite(values))]
    values = np.minimum(np.maximum(values[order], -LARGEST), LARGEST)
    if kind != "linear":
        values = values[values > 0]
    many = int(_BODY * (len(values) - 1))
    if seconds is not None:
        passed = np.cumsum(np.where(seconds[order] > 0, seconds[order], 0.0))
        by_time = min(int(np.searchsorted(passed, _BODY * passed[-1])), len(values) - 1)
        highest = max(values[by_time], values[(len(values) - 1) // 2])
        lowest = min(values[-1 - many], highest)
        return max(float(lowest) / _REACH, float(values[0])), min(float(highest) * _REACH, float(values[-1]))
    if len(values) < _MIN_COLUMNS_FOR_OUTLIERS:
        return float(values[0]), float(values[-1])
    scale = values if kind == "linear" else np.log10(values)
    bottom, top = scale[-1 - many], scale[many]
    reach = _OUTLIER_FACTOR * max(top - bottom, _MIN_BODY * (abs(top) if kind == "linear" else 1.0))
    return float(values[scale >= top - reach][0]), float(values[scale <= bottom + reach][-1])


def usual_distance(distances: Floats) -> float:
    """The distance from the smoothed line that nine of ten columns keep; NaN without any."""
    count = np.count_nonzero(~np.isnan(distances))
    return float(np.sort(distances)[int(_USUAL * (count - 1))])


_NO_BREAKS: Counts = np.empty(0, np.int64)


def smoothed(line: Floats, reach: int, breaks: Counts = _NO_BREAKS, weights: Floats | None = None) -> Floats:
    """The running mean of a curve over ``reach`` columns to both sides, and at an end over those there are.

    NaN is a gap, and at each of ``breaks`` a stretch begins: no mean reaches over either. Each column counts
    by its weight, a rate for example by its seconds. Without weights a curve begins with its own first value:
    the mean at the top of a fall would be below it.
    """
    if not reach:
        return line
    finite = np.isfinite(line)
    begins = np.ones(len(line), np.bool_)
    begins[1:] = finite[1:] != finite[:-1]
    begins[breaks] = True
    starts = begins.nonzero()[0]
    ends = np.append(starts[1:], len(line))
    lengths = ends - starts
    at = np.arange(len(line))
    first = np.maximum(at - reach, np.repeat(starts, lengths))
    end = np.minimum(at + reach + 1, np.repeat(ends, lengths))
    if weights is None:
        begin = int(np.argmax(finite))
        end[begin : begin + reach] = np.minimum(end, 2 * at + 1 - begin)[begin : begin + reach]
    # One column more: a window may end behind the last one.
    both = np.zeros((2, len(line) + 1))
    both[1, :-1] = np.where(finite, 1.0 if weights is None else weights, 0.0)
    both[0, :-1] = np.where(finite, line, 0.0) * both[1, :-1]
    # Each window is summed by itself: differences of running sums would hold the others' rounding.
    sums, totals = np.add.reduceat(both, np.stack((first, end), axis=1).ravel(), axis=-1)[:, ::2]
    result: Floats = np.divide(sums, totals, out=np.full(len(line), np.nan), where=finite & (totals > 0))
    return result


def noisy_curve(
    values: Floats, kind: Kind, reach: int, breaks: Counts = _NO_BREAKS, weights: Floats | None = None
) -> tuple[Floats, tuple[float, float], tuple[float, float]]:
    """The smoothed line of a noisy curve, its lowest and highest value, and the range to show with it.

    That has as much room above the line as below: as far as is usual for ``values``, of which some must be
    finite, and not beyond all of them. The line goes to an outlier and back; to its neighbours that counts as
    a value at the edge of what is usual. Of rates it counts in full: a long step takes its part of the time.
    """
    low, high = usual_range(values, kind, weights)
    within = np.minimum(np.maximum(values, low), high)
    if weights is None:
        line = np.where(within == values, smoothed(within, reach, breaks), values)
    else:
        line = smoothed(values, reach, breaks, weights)
    both = np.stack((np.minimum(np.maximum(line, low), high), within))
    both = both[:, np.isfinite(line)]
    scaled = both if kind == "linear" else np.log10(both)
    room = usual_distance(np.abs(scaled[1] - scaled[0]))
    low, high = max(scaled[0].min() - room, scaled[1].min()), min(scaled[0].max() + room, scaled[1].max())
    if kind != "linear":
        low, high = 10.0**low, 10.0**high
    return line, (float(both[0].min()), float(both[0].max())), (float(low), float(high))
