"""The limits of a plot that is drawn again and again: they rarely change from frame to frame."""

from amptui.telemetry.axis import Axis, Kind, axis

_MIN_FILL = 0.5
"""Limits are tightened when the curve would fill less than this part of the height."""


class YLimits:
    """Limits that change only when they must, because every change repaints the whole plot.

    They widen when a value falls outside, and tighten when the curve fills less than half of the height.
    """

    def __init__(self) -> None:
        self._axis: Axis | None = None

    def axis(self, low: float, high: float, kind: Kind = "linear") -> Axis:
        """The axis for finite values from ``low`` to ``high``."""
        proposed = axis(low, high, kind)
        if self._axis is None or not _still_fits(self._axis, proposed, low, high):
            self._axis = proposed
        return self._axis


def _still_fits(kept: Axis, proposed: Axis, low: float, high: float) -> bool:
    """Whether the values lie within ``kept`` and fill enough of it."""
    if kept.kind != proposed.kind or low < kept.low or high > kept.high:
        return False
    (bottom, top), (low, high) = kept.ends(), proposed.ends()
    return high - low >= _MIN_FILL * (top - bottom)
