"""The ratio of step times with a 95% confidence interval, from alternating blocks.

Step times are correlated: a slow step is often followed by slow ones, so a thousand steps carry less
information than a thousand independent measurements. The medians of blocks of steps are nearly independent;
they are the sample here (the method of batch means: Law and Kelton, Simulation Modeling and Analysis, 9.5.3).
Ratios are computed from logarithms, so that "1.5 times faster" and "1.5 times slower" are equally far from 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_STEPS = 20
"""Minimum number of steps in a block: in most loops, correlation has decayed after that many."""

MIN_PAIRS = 3
"""Pairs of blocks that an interval needs: with two, one degree of freedom makes it uselessly wide."""

_MAX_CORRELATION = 0.9
"""Higher correlations cannot be estimated from a few blocks."""

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t at 97.5%, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, table 1.3.6.7.2)."""

_Z_975 = 1.95996


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One side's step time divided by the other's: above 1, the other side is faster."""

    value: float
    low: float | None
    """Lower end of the 95% interval; None, as is ``high``, if there are too few pairs."""
    high: float | None

    @property
    def relative_width(self) -> float | None:
        """Half the interval's width divided by the ratio: 0.02 means "to within 2%"."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value


def paired_ratio(slower: Sequence[float], faster: Sequence[float]) -> Ratio | None:
    """The ratio of block medians measured in alternation, so that the two of a pair are close in time.

    Drift over minutes (clocks, heat, other users) affects both of a pair and cancels. Both lists have the
    same length; None if they are empty.
    """
    if not slower:
        return None
    differences = np.log(slower) - np.log(faster)
    pairs = len(differences)
    mean = float(differences.mean())
    if pairs < MIN_PAIRS:
        return Ratio(value=math.exp(mean), low=None, high=None)
    count = _independent(differences)
    reach = t_975(max(1.0, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return Ratio(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def t_975(freedom: float) -> float:
    """Student's t at 97.5% for ``freedom`` degrees of freedom, 1 or more, rounded down up to 30.

    Above 30, the first terms of its expansion around the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(_T_975):
        return _T_975[max(1, math.floor(freedom)) - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _independent(values: npt.NDArray[np.float64]) -> float:
    """The effective sample size of these values, which are in order of time.

    n (1 - r) / (1 + r) for a correlation r of neighbours. The estimate of r is corrected for its negative
    bias (Kendall, Biometrika 41, 1954); a negative r counts as 0.
    """
    count = len(values)
    apart = values - values.mean()
    spread = float(apart @ apart)
    if not spread:
        return float(count)
    r = float(apart[1:] @ apart[:-1]) / spread
    r = min(_MAX_CORRELATION, max(0.0, r + (1 + 3 * r) / count))
    return count * (1 - r) / (1 + r)
