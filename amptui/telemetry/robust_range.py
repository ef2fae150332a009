"""The range of values that an axis shows: one very large or very small value does not flatten the curve."""

import numpy as np

from amptui.telemetry.axis import LARGEST, Kind
from amptui.telemetry.view import Floats

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
