"""Smooths a curve with gaps and breaks: the line is as steady at the ends of its stretches as between them.

Near an end there are points on one side only. A mean of fewer points is restless there: every switch then
seems to cause a spike. A mean of the points on one side lags behind a trend: a steady fall then seems to jump
at every switch. A straight line fitted to the points near an end follows the trend, but at the edge of its
points it has four times the variance that it has in their middle (J. Fan and I. Gijbels, "Local Polynomial
Modelling and Its Applications", 1996, 3.2; T. Hastie and C. Loader, "Local Regression", Statistical Science
8, 1993). So its window grows towards an end, to four times its width. What is left is a standard deviation
1.3 times that of the middle, where two passes average better. The price is less detail near an end.

Where the data turn faster than that, as a loss does in its first steps, such a line would be wrong by more
than the noise. Where it is many times the noise away from a line through a quarter of the points, that one
counts: the rule of O. Lepski (Theory of Probability and Its Applications 35, 1990) with two bandwidths.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amptui.telemetry.view import Counts, Floats

Bools = npt.NDArray[np.bool_]

_WIDE_VARIANCE = 1.0
_NARROW_VARIANCE = 4.0
"""Of a line at an end, relative to the middle. With 1 its window is four times as wide, with 4 no wider."""

_NARROW = 4
"""The narrow line is made of so many times fewer points."""

_NOISE = 4.0
"""Lines so many standard deviations apart differ by noise; at twice as many the narrow one counts."""

_DEVIATION_BY_MEDIAN = 1.4826
"""The standard deviation of normal values, by the median of their sizes."""

_NO_BREAKS: Counts = np.empty(0, np.int64)


def smoothed(line: Floats, reach: int, breaks: Counts = _NO_BREAKS) -> Floats:
    """Twice a local line over ``reach`` columns to both sides, within stretches between breaks and gaps.

    In the middle of a stretch that is twice the running mean. NaN is a gap, and a stretch begins at each of
    ``breaks``, so that a jump there stays a jump. A linear trend is kept up to both ends. No value lies
    outside of those around it.
    """
    if not reach:
        return line
    finite = np.isfinite(line)
    stretches = _Stretches.of(finite, breaks)
    values = np.where(finite, line, 0.0)
    wide = stretches.windows(reach, variance_at_ends=_WIDE_VARIANCE)
    result = wide.lines(values)
    if (narrow_reach := max(1, reach // _NARROW)) < reach:
        narrow = stretches.windows(narrow_reach, variance_at_ends=_NARROW_VARIANCE)
        apart = narrow.lines(values) - result
        # A line through all points is uncorrelated with what a line through some of them differs from it.
        noise = np.sqrt(np.maximum(narrow.variances() - wide.variances(), 0.0))
        result += _beyond(np.abs(apart), noise, finite) * apart
    return np.where(finite, result, np.nan)


def _beyond(sizes: Floats, noise: Floats, measured: Bools) -> Floats:
    """From 0 for differences like most, relative to the ``noise`` of independent values, to 1 for far larger.

    The size of the noise in the data is that which most columns show.
    """
    relative = np.divide(sizes, noise, out=np.zeros(len(sizes)), where=measured & (noise > 0))
    some = relative[measured & (noise > 0)]
    limit = _NOISE * _DEVIATION_BY_MEDIAN * float(np.median(some)) if len(some) else 0.0
    if limit <= 0:
        return np.sign(relative)
    # No larger than that: a ratio of two sizes can overflow.
    return np.maximum(np.minimum(relative, 2 * limit) / limit - 1, 0.0)


def smoothed_by_weight(line: Floats, weights: Floats | None, reach: int, breaks: Counts) -> Floats:
    """As :func:`smoothed`, where each column counts by its weight: a rate by its seconds.

    The result is a mean up to the ends, not a line: one long pause would tilt a weighted line so much that it
    ends above every rate. A rate with a trend is therefore off by the trend over half a window at the ends.
    """
    if weights is None or not reach:
        return smoothed(line, reach, breaks)
    finite = np.isfinite(line)
    stretches = _Stretches.of(finite, breaks)
    windows = stretches.windows(reach)
    totals = np.where(finite, weights, 0.0)
    both = np.stack((np.where(finite, line, 0.0) * totals, totals))
    for _ in range(2):
        both = windows.sums(both) / windows.widths
    measured = finite & (both[1] > 0)
    result: Floats = np.divide(both[0], both[1], out=np.full(len(line), np.nan), where=measured)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Each column's value is made of ``widths`` columns around or beside it."""

    widths: Counts
    from_middle: Floats
    """How far the column is from the middle of its window."""
    edges: Counts
    """Begin and end of each window in turn."""

    def lines(self, values: Floats) -> Floats:
        """Twice, at each column, the straight line that fits its window best, within the values there."""
        at = np.arange(len(values), dtype=np.float64)
        slopes = self.from_middle / self._squares()
        line = values
        for _ in range(2):
            sums, moments = self.sums(np.stack((line, at * line)))
            line = sums / self.widths + (moments - (at - self.from_middle) * sums) * slopes
        return np.clip(line, self._reduced(np.minimum, values), self._reduced(np.maximum, values))

    def variances(self) -> Floats:
        """Of a line through each window at its column, for values of variance 1."""
        return 1 / self.widths + self.from_middle**2 / self._squares()

    def _squares(self) -> Floats:
        """The sum of the squared distances of a window's columns from its middle."""
        return np.maximum(self.widths * (self.widths**2 - 1.0) / 12, 1.0)

    def sums(self, values: Floats) -> Floats:
        """Of ``values`` [..., columns] in each window, exactly: running sums would also hold all others."""
        return self._reduced(np.add, values)

    def _reduced(self, how: np.ufunc, values: Floats) -> Floats:
        # One element more: a window may end behind the last column.
        padded = np.concatenate((values, values[..., -1:]), axis=-1)
        reduced: Floats = how.reduceat(padded, self.edges, axis=-1)[..., ::2]
        return reduced


@dataclass(frozen=True, slots=True, eq=False)
class _Stretches:
    """The stretch that each column is in: columns ``[begin, end)``."""

    begin: Counts
    end: Counts

    @classmethod
    def of(cls, finite: Bools, breaks: Counts) -> "_Stretches":
        begins = np.ones(len(finite), np.bool_)
        begins[1:] = finite[1:] != finite[:-1]
        begins[breaks] = True
        starts = begins.nonzero()[0]
        stops = np.append(starts[1:], len(finite))
        lengths = stops - starts
        return cls(np.repeat(starts, lengths), np.repeat(stops, lengths))

    def windows(self, reach: int, *, variance_at_ends: float | None = None) -> _Windows:
        """``reach`` columns to both sides; at an end all on one side, enough for a line of that variance."""
        at = np.arange(len(self.begin))
        since, until = at - self.begin, self.end - 1 - at
        nearer, width = np.minimum(since, until), 2 * reach + 1
        widths = np.full(len(at), width)
        if variance_at_ends is not None:
            # At a distance d from the middle of n points, a line has 1/n + 12 d^2/n^3 of their variance. That
            # is 1/w, at a distance e from the end, for n = 3 e / (1 - cbrt(1 - 9 e / 4 w)).
            from_end = np.minimum(nearer, reach) + 0.5
            roots = 3 * from_end / (1 - np.cbrt(1 - 9 * from_end * variance_at_ends / (4 * width)))
            widths = np.maximum(widths, np.rint(roots).astype(np.int64))
        widths = np.minimum(widths, self.end - self.begin)
        at_an_end = np.where(since <= until, self.begin, self.end - widths)
        first = np.where(nearer < reach, at_an_end, at - reach)
        edges = np.stack((first, first + widths), axis=1).ravel()
        return _Windows(widths, at - first - (widths - 1) / 2, edges)
