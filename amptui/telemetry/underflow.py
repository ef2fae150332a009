"""Underflow: the share of the gradient norm below float16's normal range, and when that is an alarm.

Counts of elements say nothing: ReLU makes zeros, and thousands of tiny elements together are no part of the
update. What the update loses is measured by the L2 norm.
"""

import math
from dataclasses import dataclass

from amptui.records.findings import FLOAT16_ZONES, Float16Window, ParameterWindow, XRayTaken
from amptui.telemetry.finding import Finding

UNDERFLOW_SHARE = 0.25
"""From this share on underflow is an alarm. Of 16 healthy models each had 1e-6 at most in histograms and 2e-4
in X-rays, and ``unstable`` with its underflow has 1.0. Of eight models at ever smaller loss scales, below it
no gradient in float16 was off by more than 0.08 of FP32's, and from it on by up to 1.3."""

WORST_SHARE = 0.1
"""A parameter of whose gradient's norm a larger share underflows is named. That alone is no warning: the
gradient of a bias before a BatchNorm is rounding noise, and may vanish completely."""

EVERYWHERE_SHARE = 0.9
"""If a larger share underflows, it does so everywhere: no place loses most."""

RECOVERED_SHARE = 0.1
"""Below this share an alarm is over, so that the next one is told again."""


def underflowing_share(window: Float16Window | ParameterWindow) -> float | None:
    """sqrt((flushed + subnormal) / all), each a sum of squares of g s: the share of the L2 norm.

    0 is none of it, 1 all. In a step that ran in float16 it is a lower bound: what was flushed on the way is
    zero already. None without nonzero elements, and beside NaN or Inf.
    """
    if window.squares is None or not math.isfinite(window.squares):
        return None
    if window.squares <= 0.0:  # float32 cannot hold squares that small
        return 1.0 if window.elements > window.zeros else None
    small = (window.flushed_squares or 0.0) + (window.subnormal_squares or 0.0)
    return min(1.0, math.sqrt(max(0.0, small) / window.squares))


def share_by_exponent(window: Float16Window, halvings: int = 0) -> float | None:
    """The same from the counts, after so many halvings of the scale.

    All elements of a bin count as equal: the share is exact to a factor of 2.
    """
    last = len(window.counts) - 1  # squares are relative to its, so that none exceeds a float
    squares = [count * 4.0 ** (place - last) for place, count in enumerate(window.counts)]
    whole = sum(squares)
    if window.nonfinite or not 0 < whole < math.inf:
        return None
    normal = max(0, halvings + FLOAT16_ZONES["normal"] - window.first_exponent)
    return min(1.0, math.sqrt(max(0.0, sum(squares[:normal])) / whole))


def worst_parameter(window: Float16Window) -> ParameterWindow | None:
    """The parameter of whose norm most underflows, if that is much and not the same everywhere."""
    whole = underflowing_share(window)
    shares = [(underflowing_share(parameter) or 0.0, parameter) for parameter in window.worst]
    share, worst = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    return worst if share > WORST_SHARE and (whole is None or whole < EVERYWHERE_SHARE) else None


def xray_share(xray: XRayTaken) -> float | None:
    """The share of FP32's norm in elements that float16 held as zero or as subnormals.

    Nothing is hidden: FP32 says what float16's zeros would have been. None outside float16, and beside NaN or
    Inf.
    """
    layers = [
        (layer.norm, layer.underflowing)
        for layer in xray.layers
        if layer.norm is not None and layer.underflowing is not None
    ]
    whole = sum(norm * norm for norm, _ in layers)
    any_nan = any(layer.cosine is not None and math.isnan(layer.cosine) for layer in xray.layers)
    if any_nan or not 0 < whole < math.inf:
        return None
    small = sum(norm * share * norm * share for norm, share in layers)
    return min(1.0, math.sqrt(small / whole))


@dataclass(slots=True, eq=False)
class UnderflowWatch:
    """Notices when underflow begins: in float16's steps, and before, in what it would be."""

    _happens: bool = False
    _would_happen: bool = False

    def begins(self, finding: Finding, *, hypothetical: bool) -> bool:
        """Whether an alarm begins with this judgement on a histogram or an X-ray.

        ``hypothetical``: what was measured did not run in float16.
        """
        share = finding.numbers.get("share")
        if share is None or finding.loss_scale != finding.numbers["measured_scale"]:
            return False
        before = self._would_happen if hypothetical else self._happens
        now = share >= (RECOVERED_SHARE if before else UNDERFLOW_SHARE)
        if hypothetical:
            self._would_happen = now
        else:
            self._happens = now
        return now and not before
