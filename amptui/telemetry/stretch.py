"""Consecutive steps of one precision and epoch as columns, which add up quickly."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter, truediv
from typing import Any, Generic, TypeGuard, TypeVar

from amptui.records.steps import Column, StepRecord, Steps

_Value = TypeVar("_Value")


class _Kept(Generic[_Value]):
    """A property that is computed once. ``functools.cached_property`` takes a lock until Python 3.12."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute

    def __get__(self, stretch: "Stretch", _owner: type) -> _Value:
        # From now on the attribute is found before this property.
        value = stretch.__dict__[self._compute.__name__] = self._compute(stretch)
        return value


_IN_COMMON = attrgetter("precision", "epoch", "settling")


@dataclass(frozen=True, kw_only=True)  # without slots: a column is made when it is needed, and kept
class Stretch:
    """Consecutive steps of one precision and epoch, all of them warm-up steps or none."""

    blocks: Sequence[Steps]
    """The steps in the blocks in which they were recorded, at least one."""

    @property
    def first_step(self) -> int:
        """The number of the first step."""
        return self.blocks[0].first_step

    @property
    def epoch(self) -> int:
        """Of all its steps, as are the next two."""
        return self.blocks[0].epoch

    @property
    def precision(self) -> str:
        """What they computed in."""
        return self.blocks[0].precision

    @property
    def settling(self) -> bool:
        """Whether they are warm-up steps."""
        return self.blocks[0].settling

    def __len__(self) -> int:
        return self.blocks[-1].last_step - self.blocks[0].first_step + 1

    def column(self, name: str) -> Column:
        """One of the columns of its blocks."""
        return _joined([getattr(block, name) for block in self.blocks])

    def one(self, index: int) -> StepRecord:
        """One of its steps."""
        step = self.first_step + index
        block = next(block for block in self.blocks if block.last_step >= step)
        return block.one(step - block.first_step)

    @_Kept
    def losses(self) -> Column:
        """One per step, as are the samples, seconds, rates, scales and skips."""
        return self.column("loss")

    @_Kept
    def samples(self) -> Sequence[int]:
        """How many each step trained on."""
        return _joined([block.samples for block in self.blocks])

    @_Kept
    def seconds(self) -> Column:
        """How long each step took, skipped ones included."""
        return self.column("step_seconds")

    @_Kept
    def loss_scales(self) -> Column:
        """The scale that each step ran with."""
        return self.column("loss_scale")

    @_Kept
    def skips(self) -> Column:
        """1 for a skipped step, 0 for an applied one, None if the step was not measured."""
        return _joined([_skips(block) for block in self.blocks])

    @property
    def unmeasured(self) -> int:
        """How many steps were not measured: without a loss, and without a reason for that."""
        return self.skips.count(None)

    @_Kept
    def skipped(self) -> int:
        """How many steps the scaler skipped."""
        return sum(block.count for block in self.blocks if block.skipped)

    @_Kept
    def grad_maxima(self) -> Column | None:
        """The largest gradient of each step; None if no step's was measured."""
        maxima = self.column("grad_max")
        return None if maxima.count(None) == len(maxima) else maxima

    # ------------------------------------------------------- applied steps that were timed

    @_Kept
    def _applied_seconds(self) -> Column:
        if not self.skipped:
            return self.seconds
        return _joined(
            [[None] * block.count if block.skipped else block.step_seconds for block in self.blocks]
        )

    @_Kept
    def _is_timed(self) -> Sequence[bool] | None:
        """Which steps are timed: measured, finite and above 0. None if all are."""
        seconds = self._applied_seconds
        if are_finite(seconds) and min(seconds) > 0.0:
            return None
        return [value is not None and 0.0 < value < math.inf for value in seconds]

    def _of_timed(self, column: Sequence[_Value]) -> Sequence[_Value]:
        return column if self._is_timed is None else [*compress(column, self._is_timed)]

    @_Kept
    def rates(self) -> Column:
        """Samples per second; None if the step was not timed, or skipped."""
        samples, seconds, is_timed = self.samples, self._applied_seconds, self._is_timed
        if not any(samples):
            return [None] * len(samples)  # an observed script did not say how many there are
        if is_timed is None:
            return [*map(truediv, samples, seconds)]
        return [
            count / value if timed and value else None
            for count, value, timed in zip(samples, seconds, is_timed, strict=True)
        ]

    @_Kept
    def timed_seconds(self) -> Sequence[float]:
        """Durations of the applied steps that were timed.

        A skipped step spares the optimizer's work: as a step it would be fast, and it trains on nothing.
        """
        seconds: Sequence[Any] = self._applied_seconds  # of those that were timed none is None
        return self._of_timed(seconds)

    @_Kept
    def timed_samples(self) -> Sequence[int]:
        """The samples of these same steps."""
        return self._of_timed(self.samples)

    @_Kept
    def timed_data_seconds(self) -> Sequence[float]:
        """How long these same steps waited for their batch; NaN if that was not measured."""
        waits: Sequence[Any] = self._of_timed(self.column("data_seconds"))
        return waits if None not in waits else [math.nan if wait is None else wait for wait in waits]


def stretches(blocks: Sequence[Steps]) -> Iterator[Stretch]:
    """``blocks`` in order, apart where steps are not consecutive, or precision, epoch or warm-up change."""
    start = 0
    for end in range(1, len(blocks)):
        before, after = blocks[end - 1], blocks[end]
        if after.first_step != before.last_step + 1 or _IN_COMMON(after) != _IN_COMMON(before):
            yield Stretch(blocks=blocks[start:end])
            start = end
    if blocks:
        yield Stretch(blocks=blocks[start:])


def are_finite(column: Column) -> TypeGuard[Sequence[float]]:
    """Whether all of ``column`` are finite numbers; it may say no of numbers that are very large."""
    try:
        return math.isfinite(sum(column))  # type: ignore[arg-type]  # with a None it raises TypeError
    except TypeError:
        return False


def _joined(columns: Sequence[Sequence[_Value]]) -> Sequence[_Value]:
    return columns[0] if len(columns) == 1 else [*chain.from_iterable(columns)]


def _skips(block: Steps) -> Column:
    skip = float(block.skipped)
    if block.loss_form or None not in block.loss:
        return [skip] * block.count
    return [None if loss is None else skip for loss in block.loss]
