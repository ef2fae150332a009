"""Optimizer steps as a run records them: in blocks of columns. One step of a block is a ``StepRecord``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate
from operator import sub
from typing import Any, TypeVar

from amptui.records.own_loop import LossForm

Column = Sequence[float | None]
"""One value of each step of a block, oldest first; None where it was not measured."""

COLUMNS = (
    *("loss", "samples", "step_seconds", "data_seconds", "lr", "loss_scale", "growth_tracker", "grad_norm"),
    *("nonfinite_gradients", "grad_max"),
)
"""The fields of :class:`Steps` that are columns, each called as in :class:`StepRecord`."""

INTEGER_COLUMNS = frozenset({"samples", "growth_tracker", "nonfinite_gradients"})

SAME = ("epoch", "precision", "skipped", "settling", "micro_batches", "optimizer", "loss_form")
"""The fields that all steps of a block have in common."""

MAX_AT_ONCE = 1024
"""Records of a journal that are handled together."""

MAX_STEPS_AT_ONCE = 2**16
"""Steps in them, unless a single block has more: some 20 MiB."""

SECONDS_DECIMALS = 9
"""Durations are kept to the nanosecond, the resolution of the clocks that measure them."""


_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step, applied or skipped. A journal has it as a block of one."""

    time: float
    step: int
    """Counted from 1 over the whole run."""
    epoch: int
    """Counted from 1."""
    precision: str
    loss: float | None
    """Never multiplied by the loss scale."""
    samples: int
    """Of all ranks; 0 where an observed script does not say how many."""
    step_seconds: float | None
    """From the end of the step before to the end of this one, on the device's clock."""
    data_seconds: float | None
    """How long the loop waited for this step's batch, on the host's clock."""
    lr: float | None
    """Of the optimizer's first parameter group; None for one without a learning rate."""
    loss_scale: float | None
    """The scale this step ran with; None outside ``fp16``."""
    growth_tracker: int | None
    skipped: bool
    grad_norm: float | None
    """The L2 norm over all gradients, unscaled, before clipping. None in steps too short for it."""
    nonfinite_gradients: int | None
    """How many gradient tensors hold NaN or Inf."""
    settling: bool
    grad_max: float | None = None
    """The largest absolute value in all gradients, unscaled, before clipping; measured with the norm."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """The parts of the loss by name, where the experiment names them."""
    micro_batches: int = 1
    """Batches whose gradients were accumulated in this step; ``samples`` are those of all of them."""
    group_lrs: tuple[float, ...] = ()
    """The learning rate of each parameter group, where they differ; the first 8."""
    optimizer: str = ""
    """Which of a script's several optimizers; empty for the run's first, and for an only one."""
    loss_form: LossForm = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Consecutive optimizer steps. Its columns and constants are those of :class:`StepRecord`."""

    time: float
    """When the last of them ended. Each began when the one before it ended."""
    first_step: int
    count: int
    epoch: int
    precision: str
    skipped: bool
    settling: bool
    loss: Column
    samples: Sequence[int]
    step_seconds: Column
    data_seconds: Column
    lr: Column
    loss_scale: Column
    growth_tracker: Sequence[int | None]
    grad_norm: Column
    nonfinite_gradients: Sequence[int | None]
    grad_max: Column
    losses: Mapping[str, Column] = field(default_factory=dict)
    micro_batches: int = 1
    group_lrs: tuple[Column, ...] = ()
    """A column for each parameter group, where their learning rates differ."""
    optimizer: str = ""
    loss_form: LossForm = ""

    @classmethod
    def of(cls, record: StepRecord) -> "Steps":
        """A block of one step."""
        columns: dict[str, Any] = {name: (getattr(record, name),) for name in COLUMNS}
        same = {name: getattr(record, name) for name in SAME}
        return cls(
            time=record.time,
            first_step=record.step,
            count=1,
            losses={name: (loss,) for name, loss in record.losses.items()},
            group_lrs=tuple((lr,) for lr in record.group_lrs),
            **columns,
            **same,
        )

    @property
    def last_step(self) -> int:
        """The number of the last step."""
        return self.first_step + self.count - 1

    @property
    def step(self) -> int:
        """The same, by the name that other records of a step have for it."""
        return self.last_step

    @property
    def is_measured(self) -> bool:
        """Whether their numbers reached the host, or there is a reason why they have no loss."""
        return bool(self.loss_form) or self.loss[-1] is not None

    def times(self) -> list[float]:
        """When each step ended, Unix seconds."""
        between: Sequence[Any] = self.step_seconds[:0:-1]
        if None in between:
            between = [seconds or 0.0 for seconds in between]
        times = [*accumulate(between, sub, initial=self.time)]
        times.reverse()
        return times

    def one(self, index: int, time: float | None = None) -> StepRecord:
        """The step at ``index``, which ended at ``time`` if that is known already."""
        index %= self.count
        own = {name: getattr(self, name)[index] for name in COLUMNS}
        same = {name: getattr(self, name) for name in SAME}
        parts = ((name, column[index]) for name, column in self.losses.items())
        group_lrs: tuple[Any, ...] = tuple(column[index] for column in self.group_lrs)
        if time is None:
            time = reduce(sub, (seconds or 0.0 for seconds in self.step_seconds[:index:-1]), self.time)
        return StepRecord(
            time=time,
            step=self.first_step + index,
            losses={name: part for name, part in parts if part is not None},
            group_lrs=group_lrs,
            **own,
            **same,
        )

    def one_by_one(self) -> Iterator[StepRecord]:
        """All steps, oldest first."""
        for index, time in enumerate(self.times()):
            yield self.one(index, time)

    def part(self, start: int, end: int) -> "Steps":
        """The steps from index ``start`` to before ``end``, at least one."""
        if start == 0 and end == self.count:
            return self
        return replace(
            self,
            time=self.times()[end - 1],
            first_step=self.first_step + start,
            count=end - start,
            losses={name: column[start:end] for name, column in self.losses.items()},
            group_lrs=tuple(column[start:end] for column in self.group_lrs),
            **{name: getattr(self, name)[start:end] for name in COLUMNS},
        )


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
