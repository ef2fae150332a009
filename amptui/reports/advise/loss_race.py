"""Trains in each precision from the same start, and judges whether the losses are the same within noise.

The noise is that of seeds, as in `amptui compare`: each seed trains once in each precision, from the same
weights, on the same batches, with the same random state, and the mean final losses are compared by Welch's
interval.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from amptui.reports.compare.trace import MEAN_STEPS
from amptui.reports.compare.welch import MIN_SEEDS, mean_difference
from amptui.telemetry.finding import Finding, Grade

LEAST_SEEDS, MAX_SEEDS = 3, 5
"""Two seeds show only differences of 16 standard deviations, three show those of 4: rather than two long
trainings in each precision, three shorter ones."""

MIN_LOSS_STEPS = 2 * MEAN_STEPS
"""Fewer steps would compare the losses that both begin with."""

_GRADES: Mapping[str, Grade] = {"same": "good", "higher": "warning", "not finite": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRace:
    """Each precision's final losses, the mean of the last ``MEAN_STEPS`` steps."""

    steps: int
    finals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By precision, one for each seed."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The error of each precision in which a training failed."""
    troubles: Mapping[str, Finding] = field(default_factory=dict)
    """What went wrong in each precision's steps first, such as an overflow in the forward pass."""
    why_not: str = ""
    """Why it was not measured, or not to its end; empty if it was."""

    @property
    def seeds(self) -> int:
        """How many trained in FP32."""
        return sum(math.isfinite(loss) for loss in self.finals.get("fp32", ()))

    def finding(self, precision: str) -> Finding | None:
        """The final losses in ``precision`` beside those in FP32; None if too few were measured."""
        losses, others = self.finals.get(precision, ()), self.finals.get("fp32", ())
        pairs = min(len(losses), len(others))
        losses, others = losses[:pairs], others[:pairs]
        if not all(map(math.isfinite, others)):
            return None
        if not all(map(math.isfinite, losses)):
            state, low, high = "not finite", None, None
        elif pairs < MIN_SEEDS:
            return None
        else:
            interval = mean_difference(others, losses)
            # Without any spread, any difference is one.
            low = high = fmean(losses) - fmean(others)
            if interval is not None:
                low, high = interval.low, interval.high
            elif math.isclose(fmean(losses), fmean(others)):
                low = high = 0.0
            state = "same" if low <= 0 <= high else "higher" if low > 0 else "lower"
        return Finding(
            subject="loss",
            state=state,
            grade=_GRADES.get(state, "neutral"),
            about=precision,
            numbers={
                "loss": fmean(losses),
                "other_loss": fmean(others),
                "low": low,
                "high": high,
                "seeds": pairs,
                "steps": self.steps,
            },
            names={"than": "fp32"},
            precision=precision,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceTraining:
    """How one training of a race ended."""

    loss: float | None
    """Its final loss, NaN if it diverged; None if it failed or was stopped."""
    error: str = ""
    """Why it failed; empty if it was stopped."""
    trouble: Finding | None = None
    """What went wrong in its steps."""


def race(
    steps: int,
    precisions: Sequence[str],
    train: Callable[[str, int, int], RaceTraining],
    *,
    round_seconds: float,
    seconds_left: Callable[[], float],
    clock: Callable[[], float] = time.monotonic,
) -> LossRace:
    """Train every precision, FP32 first, with one seed after the other, while there is time for another one.

    As many of ``steps`` as there is time for with ``LEAST_SEEDS``; ``round_seconds``: one step in every
    precision. ``train`` takes a precision, a seed's number from 0 on and the steps. A precision that failed,
    or whose loss is not finite, is trained no further; if that is FP32, nothing is left to compare with.
    """
    left = seconds_left()
    steps = min(steps, int(left / LEAST_SEEDS / max(round_seconds, 1e-9)))
    if steps < MIN_LOSS_STEPS:
        more = math.ceil(LEAST_SEEDS * MIN_LOSS_STEPS * round_seconds - left)
        return LossRace(steps=0, why_not=f"not enough time left: {more} s more needed")
    finals: dict[str, list[float]] = {name: [] for name in precisions}
    failed: dict[str, str] = {}
    troubles: dict[str, Finding] = {}
    finished = partial(LossRace, steps=steps, finals=finals, failed=failed, troubles=troubles)
    for seed in range(MAX_SEEDS):
        began = clock()
        for precision in precisions:
            if precision in failed or any(not math.isfinite(loss) for loss in finals[precision]):
                continue
            end = train(precision, seed, steps)
            if end.loss is None and not end.error:
                return finished(why_not="it was interrupted")
            if end.trouble is not None:
                troubles.setdefault(precision, end.trouble)
            if end.loss is not None:
                finals[precision].append(end.loss)
            else:
                failed[precision] = end.error
            if precision == precisions[0] and (end.loss is None or not math.isfinite(end.loss)):
                return finished(why_not=f"FP32 with seed {seed}: {end.error or 'the loss is not finite'}")
        if seed + 1 >= LEAST_SEEDS and clock() - began > seconds_left():
            break
    return finished()
