"""What a rank measures between two exchanges, and the records that rank 0 makes of all ranks' rows."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from amptui.ranks.agreement.posted_rows import RowReport
from amptui.ranks.agreement.rows import Floats, RankNumbers, RankRows
from amptui.ranks.numbers.trouble_states import UNKNOWN, ranks_at_fault, unpacked
from amptui.records.ranks import (
    RanksDisagree,
    RanksOverflowed,
    RanksSampled,
    RankValue,
    StandingOut,
    condensed,
)
from amptui.records.run import Record
from amptui.records.samples import GpuSample, decode_clocks_event_reasons, encode_clocks_event_reasons
from amptui.records.steps import Steps

SAMPLE_SECONDS = 1.0
"""The time from one sample in the journal to the next."""

MAX_NAMED = 8
"""Ranks that are named as different from the others."""

_Compared = Literal["loss scale", "found_inf", "weights"]


class RankMeter:
    """Collects one rank's numbers from its steps' records; used by the trainer's thread."""

    def __init__(self) -> None:
        self._skipped = self._last_step = 0
        self._loss_scale = self._grad_norm = math.nan
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._step_seconds = _Mean()
        self._data_seconds = _Mean()

    def add(self, record: Record) -> None:
        """Add steps; other records tell nothing of them."""
        if type(record) is not Steps:
            return
        self._steps += record.count
        self._last_step = record.last_step
        for step_seconds, data_seconds in zip(record.step_seconds, record.data_seconds, strict=True):
            self._step_seconds.add(step_seconds)
            self._data_seconds.add(data_seconds)
        self._skipped += record.count * record.skipped
        scale = record.loss_scale[-1]
        self._loss_scale = math.nan if scale is None else scale
        norms = [norm for norm in record.grad_norm if norm is not None]
        self._grad_norm = norms[-1] if norms else self._grad_norm

    def take_numbers(
        self, *, compute_seconds: float | None, peak_bytes: int | None, gpu: GpuSample | None = None
    ) -> RankNumbers:
        """The numbers since the last call; ``compute_seconds`` is a mean too, ``peak_bytes`` torch's peak."""
        numbers = RankNumbers(
            steps=self._steps,
            last_step=self._last_step,
            step_seconds=self._step_seconds.value,
            data_seconds=self._data_seconds.value,
            compute_seconds=math.nan if compute_seconds is None else compute_seconds,
            grad_norm=self._grad_norm,
            skipped=self._skipped,
            loss_scale=self._loss_scale,
            peak_bytes=math.nan if peak_bytes is None else peak_bytes,
        )
        if gpu is not None:
            numbers = numbers._replace(
                memory_used_bytes=math.nan if gpu.memory_used_bytes is None else gpu.memory_used_bytes,
                sm_clock_mhz=math.nan if gpu.sm_clock_mhz is None else gpu.sm_clock_mhz,
                clocks_event_reasons=encode_clocks_event_reasons(gpu.clocks_event_reasons or ()),
            )
        self._begin()
        return numbers


class _Mean:
    """The mean of what was measured; NaN without any."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0.0

    def add(self, value: float | None, weight: float = 1.0) -> None:
        if value is not None and not math.isnan(value):
            self._sum += value * weight
            self._count += weight

    @property
    def value(self) -> float:
        return self._sum / self._count if self._count else math.nan


class _Means:
    """The same for each rank."""

    def __init__(self, ranks: int) -> None:
        self._sums, self._counts = np.zeros(ranks), np.zeros(ranks)

    def add(self, values: Floats, weights: Floats) -> None:
        measured = ~np.isnan(values)
        self._sums += np.where(measured, values, 0.0) * weights
        self._counts += measured * weights

    def values(self) -> Floats:
        """NaN where nothing was measured."""
        measured = self._counts > 0
        means: Floats = np.full(len(measured), math.nan)
        np.divide(self._sums, self._counts, out=means, where=measured)
        return means


class RankReport(RowReport):
    """Turns the rows of all ranks into records, about one a second; rank 0's."""

    def __init__(self, emit: Callable[[Record], object]) -> None:
        self._emit = emit
        self._due = 0.0
        self._means: dict[str, _Means] = {}
        self._steps = 0
        self._rows = RankRows([])
        """The newest ones."""
        self._skipped: Floats | None = None
        self._hashed_step = -1.0
        self._blamed_step = 0
        self._disagreeing: set[str] = set()
        self._standing_out = StandingOut()

    def take(self, rows: RankRows) -> None:
        """Take one exchange's rows, in the order of the ranks."""
        if not self._means:
            self._means = {name: _Means(len(rows)) for name in _SECONDS}
        steps = rows.column("steps")
        for name, means in self._means.items():
            means.add(rows.column(name), steps)
        self._steps += int(steps[0])
        self._rows = rows
        self._compare(rows)
        self._compare_weights(rows)
        self._blame(rows)
        if time.monotonic() >= self._due:
            self._tell_sample()

    def close(self) -> None:
        """Tell of the steps since the last sample, however soon after it the training ended."""
        self._tell_sample()

    def _tell_sample(self) -> None:
        if self._steps:
            self._due = time.monotonic() + SAMPLE_SECONDS
            self._emit(condensed(self._sample(self._rows), self._standing_out))
            self._means, self._steps = {}, 0

    def _sample(self, rows: RankRows) -> RanksSampled:
        seconds: dict[str, Any] = {name: _column(means.values()) for name, means in self._means.items()}
        return RanksSampled(
            time=time.time(),
            step=int(rows[0].numbers.last_step),
            steps=self._steps,
            world_size=len(rows),
            ranks=tuple(range(len(rows))),
            **seconds,
            peak_allocated_bytes=_whole(rows.column("peak_bytes")),
            memory_used_bytes=_whole(rows.column("memory_used_bytes")),
            grad_norm=_column(rows.column("grad_norm")),
            skipped=_whole(rows.column("skipped")),
            overflowed=_whole(rows.column("overflowed")),
            sm_clock_mhz=_column(rows.column("sm_clock_mhz")),
            throttled=_throttled(rows.column("clocks_event_reasons")),
        )

    def _compare(self, rows: RankRows) -> None:
        """Tell when ranks begin, or cease, to differ in what DDP keeps equal after the same step."""
        steps = rows.column("last_step")
        if not _all_equal(steps):
            return
        # NaN differs from itself: a rank without a loss scale has scale 0.
        scales = np.nan_to_num(rows.column("loss_scale"), posinf=math.inf)
        self._tell_difference("loss scale", scales, int(steps[0]))
        skipped = rows.column("skipped")
        more = skipped if self._skipped is None else skipped - self._skipped
        self._skipped = skipped
        self._tell_difference("found_inf", (more > more.min()).astype(np.float64), int(steps[0]))

    def _compare_weights(self, rows: RankRows) -> None:
        """Compare hashes of the weights once all ranks have told theirs of the same step."""
        steps, hashes = rows.column("hashed_step"), rows.column("weights_hash")
        if steps[0] == self._hashed_step or not _all_equal(steps) or np.isnan(hashes).any():
            return
        self._hashed_step = steps[0]
        self._tell_difference("weights", hashes, int(steps[0]))

    def _blame(self, rows: RankRows) -> None:
        """Tell which ranks' own numbers were not finite, once all ranks have told of a step with trouble."""
        newest = rows.column("trouble_step")
        known_by_all = int(newest.min())
        if known_by_all <= self._blamed_step:
            return
        packed_states = rows.column("trouble_states").tolist()
        told = [unpacked(int(step), int(each)) for step, each in zip(newest, packed_states, strict=True)]
        for step in sorted({step for states in told for step in states}):
            if not self._blamed_step < step <= known_by_all:
                continue
            if ranks := ranks_at_fault([states.get(step, UNKNOWN) for states in told]):
                named = tuple(ranks[:MAX_NAMED])
                self._emit(RanksOverflowed(time=time.time(), step=step, ranks=named, count=len(ranks)))
        self._blamed_step = known_by_all

    def _tell_difference(self, what: _Compared, column: Floats, step: int) -> None:
        if _all_equal(column) and what not in self._disagreeing:
            return
        values: list[float] = column.tolist()
        counts = Counter(values)
        most = max(counts, key=lambda value: (counts[value], value == values[0]))
        others = tuple(RankValue(rank=i, value=value) for i, value in enumerate(values) if value != most)
        if bool(others) == (what in self._disagreeing):
            return
        self._disagreeing.symmetric_difference_update({what})
        self._emit(
            RanksDisagree(
                time=time.time(),
                step=step,
                what=what,
                count=len(others),
                most=most,
                others=others[:MAX_NAMED],
            )
        )


_SECONDS = ("step_seconds", "data_seconds", "compute_seconds")


def _all_equal(column: Floats) -> bool:
    return bool((column == column[0]).all())


def _column(values: Floats) -> tuple[float | None, ...]:
    """A record's column; empty where no rank measured it."""
    missing = np.isnan(values)
    if missing.all():
        return ()
    found: list[float] = values.tolist()
    return tuple([None if math.isnan(value) else value for value in found] if missing.any() else found)


def _throttled(masks: Floats) -> dict[str, tuple[int, ...]]:
    """The ranks whose clocks are held down, by the reason."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in np.flatnonzero(masks).tolist():
        for reason in decode_clocks_event_reasons(int(masks[rank])):
            found[reason].append(rank)
    return {reason: tuple(ranks) for reason, ranks in found.items()}


def _whole(values: Floats) -> tuple[int | None, ...]:
    return tuple([None if value is None else int(value) for value in _column(values)])
