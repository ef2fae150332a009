"""Optimizer steps as a run measures, records, shows and exports them: in blocks of columns."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import accumulate, chain, compress, zip_longest
from operator import attrgetter, sub, truediv
from typing import Any, TypeGuard, TypeVar

from amptui.records.own_loop import LossForm

Column = Sequence[float | None]
"""One value of each step of a block, oldest first; None where it was not measured."""

COLUMNS = (
    *("skipped", "loss", "samples", "step_seconds", "data_seconds", "lr", "loss_scale", "growth_tracker"),
    *("grad_norm", "nonfinite_gradients", "grad_max"),
)
"""The fields of :class:`Steps` that are columns."""

_IN_COMMON = attrgetter("epoch", "precision", "settling", "micro_batches", "optimizer", "loss_form")

MAX_AT_ONCE = 1024
"""Records of a journal that are handled together."""

MAX_STEPS_AT_ONCE = 2**16
"""Steps in them, unless a single block has more: some 20 MiB."""

SECONDS_DECIMALS = 9
"""Durations are kept to the nanosecond, the resolution of the clocks that measure them."""


_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)  # without slots: what follows from its columns is computed once
class Steps:
    """A block of consecutive optimizer steps, applied or skipped, at least one. A single step is a row."""

    time: float
    """When the last of them ended. Each began when the one before it ended."""
    first_step: int
    """Counted from 1 over the whole run."""
    count: int
    epoch: int
    """Counted from 1."""
    precision: str
    skipped: Sequence[bool]
    """Whether the scaler dropped the step."""
    settling: bool
    """Whether they are warm-up steps."""
    loss: Column
    """Never multiplied by the loss scale."""
    samples: Sequence[int]
    """Of all ranks; 0 where an observed script does not say how many."""
    step_seconds: Column
    """From the end of the step before to the end of this one, on the device's clock."""
    data_seconds: Column
    """How long the loop waited for this step's batch, on the host's clock."""
    lr: Column
    """Of the optimizer's first parameter group; None for one without a learning rate."""
    loss_scale: Column
    """The scale this step ran with; None outside ``fp16``."""
    growth_tracker: Sequence[int | None]
    grad_norm: Column
    """The L2 norm over all gradients, unscaled, before clipping. None in steps too short for it."""
    nonfinite_gradients: Sequence[int | None]
    """How many gradient tensors hold NaN or Inf."""
    grad_max: Column
    """The largest absolute value in all gradients, unscaled, before clipping; measured with the norm."""
    losses: Mapping[str, Column] = field(default_factory=dict)
    """The parts of the loss by name, where the experiment names them."""
    micro_batches: int = 1
    """Batches whose gradients were accumulated in a step; ``samples`` are those of all of them."""
    group_lrs: tuple[Column, ...] = ()
    """A column for each parameter group, where their learning rates differ; of the first 8."""
    optimizer: str = ""
    """Which of a script's several optimizers; empty for the run's first, and for an only one."""
    loss_form: LossForm = ""

    @property
    def last_step(self) -> int:
        """The number of the last step."""
        return self.first_step + self.count - 1

    @property
    def step(self) -> int:
        """The same, by the name that other records of a step have for it."""
        return self.last_step

    def times(self) -> list[float]:
        """When each step ended, Unix seconds."""
        between: Sequence[Any] = self.step_seconds[:0:-1]
        if None in between:
            between = [seconds or 0.0 for seconds in between]
        times = [*accumulate(between, sub, initial=self.time)]
        times.reverse()
        return times

    def part(self, start: int, end: int, time: float | None = None) -> "Steps":
        """The steps from index ``start`` to before ``end``, at least one; ``time`` is their end, if known."""
        if start == 0 and end == self.count:
            return self
        if time is None:
            time = reduce(sub, (seconds or 0.0 for seconds in self.step_seconds[: end - 1 : -1]), self.time)
        return replace(
            self,
            time=time,
            first_step=self.first_step + start,
            count=end - start,
            losses={name: column[start:end] for name, column in self.losses.items()},
            group_lrs=tuple(column[start:end] for column in self.group_lrs),
            **{name: getattr(self, name)[start:end] for name in COLUMNS},
        )

    def newest(self, column: str) -> "Steps | None":
        """The row of the newest step that has a value in ``column``."""
        values = getattr(self, column)
        index = next((index for index in reversed(range(self.count)) if values[index] is not None), None)
        return None if index is None else self.part(index, index + 1)

    @cached_property
    def skips(self) -> Column:
        """1 for a skipped step, 0 for an applied one, None if the step was not measured."""
        if self.loss_form or None not in self.loss:
            return [*map(float, self.skipped)]
        pairs = zip(self.loss, self.skipped, strict=True)
        return [None if loss is None else float(skipped) for loss, skipped in pairs]

    @property
    def unmeasured(self) -> int:
        """How many steps were not measured: without a loss, and without a reason for that."""
        return self.skips.count(None)

    @cached_property
    def _is_timed(self) -> Sequence[bool] | None:
        """Which steps were applied and timed: measured, finite and above 0. None if all were."""
        if not any(self.skipped) and are_finite(self.step_seconds) and min(self.step_seconds) > 0.0:
            return None
        return [
            not skipped and seconds is not None and 0.0 < seconds < math.inf
            for skipped, seconds in zip(self.skipped, self.step_seconds, strict=True)
        ]

    def timed(self, column: str) -> Sequence[Any]:
        """The values of a column for the applied steps that were timed.

        A skipped step spares the optimizer's work: as a step it would be fast, and it trains on nothing.
        """
        values: Sequence[Any] = getattr(self, column)
        return values if self._is_timed is None else [*compress(values, self._is_timed)]

    def rates(self) -> Column:
        """Samples per second; None if the step was not timed, or skipped."""
        samples, seconds, is_timed = self.samples, self.step_seconds, self._is_timed
        if not any(samples):
            return [None] * self.count  # an observed script did not say how many there are
        if is_timed is None:
            return [*map(truediv, samples, seconds)]
        return [
            count / value if timed and value else None
            for count, value, timed in zip(samples, seconds, is_timed, strict=True)
        ]


def joined(blocks: Sequence[Steps]) -> Iterator[Steps]:
    """``blocks`` in order, in fewer ones: apart only where steps do not follow, or are not alike."""
    start = 0
    for end in range(1, len(blocks) + 1):
        before = blocks[end - 1]
        if end < len(blocks):
            after = blocks[end]
            if after.first_step == before.last_step + 1 and _IN_COMMON(after) == _IN_COMMON(before):
                continue
        yield _as_one(blocks[start:end])
        start = end


def _as_one(blocks: Sequence[Steps]) -> Steps:
    """Blocks that follow each other; a part or a learning rate that one of them lacks has no value there."""
    if len(blocks) == 1:
        return blocks[0]

    def one_column(columns: Iterable[Sequence[Any] | None]) -> list[Any]:
        pairs = zip(columns, blocks, strict=True)
        return [*chain.from_iterable(column or (None,) * block.count for column, block in pairs)]

    columns: dict[str, Any] = {
        name: [*chain.from_iterable(map(attrgetter(name), blocks))] for name in COLUMNS
    }
    parts = dict.fromkeys(name for block in blocks for name in block.losses)
    group_lrs = zip_longest(*(block.group_lrs for block in blocks))
    return replace(
        blocks[-1],
        first_step=blocks[0].first_step,
        count=blocks[-1].last_step - blocks[0].first_step + 1,
        losses={name: one_column(block.losses.get(name) for block in blocks) for name in parts},
        group_lrs=tuple(map(one_column, group_lrs)),
        **columns,
    )


def are_finite(column: Column) -> TypeGuard[Sequence[float]]:
    """Whether all of ``column`` are finite numbers; it may say no of numbers that are very large."""
    try:
        return math.isfinite(sum(column))  # type: ignore[arg-type]  # with a None it raises TypeError
    except TypeError:
        return False


def in_batches(records: Iterable[_R]) -> Iterator[list[_R]]:
    """``records`` in order, in lists of at most :data:`MAX_AT_ONCE`, or fewer with very many steps."""
    batch: list[_R] = []
    steps = 0
    for record in records:
        batch.append(record)
        if isinstance(record, Steps):
            steps += record.count
        if len(batch) == MAX_AT_ONCE or steps >= MAX_STEPS_AT_ONCE:
            yield batch
            batch, steps = [], 0
    if batch:
        yield batch
