"""Consecutive steps of one precision and epoch as columns, which add up quickly."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter
from typing import TypeVar

from amptui.steps import Column, StepRecord, Steps

_Value = TypeVar("_Value")

_IN_COMMON = attrgetter("precision", "epoch", "settling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive steps of one precision and epoch, all of them warm-up steps or none."""

    first_step: int
    epoch: int
    precision: str
    settling: bool
    blocks: Sequence[Steps]
    """The steps in the blocks in which they were recorded."""
    losses: Column
    """One per step, as are the samples, seconds, rates, scales and skips."""
    samples: Sequence[int]
    seconds: Column
    """How long each step took, skipped ones included."""
    rates: Column
    """Samples per second; None if the step was not timed, or skipped."""
    loss_scales: Column
    skips: Column
    """1 for a skipped step, 0 for an applied one, None if the step was not measured."""
    unmeasured: int
    """How many steps were not measured: without a loss, and without a reason for that."""
    grad_maxima: Column | None
    """The largest gradient of each step; None if no step's was measured."""
    skipped: int
    """How many steps the scaler skipped."""
    timed_seconds: Sequence[float]
    """Durations of the applied steps that were timed: measured, finite and above 0.

    A skipped step spares the optimizer's work: as a step it would be fast, and it trains on nothing."""
    timed_samples: Sequence[int]
    """The samples of these same steps."""
    timed_data_seconds: Sequence[float]
    """How long these same steps waited for their batch; NaN if that was not measured."""

    def __len__(self) -> int:
        return len(self.losses)

    def column(self, name: str) -> Column:
        """One of the columns of its blocks."""
        return _joined([getattr(block, name) for block in self.blocks])

    def one(self, index: int) -> StepRecord:
        """One of its steps."""
        step = self.first_step + index
        block = next(block for block in self.blocks if block.last_step >= step)
        return block.one(step - block.first_step)


def stretches(blocks: Sequence[Steps]) -> Iterator[Stretch]:
    """``blocks`` in order, apart where steps are not consecutive, or precision, epoch or warm-up change."""
    start = 0
    for end in range(1, len(blocks)):
        before, after = blocks[end - 1], blocks[end]
        if after.first_step != before.last_step + 1 or _IN_COMMON(after) != _IN_COMMON(before):
            yield _stretch(blocks[start:end])
            start = end
    if blocks:
        yield _stretch(blocks[start:])


def _joined(columns: Sequence[Sequence[_Value]]) -> Sequence[_Value]:
    return columns[0] if len(columns) == 1 else [*chain.from_iterable(columns)]


def _stretch(blocks: Sequence[Steps]) -> Stretch:
    first = blocks[0]
    losses = _joined([block.loss for block in blocks])
    samples = _joined([block.samples for block in blocks])
    seconds = _joined([block.step_seconds for block in blocks])
    waits = _joined([block.data_seconds for block in blocks])
    skipped = sum(block.count for block in blocks if block.skipped)
    applied_seconds = _joined([_applied_seconds(block) for block in blocks]) if skipped else seconds
    is_timed = [value is not None and 0.0 < value < math.inf for value in applied_seconds]
    timed_seconds, timed_samples, timed_waits = applied_seconds, samples, waits
    if not all(is_timed):
        timed_seconds, timed_waits = [*compress(applied_seconds, is_timed)], [*compress(waits, is_timed)]
        timed_samples = [*compress(samples, is_timed)]
    grad_maxima = _joined([block.grad_max for block in blocks])
    skips = _joined([_skips(block) for block in blocks])
    return Stretch(
        first_step=first.first_step,
        epoch=first.epoch,
        precision=first.precision,
        settling=first.settling,
        blocks=blocks,
        losses=losses,
        samples=samples,
        seconds=seconds,
        rates=_rates(samples, applied_seconds, is_timed),
        loss_scales=_joined([block.loss_scale for block in blocks]),
        skips=skips,
        unmeasured=skips.count(None),
        grad_maxima=None if grad_maxima.count(None) == len(grad_maxima) else grad_maxima,
        skipped=skipped,
        timed_seconds=timed_seconds,  # type: ignore[arg-type]  # those that are None are left out
        timed_samples=timed_samples,
        timed_data_seconds=[math.nan if wait is None else wait for wait in timed_waits],
    )


def _applied_seconds(block: Steps) -> Column:
    return [None] * block.count if block.skipped else block.step_seconds


def _skips(block: Steps) -> Column:
    skip = float(block.skipped)
    if block.loss_form or None not in block.loss:
        return [skip] * block.count
    return [None if loss is None else skip for loss in block.loss]


def _rates(samples: Sequence[int], seconds: Column, is_timed: Sequence[bool]) -> Column:
    if not any(samples):
        return [None] * len(samples)  # an observed script did not say how many there are
    return [
        count / value if timed and value else None
        for count, value, timed in zip(samples, seconds, is_timed, strict=True)
    ]
