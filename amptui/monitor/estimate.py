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

from amptui.base.student import t_quantile

BLOCK_STEPS = 20
"""Minimum number of steps in a block: in most loops, correlation has decayed after that many."""

MIN_PAIRS = 3
"""Pairs of blocks that an interval needs: with two, one degree of freedom makes it uselessly wide."""

_MAX_CORRELATION = 0.9
"""Higher correlations cannot be estimated from a few blocks."""


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
    # The effective sample size is n (1 - r) / (1 + r) for a correlation r of neighbours. The estimate of r is
    # corrected for its negative bias (Kendall, Biometrika 41, 1954); a negative r counts as 0.
    apart, r = differences - mean, 0.0
    if spread := float(apart @ apart):
        r = float(apart[1:] @ apart[:-1]) / spread
        r = min(_MAX_CORRELATION, max(0.0, r + (1 + 3 * r) / pairs))
    count = pairs * (1 - r) / (1 + r)
    quantile = t_quantile(0.95, max(1, math.floor(count - 1)))
    reach = quantile * float(differences.std(ddof=1)) / math.sqrt(count)
    return Ratio(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))
