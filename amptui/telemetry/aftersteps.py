"""The losses of FP32 and AMP after the same number of steps since a switch to either."""

import math
from dataclasses import dataclass

import numpy as np

from amptui.telemetry.view import PrecisionSwitch, Series, SessionView

MIN_STEPS = 100
"""Before so many steps since a switch, a loss says nothing about the precision; blocks of an A/B comparison
are shorter."""

MEAN_STEPS = 20
"""The loss is the mean over the last so many of these steps: single losses are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossesAfter:
    """The loss ``steps`` steps after the switch to either precision.

    Not a fair race: each started from the weights that the other left.
    """

    steps: int
    baseline: float | None
    """None if no loss was measured, NaN if none was finite."""
    amp: float | None


def losses_after(view: SessionView) -> LossesAfter | None:
    """The losses in the longest stretch of either side, after as many steps as the shorter one has.

    None while either has fewer than ``MIN_STEPS``.
    """
    baseline = _longest(view.switches, view.comparison.baseline, view.step)
    amp = _longest(view.switches, view.comparison.amp, view.step)
    steps = min(len(baseline), len(amp))
    if steps < MIN_STEPS:
        return None
    first, last = (_mean_loss(view.loss, stretch.start + steps) for stretch in (baseline, amp))
    return LossesAfter(steps=steps, baseline=first, amp=last)


def _longest(switches: tuple[PrecisionSwitch, ...], precision: str | None, last_step: int) -> range:
    """The steps of the longest stretch in ``precision``; empty if it never ran."""
    ends = (*(switch.step for switch in switches[1:]), last_step + 1)
    # Without a switch, ends has one item too many.
    pairs = zip(switches, ends, strict=False)
    stretches = [range(switch.step, end) for switch, end in pairs if switch.precision == precision]
    return max(stretches, key=len, default=range(0))


def _mean_loss(losses: Series, end: int) -> float | None:
    """The mean of the ``MEAN_STEPS`` losses before step ``end``, at the resolution that the history keeps."""
    start = end - MEAN_STEPS
    first_recent = losses.last_step + 1 - len(losses.recent)
    if start >= first_recent:
        exact = slice(start - first_recent, end - first_recent)
        values, trouble = losses.recent[exact], bool(losses.recent_nonfinite[exact].any())
    else:
        first, last = ((step - losses.first_step) // losses.bucket_steps for step in (start, end - 1))
        buckets = slice(max(0, first), last + 1)
        values, trouble = losses.mean[buckets], bool(losses.nonfinite[buckets].any())
    finite = values[np.isfinite(values)]
    if len(finite):
        return float(finite.mean())
    return math.nan if trouble else None
