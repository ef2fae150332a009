"""Float8: which operands of a layer's products lose their numbers, and when that is told."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from amptui.records.findings import Float8Format, Float8Operand, Float8Window

LOSSY_ERRORS: Mapping[Float8Format, float] = {"e4m3": 0.25, "e5m2": 0.5}
"""From this error of the median channel or row on, an operand loses: four times the largest rounding error
of a normal number, 2^-4 and 2^-3. Half of the channels or rows are then subnormal or zero for the most part,
since others set the scale (our choice: a normal distribution has 0.03 and 0.05)."""

MAX_OPERANDS = 8
"""So many operands of a window are kept, the worst ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOperand:
    """An operand and the layer whose products it is in."""

    layer: str
    operand: Float8Operand

    @property
    def is_lossy(self) -> bool:
        """Whether float8 loses most of half its channels or rows, or holds NaN or Inf; not for zeros."""
        lost = not self.operand.judged_error < LOSSY_ERRORS[self.operand.format]
        return lost and not is_zero(self.operand)

    @property
    def is_lossy_by_rows(self) -> bool:
        """Whether rows lose, but no channel: some rows are far larger than the others, in all channels."""
        return self.is_lossy and self.operand.channel_error < LOSSY_ERRORS[self.operand.format]


def is_zero(operand: Float8Operand) -> bool:
    """Whether all elements are zero: such an operand has no error."""
    return operand.zeros >= 1.0


def normal_share(operand: Float8Operand) -> float:
    """The fraction of elements that float8 holds with its full precision."""
    return max(0.0, 1.0 - operand.zeros - operand.flushed - operand.subnormal - operand.saturated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Seen:
    """A window in short: its worst operands."""

    time: float
    step: int
    precision: str
    recipe: str
    worst: tuple[LayerOperand, ...]
    """By the error of the median channel or row beside that of normal numbers."""
    operands: int
    lossy: int
    """How many of the operands lose."""


def summary_of_float8(window: Float8Window) -> Float8Seen | None:
    """The worst operands of ``window``; None if it has none."""
    operands = ranked_operands(window)
    if not operands:
        return None
    return Float8Seen(
        time=window.time,
        step=window.step,
        precision=window.precision,
        recipe=window.recipe,
        worst=tuple(operands[:MAX_OPERANDS]),
        operands=len(operands),
        lossy=sum(operand.is_lossy for operand in operands),
    )


@dataclass(slots=True, eq=False)
class Float8Watch:
    """Remembers which losses were reported."""

    _reported: tuple[str, ...] = ()
    _has_seen: bool = False

    def is_news(self, window: Float8Window) -> bool:
        """Whether ``window`` is worth an event: it is the first, was asked for, or has new losses."""
        lossy = {f"{one.operand.role} {one.layer}" for one in ranked_operands(window) if one.is_lossy}
        news = not self._has_seen or window.requested or not lossy.issubset(self._reported)
        self._reported, self._has_seen = tuple(sorted(lossy.union(self._reported))), True
        return news


def operands_of(window: Float8Window) -> list[LayerOperand]:
    """All operands in the model's order."""
    pairs = [(layer.name, operand) for layer in window.layers for operand in layer.operands]
    return [LayerOperand(layer=name, operand=operand) for name, operand in pairs]


def ranked_operands(window: Float8Window) -> list[LayerOperand]:
    """All operands, the worst first."""
    return sorted(operands_of(window), key=_badness, reverse=True)


def _badness(one: LayerOperand) -> float:
    error = one.operand.judged_error
    if is_zero(one.operand):
        return 0.0
    return math.inf if math.isnan(error) else error / LOSSY_ERRORS[one.operand.format]
