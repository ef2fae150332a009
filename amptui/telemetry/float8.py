"""Float8: which factors of a layer's products lose their numbers, and when that is told."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from amptui.records.findings import Float8Factor, Float8Format, Float8Window

LOSSY_ERRORS: Mapping[Float8Format, float] = {"e4m3": 0.25, "e5m2": 0.5}
"""From this error of the median channel on, a factor loses: four times the largest rounding error of a normal
number, 2^-4 and 2^-3. Half of the channels are then subnormal or zero for the most part, since others set the
scale (our choice: a normal distribution has 0.03 and 0.05)."""

MAX_FACTORS = 8
"""The event of a window keeps so many factors, the worst ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFactor:
    """A factor and the layer whose products it is in."""

    layer: str
    factor: Float8Factor

    @property
    def is_lossy(self) -> bool:
        """Whether float8 loses most of half its channels, or holds NaN or Inf."""
        return not self.factor.channel_error < LOSSY_ERRORS[self.factor.format]


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Seen:
    """A window that is worth an event: the first, one that was asked for, or one with new losses."""

    time: float
    step: int
    precision: str
    recipe: str
    worst: tuple[LayerFactor, ...]
    """By the error of the median channel beside that of normal numbers."""
    factors: int
    lossy: int
    """How many of the factors lose."""


@dataclass(slots=True, eq=False)
class Float8Watch:
    """Remembers which losses were told."""

    _reported: tuple[str, ...] = ()
    _has_seen: bool = False

    def see(self, window: Float8Window) -> Float8Seen | None:
        """The event that ``window`` is worth, if any."""
        factors = [
            LayerFactor(layer=layer.name, factor=factor)
            for layer in window.layers
            for factor in layer.factors
        ]
        ranked = sorted(factors, key=_badness, reverse=True)
        lossy = [one for one in ranked if one.is_lossy]
        names = {f"{one.factor.role} {one.layer}" for one in lossy}
        news = not self._has_seen or window.requested or not names.issubset(self._reported)
        self._reported, self._has_seen = tuple(sorted(names.union(self._reported))), True
        if not news or not ranked:
            return None
        return Float8Seen(
            time=window.time,
            step=window.step,
            precision=window.precision,
            recipe=window.recipe,
            worst=tuple(ranked[:MAX_FACTORS]),
            factors=len(ranked),
            lossy=len(lossy),
        )


def _badness(one: LayerFactor) -> float:
    error = one.factor.channel_error
    return math.inf if math.isnan(error) else error / LOSSY_ERRORS[one.factor.format]
