"""Compares precisions in alternating blocks: which one runs next, and the result so far."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from amptui.estimate import BLOCK_STEPS, Ratio, paired_ratio
from amptui.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records import StepRecord

NARROW = 0.01
"""Half a 95% interval by its ratio, below which nothing more is to be learned: "to within 1%"."""

MIN_ROUNDS = 8
"""Rounds at least: with fewer pairs an interval may be narrow by luck. Looked at after each round from the
eighth on, it covers the truth as often as it says, which was simulated; from the fifth on it falls short."""

MAX_ROUNDS = 24


@dataclass(slots=True)
class _Ledger:
    """The blocks of one precision so far."""

    medians: list[float] = field(default_factory=list)
    block_seconds: list[float] = field(default_factory=list)
    """Of the block that runs."""
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    skipped: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    peak_bytes: int | None = None


class ABTest:
    """Runs every precision for one block in each round: A B C, then C B A, and so on.

    Slow drifts affect all of them alike. ``chosen`` is the precision to return to at the end. It ends when
    every interval is narrow, after ``most_rounds``, or when a user stops it.
    """

    def __init__(
        self,
        precisions: Sequence[str],
        *,
        chosen: str,
        narrow: float = NARROW,
        most_rounds: int = MAX_ROUNDS,
        block_steps: int = BLOCK_STEPS,
    ) -> None:
        assert len(precisions) > 1, "nothing to compare"
        self.chosen = chosen
        self._precisions = tuple(precisions)
        self._narrow = narrow
        self._most_rounds = most_rounds
        self._block_steps = block_steps
        self._failed: dict[str, str] = {}
        self._reason: Literal["running", "narrow", "limit", "stopped"] = "running"
        self._begin()

    def _begin(self) -> None:
        self._ledgers = {name: _Ledger() for name in self._precisions}
        self._rounds = 0
        self._left = list(self._precisions)
        """Of this round, the one that runs first."""

    @property
    def wanted(self) -> str:
        """The precision of the next step."""
        return self.chosen if self.over else self._left[0]

    @property
    def over(self) -> bool:
        """Whether there is nothing more to measure."""
        return self._reason != "running"

    @property
    def steps_left(self) -> int:
        """Counted steps until the block that runs is full, as far as they were delivered."""
        if self.over:
            return 0
        return self._block_steps - len(self._ledgers[self._left[0]].block_seconds)

    def stop(self) -> None:
        """End it with the result so far."""
        if not self.over:
            self._reason = "stopped"

    def leave_out(self, precision: str, error: str) -> None:
        """Start again without a precision that failed; end if fewer than two are left."""
        self._failed[precision] = error
        others = tuple(name for name in self._precisions if name != precision)
        if len(others) < 2:
            self.stop()
        else:
            self._precisions = others
            self._begin()

    def take(self, record: StepRecord) -> bool:
        """Count a delivered step; whether a round ended with it."""
        if self.over or record.precision not in self._ledgers:
            return False
        ledger = self._ledgers[record.precision]
        ledger.skipped += record.skipped
        if record.loss is not None:
            ledger.first_loss = record.loss if ledger.first_loss is None else ledger.first_loss
            ledger.last_loss = record.loss
        # Steps that were on their way when a block was full belong to none.
        if record.precision != self._left[0] or record.settling or record.step_seconds is None:
            return False
        ledger.block_seconds.append(record.step_seconds)
        ledger.steps += 1
        ledger.samples += record.samples
        ledger.seconds += record.step_seconds
        return self._end_block(ledger) if len(ledger.block_seconds) >= self._block_steps else False

    def take_peak(self, precision: str, peak_bytes: int | None) -> None:
        """Take in the peak of a block that ended."""
        ledger = self._ledgers.get(precision)
        if ledger is not None and peak_bytes is not None:
            ledger.peak_bytes = max(peak_bytes, ledger.peak_bytes or 0)

    def record(self, step: int) -> PrecisionsCompared:
        """Its progress, or its result."""
        baseline = self._precisions[0]
        return PrecisionsCompared(
            time=time.time(),
            step=step,
            baseline=baseline,
            block_steps=self._block_steps,
            rounds=self._rounds,
            most_rounds=self._most_rounds,
            rows=tuple(self._row(name) for name in self._precisions),
            over=self.over,
            reason=self._reason,
            failed=dict(self._failed),
            chosen=self.chosen,
        )

    def _end_block(self, ledger: _Ledger) -> bool:
        ledger.medians.append(median(ledger.block_seconds))
        ledger.block_seconds.clear()
        del self._left[0]
        if self._left:
            return False
        self._rounds += 1
        # Every other round goes the other way: a steady drift then cancels.
        self._left = list(self._precisions if self._rounds % 2 == 0 else reversed(self._precisions))
        if self._is_narrow():
            self._reason = "narrow"
        elif self._rounds >= self._most_rounds:
            self._reason = "limit"
        return True

    def _is_narrow(self) -> bool:
        widths = [ratio.relative_width for name in self._precisions[1:] if (ratio := self._ratio(name))]
        return self._rounds >= MIN_ROUNDS and all(w is not None and w <= self._narrow for w in widths)

    def _ratio(self, precision: str) -> Ratio | None:
        baseline, other = self._ledgers[self._precisions[0]], self._ledgers[precision]
        pairs = min(len(baseline.medians), len(other.medians))
        return paired_ratio(baseline.medians[:pairs], other.medians[:pairs])

    def _row(self, precision: str) -> PrecisionMeasured:
        ledger = self._ledgers[precision]
        ratio = self._ratio(precision) if precision != self._precisions[0] else None
        return PrecisionMeasured(
            precision=precision,
            blocks=len(ledger.medians),
            steps=ledger.steps,
            step_seconds=median(ledger.medians) if ledger.medians else None,
            samples_per_second=ledger.samples / ledger.seconds if ledger.seconds else None,
            speedup=ratio.value if ratio else None,
            speedup_low=ratio.low if ratio else None,
            speedup_high=ratio.high if ratio else None,
            peak_allocated_bytes=ledger.peak_bytes,
            skipped=ledger.skipped,
            first_loss=ledger.first_loss,
            last_loss=ledger.last_loss,
        )
