"""Float8: which factors of a layer's products lose their numbers, and when that is told."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from amptui.records.findings import Float8Factor, Float8Format, Float8Window

LOSSY_ERRORS: Mapping[Float8Format, float] = {"e4m3": 0.25, "e5m2": 0.5}
"""From this error of the median channel or row on, a factor loses: four times the largest rounding error of a
normal number, 2^-4 and 2^-3. Half of the channels or rows are then subnormal or zero for the most part, since
others set the scale (our choice: a normal distribution has 0.03 and 0.05)."""

MAX_FACTORS = 8
"""So many factors of a window are kept, the worst ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFactor:
    """A factor and the layer whose products it is in."""

    layer: str
    factor: Float8Factor

    @property
    def is_lossy(self) -> bool:
        """Whether float8 loses most of half its channels or rows, or holds NaN or Inf; not for zeros."""
        lost = not self.factor.judged_error < LOSSY_ERRORS[self.factor.format]
        return lost and not is_zero(self.factor)

    @property
    def is_lossy_by_rows(self) -> bool:
        """Whether rows lose, but no channel: some rows are far larger than the others, in all channels."""
        return self.is_lossy and self.factor.channel_error < LOSSY_ERRORS[self.factor.format]


def is_zero(factor: Float8Factor) -> bool:
    """Whether all elements are zero: such a factor has no error."""
    return factor.zeros >= 1.0


def normal_share(factor: Float8Factor) -> float:
    """The fraction of elements that float8 holds with its full precision."""
    return max(0.0, 1.0 - factor.zeros - factor.flushed - factor.subnormal - factor.saturated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Seen:
    """A window in short: its worst factors."""

    time: float
    step: int
    precision: str
    recipe: str
    worst: tuple[LayerFactor, ...]
    """By the error of the median channel or row beside that of normal numbers."""
    factors: int
    lossy: int
    """How many of the factors lose."""


def summary_of_float8(window: Float8Window) -> Float8Seen | None:
    """The worst factors of ``window``; None if it has none."""
    factors = ranked_factors(window)
    if not factors:
        return None
    return Float8Seen(
        time=window.time,
        step=window.step,
        precision=window.precision,
        recipe=window.recipe,
        worst=tuple(factors[:MAX_FACTORS]),
        factors=len(factors),
        lossy=sum(factor.is_lossy for factor in factors),
    )


@dataclass(slots=True, eq=False)
class Float8Watch:
    """Remembers which losses were reported."""

    _reported: tuple[str, ...] = ()
    _has_seen: bool = False

    def is_news(self, window: Float8Window) -> bool:
        """Whether ``window`` is worth an event: it is the first, was asked for, or has new losses."""
        lossy = {f"{one.factor.role} {one.layer}" for one in ranked_factors(window) if one.is_lossy}
        news = not self._has_seen or window.requested or not lossy.issubset(self._reported)
        self._reported, self._has_seen = tuple(sorted(lossy.union(self._reported))), True
        return news


def factors_of(window: Float8Window) -> list[LayerFactor]:
    """All factors in the model's order."""
    pairs = [(layer.name, factor) for layer in window.layers for factor in layer.factors]
    return [LayerFactor(layer=name, factor=factor) for name, factor in pairs]


def ranked_factors(window: Float8Window) -> list[LayerFactor]:
    """All factors, the worst first."""
    return sorted(factors_of(window), key=_badness, reverse=True)


def _badness(one: LayerFactor) -> float:
    error = one.factor.judged_error
    if is_zero(one.factor):
        return 0.0
    return math.inf if math.isnan(error) else error / LOSSY_ERRORS[one.factor.format]
