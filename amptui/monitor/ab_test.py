"""Compares precisions in alternating blocks: which one runs next, and the ratio of step times so far.

Step times are correlated: a slow step is often followed by slow ones, so a thousand steps carry less
information than a thousand independent measurements. The medians of blocks of steps are nearly independent;
they are the sample here (the method of batch means: Law and Kelton, Simulation Modeling and Analysis, 9.5.3).
Ratios are computed from logarithms, so that "1.5 times faster" and "1.5 times slower" are equally far from 1.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Literal

import numpy as np

from amptui.base.student import t_quantile
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records.steps import Steps

BLOCK_STEPS = 20
"""Minimum number of steps in a block: in most loops, correlation has decayed after that many."""

MIN_PAIRS = 3
"""Pairs of blocks that an interval needs: with two, one degree of freedom makes it uselessly wide."""

_MAX_CORRELATION = 0.9
"""Higher correlations cannot be estimated from a few blocks."""

NARROW = 0.01
"""The test ends when half the 95% interval is at most this fraction of the speed-up."""

MIN_ROUNDS = 8
"""With fewer rounds an interval may be narrow by luck. In simulations that checked after each round from the
eighth on, it covered the true value as often as it claims; from the fifth on it fell short."""

MAX_ROUNDS = 24


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


@dataclass(slots=True)
class _Blocks:
    """The blocks of one precision so far."""

    medians: list[float | None] = field(default_factory=list)
    """None for a block in which the scaler skipped too many steps."""
    block_seconds: list[float] = field(default_factory=list)
    """Times of the applied steps of the current block."""
    block_skips: int = 0
    """Its skipped steps."""
    steps: int = 0
    samples: int = 0
    skipped: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    peak_bytes: int | None = None


class ABTest:
    """Runs every precision for one block in each round: A B C, then C B A, and so on.

    A block lasts until ``block_steps`` steps are applied, but takes no more than as many skipped ones: a
    scaler that skips all steps ends its blocks too. A block with fewer applied steps has no time.

    Slow drifts affect all precisions alike. ``chosen`` is the precision to return to. The test ends when
    every interval is narrow, after ``max_rounds``, or when the user stops it.
    """

    def __init__(
        self,
        precisions: Sequence[str],
        *,
        chosen: str,
        max_rounds: int = MAX_ROUNDS,
        block_steps: int = BLOCK_STEPS,
    ) -> None:
        assert len(precisions) > 1, "nothing to compare"
        self.chosen = chosen
        self._precisions = tuple(precisions)
        self._max_rounds = max_rounds
        self._block_steps = block_steps
        self._failed: dict[str, str] = {}
        self._reason: Literal["running", "narrow", "limit", "stopped"] = "running"
        self._begin()

    def _begin(self) -> None:
        self._blocks = {name: _Blocks() for name in self._precisions}
        self._rounds = 0
        self._remaining = list(self._precisions)
        """The precisions still to run in this round; the first one is running."""

    @property
    def precision(self) -> str:
        """The precision of the next step."""
        return self.chosen if self.over else self._remaining[0]

    @property
    def over(self) -> bool:
        """Whether the test has ended."""
        return self._reason != "running"

    @property
    def steps_left(self) -> int:
        """Steps until the current block is full, by those delivered so far."""
        if self.over:
            return 0
        blocks = self._blocks[self._remaining[0]]
        return self._block_steps - max(len(blocks.block_seconds), blocks.block_skips)

    def stop(self) -> None:
        """End it with the result so far."""
        if not self.over:
            self._reason = "stopped"

    def exclude(self, precision: str, error: str) -> None:
        """Start again without a precision that failed; end if fewer than two are left."""
        self._failed[precision] = error
        others = tuple(name for name in self._precisions if name != precision)
        if len(others) < 2:
            self.stop()
        else:
            self._precisions = others
            self._begin()

    def add(self, steps: Steps, index: int) -> bool:
        """Count one of the delivered steps; return whether it ended a round."""
        if self.over or steps.precision not in self._blocks:
            return False
        blocks, skipped = self._blocks[steps.precision], steps.skipped[index]
        loss, seconds = steps.loss[index], steps.step_seconds[index]
        blocks.skipped += skipped
        if loss is not None:
            blocks.first_loss = loss if blocks.first_loss is None else blocks.first_loss
            blocks.last_loss = loss
        # Steps in flight when a block was full belong to none.
        if steps.precision != self._remaining[0] or steps.settling or not seconds:
            return False
        if skipped:
            blocks.block_skips += 1
        else:
            blocks.block_seconds.append(seconds)
            blocks.steps += 1
            blocks.samples += steps.samples[index]
        if self.steps_left > 0:
            return False
        full = len(blocks.block_seconds) >= self._block_steps
        blocks.medians.append(median(blocks.block_seconds) if full else None)
        blocks.block_seconds.clear()
        blocks.block_skips = 0
        del self._remaining[0]
        if self._remaining:
            return False
        self._rounds += 1
        # Every other round runs backwards, so that a steady drift cancels.
        self._remaining = list(self._precisions if self._rounds % 2 == 0 else reversed(self._precisions))
        ratios = map(self._ratio, self._precisions[1:])
        widths = [ratio.relative_width for ratio in ratios if ratio is not None]
        narrow = all(width is not None and width <= NARROW for width in widths)
        if self._rounds >= MIN_ROUNDS and widths and narrow:
            self._reason = "narrow"
        elif self._rounds >= self._max_rounds:
            self._reason = "limit"
        return True

    def add_peak(self, precision: str, peak_bytes: int | None) -> None:
        """Add the memory peak of a block that ended."""
        blocks = self._blocks.get(precision)
        if blocks is not None and peak_bytes is not None:
            blocks.peak_bytes = max(peak_bytes, blocks.peak_bytes or 0)

    def record(self, step: int) -> PrecisionsCompared:
        """The progress or the result."""
        baseline = self._precisions[0]
        return PrecisionsCompared(
            time=time.time(),
            step=step,
            baseline=baseline,
            block_steps=self._block_steps,
            rounds=self._rounds,
            most_rounds=self._max_rounds,
            rows=tuple(self._row(name) for name in self._precisions),
            over=self.over,
            reason=self._reason,
            failed=dict(self._failed),
            chosen=self.chosen,
        )

    def _ratio(self, precision: str) -> Ratio | None:
        """The baseline's step time by that of ``precision``."""
        both = zip(self._medians(self._precisions[0]), self._medians(precision), strict=False)
        pairs = [(before, after) for before, after in both if before is not None and after is not None]
        return paired_ratio([before for before, _ in pairs], [after for _, after in pairs])

    def _medians(self, precision: str) -> Sequence[float | None]:
        """Those of whole rounds; of the first one as far as it is."""
        return self._blocks[precision].medians[: self._rounds or None]

    def _row(self, precision: str) -> PrecisionMeasured:
        blocks = self._blocks[precision]
        ratio = self._ratio(precision) if precision != self._precisions[0] else None
        medians = [seconds for seconds in self._medians(precision) if seconds is not None]
        # As the ratio is made: the times of two rows by each other are the ratio between them.
        step_seconds = geometric_mean(medians) if medians else None
        return PrecisionMeasured(
            precision=precision,
            blocks=len(medians),
            steps=blocks.steps,
            step_seconds=step_seconds,
            samples_per_second=(blocks.samples / blocks.steps / step_seconds or None)
            if step_seconds
            else None,
            speedup=ratio.value if ratio else None,
            speedup_low=ratio.low if ratio else None,
            speedup_high=ratio.high if ratio else None,
            peak_allocated_bytes=blocks.peak_bytes,
            skipped=blocks.skipped,
            first_loss=blocks.first_loss,
            last_loss=blocks.last_loss,
        )
