"""Consecutive steps of one precision and epoch as columns, which add up quickly."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter

from amptui.records import StepRecord

_IN_COMMON = attrgetter("precision", "epoch", "settling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive steps of one precision and epoch, all of them warm-up steps or none."""

    first_step: int
    epoch: int
    precision: str
    settling: bool
    records: Sequence[StepRecord]
    losses: list[float | None]
    """One per step, as are the rates, scales and skips."""
    rates: list[float | None]
    """Samples per second; None if the step was not timed, or skipped."""
    loss_scales: list[float | None]
    skips: list[float | None]
    """1 for a skipped step, 0 for an applied one, None if the step was not measured."""
    unmeasured: int
    """How many steps were not measured: without a loss, and without a reason for that."""
    grad_maxima: list[float | None] | None
    """The largest gradient of each step; None if no step's was measured."""
    skipped: int
    """How many steps the scaler skipped."""
    timed_seconds: list[float]
    """Durations of the applied steps that were timed: measured, finite and above 0.

    A skipped step spares the optimizer's work: as a step it would be fast, and it trains on nothing."""
    timed_samples: list[int]
    """The samples of these same steps."""
    timed_data_seconds: list[float]
    """How long these same steps waited for their batch; NaN if that was not measured."""

    def __len__(self) -> int:
        return len(self.records)


def is_unmeasured(record: StepRecord) -> bool:
    """Whether the numbers of a step never reached the host."""
    return record.loss is None and not record.loss_form


def stretches(records: Sequence[StepRecord]) -> Iterator[Stretch]:
    """``records`` in order, split where steps are not consecutive, or precision, epoch or warm-up change."""
    if not records:
        return
    if _is_one_stretch(records):
        yield _stretch(records)
        return
    start = 0
    for end in range(1, len(records)):
        before, after = records[end - 1], records[end]
        if after.step != before.step + 1 or _IN_COMMON(after) != _IN_COMMON(before):
            yield _stretch(records[start:end])
            start = end
    yield _stretch(records[start:])


def _is_one_stretch(records: Sequence[StepRecord]) -> bool:
    # Nearly every batch is: counting in C avoids the loop.
    count, first = len(records), records[0]
    return (
        [record.step for record in records] == list(range(first.step, first.step + count))
        and [record.precision for record in records].count(first.precision) == count
        and [record.epoch for record in records].count(first.epoch) == count
        and [record.settling for record in records].count(first.settling) == count
    )


def _stretch(records: Sequence[StepRecord]) -> Stretch:
    first = records[0]
    seconds = [None if record.skipped else record.step_seconds for record in records]
    samples = [record.samples for record in records]
    waits = [math.nan if record.data_seconds is None else record.data_seconds for record in records]
    timed_seconds = [value for value in seconds if value is not None and 0.0 < value < math.inf]
    rates: list[float | None]
    if len(timed_seconds) == len(seconds):
        rates = [count / value for count, value in zip(samples, timed_seconds, strict=True)]
    else:
        rates = [
            count / value if value is not None and 0.0 < value < math.inf else None
            for count, value in zip(samples, seconds, strict=True)
        ]
        timed = [rate is not None for rate in rates]
        samples, waits = [*compress(samples, timed)], [*compress(waits, timed)]
    if not any(record.samples for record in records):
        rates = [None] * len(records)  # an observed script did not say how many there are
    losses = [record.loss for record in records]
    skipped = [record.skipped for record in records]
    skips: list[float | None] = [*map(float, skipped)]
    unmeasured = 0
    if None in losses:
        skips = [None if is_unmeasured(record) else float(record.skipped) for record in records]
        unmeasured = skips.count(None)
    grad_maxima = [record.grad_max for record in records]
    return Stretch(
        first_step=first.step,
        epoch=first.epoch,
        precision=first.precision,
        settling=first.settling,
        records=records,
        losses=losses,
        rates=rates,
        loss_scales=[record.loss_scale for record in records],
        skips=skips,
        unmeasured=unmeasured,
        grad_maxima=None if grad_maxima.count(None) == len(grad_maxima) else grad_maxima,
        skipped=skipped.count(True),
        timed_seconds=timed_seconds,
        timed_samples=samples,
        timed_data_seconds=waits,
    )
