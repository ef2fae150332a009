"""The range of rates that an axis shows: one very fast or very slow step does not flatten the curve."""

import numpy as np

from amptui.telemetry.view import Floats

_SHARE = 0.98
"""The range is about the rates of this fraction of the time, and of this fraction of the points."""

_REACH = 2.0
"""It reaches so many times as far, up and down: the curve takes at least half of the height."""


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
