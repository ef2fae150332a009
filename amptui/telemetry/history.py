"""The curves of a run of any length, in bounded memory: recent values exactly, all in buckets."""

import array as packed
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from operator import is_
from typing import Any, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from amptui.records.findings import UpdatesMeasured
from amptui.records.run import RunStarted, Validation
from amptui.records.samples import DeviceSample
from amptui.records.steps import Column, Steps
from amptui.telemetry.view import Counts, Floats, Metric, MetricKind, Series, training_gpu

_SUM_SCALE = 2.0**-64
"""Sums are scaled by this power of two, which is exact: no sum of float64s ever overflows."""

_MAX_WAITING = 2048
"""Values that wait to be added together: numpy takes as long for one as for hundreds."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(slots=True, eq=False)
class Track:
    """One value a step: a pyramid of buckets over the whole run beside a ring of the newest values.

    A bucket covers ``bucket_steps`` steps, a power of two. When all ``buckets`` are full and one more
    value comes, pairs merge in place and buckets cover twice as much: minimum and maximum keep every
    one-step spike for ever. What the buckets cover depends only on the number of values, not on how
    they were batched. Not safe to share between threads without a lock. Its arrays, as the codec writes them,
    are complete after :meth:`settle`.
    """

    _first_step: int
    _minimum: Floats
    _maximum: Floats
    _sum: Floats
    _finite: Counts
    _nonfinite: Counts
    _ring: Floats
    _ring_nonfinite: npt.NDArray[np.bool_]
    _count: int = 0
    _bucket_steps: int = 1
    _ring_count: int = 0
    """How many of the ring's values, counted back from the newest, are the track's."""
    _nonfinite_since: int | None = None
    """The step of the first NaN or Inf after the newest finite value; None if there is none."""
    _snapshot: Series | None = field(default=None, init=False)
    _waiting: list[float | None] = field(default_factory=list, init=False)
    """The newest values, which the arrays lack."""

    @classmethod
    def empty(cls, buckets: int = 2048, recent: int = 2048, *, first_step: int = 1) -> "Track":
        """A track without values; ``buckets`` is even."""
        return cls(
            _first_step=first_step,
            _minimum=np.full(buckets, np.inf),
            _maximum=np.full(buckets, -np.inf),
            _sum=np.zeros(buckets),
            _finite=np.zeros(buckets, np.int64),
            _nonfinite=np.zeros(buckets, np.int64),
            _ring=np.full(recent, np.nan),
            _ring_nonfinite=np.zeros(recent, np.bool_),
        )

    @property
    def next_step(self) -> int:
        """The step of the value that comes next."""
        return self._first_step + self._count + len(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether it has no step."""
        return not self._count and not self._waiting

    def extend(self, values: Sequence[float | None]) -> None:
        """Add the values of the next steps; None means not measured, NaN and Inf are counted separately."""
        self._snapshot = None
        self._waiting.extend(values)
        if len(self._waiting) >= _MAX_WAITING:
            self.settle()

    def settle(self) -> None:
        """Add the values that wait to the arrays."""
        if not self._waiting:
            return
        waiting: list[Any] = self._waiting
        self._waiting, is_missing = [], None
        try:
            # Twice as fast as numpy's own way.
            values: Floats = np.frombuffer(packed.array("d", waiting))
        except TypeError:  # of a None
            values = np.array(waiting, np.float64)
            is_missing = np.fromiter(map(is_, waiting, repeat(None)), np.bool_, len(waiting))
            if is_missing.all():
                self.skip(len(values))
                return
        start = 0
        while start < len(values):
            if self._count == len(self._sum) * self._bucket_steps:
                self._merge_pairs()
            end = min(len(values), start + len(self._sum) * self._bucket_steps - self._count)
            self._add(values[start:end], None if is_missing is None else is_missing[start:end])
            start = end

    def skip(self, steps: int) -> None:
        """Add ``steps`` steps without a measured value, in O(log steps)."""
        if not steps:
            return
        self.settle()
        self._snapshot = None
        while self._count + steps > len(self._sum) * self._bucket_steps:
            self._merge_pairs()
        self._count += steps
        unmeasured = min(steps, len(self._ring))
        self._write_ring(np.full(unmeasured, np.nan), np.zeros(unmeasured, np.bool_))

    def rewind(self, next_step: int) -> None:
        """Forget the values from ``next_step`` on: a resumed run repeats these steps.

        The bucket of ``next_step`` keeps its values, so up to ``bucket_steps - 1`` forgotten values still
        show in it.
        """
        count = max(0, next_step - self._first_step)
        if count >= self._count + len(self._waiting):
            return
        self.settle()
        self._snapshot = None
        self._ring_count = max(0, self._ring_count - (self._count - count))
        self._count = count
        if self._nonfinite_since is not None and self._nonfinite_since >= next_step:
            self._nonfinite_since = None
        self._clear_from(-(-count // self._bucket_steps))

    def snapshot(self) -> Series:
        """The history so far, in copies."""
        if self._snapshot is not None:
            return self._snapshot
        self.settle()
        buckets = -(-self._count // self._bucket_steps)
        finite = self._finite[:buckets]
        empty = finite == 0
        minimum = np.where(empty, np.nan, self._minimum[:buckets])
        maximum = np.where(empty, np.nan, self._maximum[:buckets])
        with np.errstate(over="ignore"):
            mean = self._sum[:buckets] / np.maximum(finite, 1) / _SUM_SCALE
        # Rounding can put the mean of equal values just outside their range.
        mean = np.minimum(np.maximum(mean, minimum), maximum)
        series = self._snapshot = Series(
            first_step=self._first_step,
            count=self._count,
            bucket_steps=self._bucket_steps,
            minimum=minimum,
            maximum=maximum,
            mean=mean,
            nonfinite=self._nonfinite[:buckets].copy(),
            recent=self._unrolled(self._ring),
            recent_nonfinite=self._unrolled(self._ring_nonfinite),
            nonfinite_since=self._nonfinite_since,
        )
        return series

    def _merge_pairs(self) -> None:
        half = len(self._sum) // 2
        self._minimum[:half] = np.minimum(self._minimum[0::2], self._minimum[1::2])
        self._maximum[:half] = np.maximum(self._maximum[0::2], self._maximum[1::2])
        for sums in (self._sum, self._finite, self._nonfinite):
            sums[:half] = sums[0::2] + sums[1::2]
        self._bucket_steps *= 2
        self._clear_from(half)

    def _clear_from(self, bucket: int) -> None:
        self._minimum[bucket:] = np.inf
        self._maximum[bucket:] = -np.inf
        for sums in (self._sum, self._finite, self._nonfinite):
            sums[bucket:] = 0

    def _add(self, values: Floats, is_missing: npt.NDArray[np.bool_] | None) -> None:
        """Add values that fit, at least one, to the buckets and to the ring."""
        self._snapshot = None
        first, offset = divmod(self._count, self._bucket_steps)
        starts = np.arange(-offset, len(values), self._bucket_steps)
        starts[0] = 0
        buckets = slice(first, first + len(starts))
        finite = np.isfinite(values)
        nonfinite = ~finite if is_missing is None else ~finite & ~is_missing
        low = high = terms = values
        if finite.any():
            self._nonfinite_since = None
        if not finite.all():
            last_finite = int(np.flatnonzero(finite)[-1]) if finite.any() else -1
            newest = np.flatnonzero(nonfinite[last_finite + 1 :])
            if self._nonfinite_since is None and len(newest):
                self._nonfinite_since = self._first_step + self._count + last_finite + 1 + int(newest[0])
            low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
            terms, values = np.where(finite, values, 0.0), np.where(finite, values, np.nan)
            self._nonfinite[buckets] += np.add.reduceat(nonfinite, starts, dtype=np.int64)
        self._minimum[buckets] = np.minimum(self._minimum[buckets], np.minimum.reduceat(low, starts))
        self._maximum[buckets] = np.maximum(self._maximum[buckets], np.maximum.reduceat(high, starts))
        self._sum[buckets] += np.add.reduceat(terms * _SUM_SCALE, starts)
        self._finite[buckets] += np.add.reduceat(finite, starts, dtype=np.int64)
        self._count += len(values)
        self._write_ring(values, nonfinite)

    def _write_ring(self, values: Floats, nonfinite: npt.NDArray[np.bool_]) -> None:
        """Write the values that ``_count`` already counts; NaN stands for all that are not finite."""
        size = len(self._ring)
        self._ring_count = min(size, self._ring_count + len(values))
        values, nonfinite = values[-size:], nonfinite[-size:]
        start = (self._count - len(values)) % size
        fits = min(size - start, len(values))
        self._ring[start : start + fits] = values[:fits]
        self._ring_nonfinite[start : start + fits] = nonfinite[:fits]
        if fits < len(values):
            self._ring[: len(values) - fits] = values[fits:]
            self._ring_nonfinite[: len(values) - fits] = nonfinite[fits:]

    def sums(self) -> Floats:
        """The sum of the finite values of each bucket, as in :meth:`snapshot`."""
        self.settle()
        sums: Floats = self._sum[: -(-self._count // self._bucket_steps)] / _SUM_SCALE
        return sums

    def _unrolled(self, ring: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """A copy of the track's values in the ring, oldest first."""
        end = self._count % len(ring)
        start = end - self._ring_count
        return ring[start:end].copy() if start >= 0 else np.concatenate((ring[start:], ring[:end]))


def rate_series(rates: Track, samples: Track, seconds: Track) -> Series:
    """The history of samples per second, whose means are samples by seconds at every resolution.

    Minimum, maximum and recent values are rates of single steps. ``samples`` and ``seconds`` have values of
    the steps with a finite rate: all three have the same buckets.
    """
    series, weights = rates.snapshot(), seconds.sums()
    mean = np.divide(samples.sums(), weights, out=np.full(len(weights), np.nan), where=weights > 0)
    mean = np.minimum(np.maximum(mean, series.minimum), series.maximum)
    return replace(series, mean=mean, weights=weights, recent_weights=seconds.snapshot().recent)


@dataclass(slots=True, eq=False)
class Tracks:
    """A track of each of several values, by name, all of the same size."""

    _buckets: int = 2048
    _recent: int = 2048
    by_name: dict[str, Track] = field(default_factory=dict)

    def add(self, name: str, first_step: int, values: Sequence[float | None]) -> None:
        """Add the values of consecutive steps, in place of those from ``first_step`` on.

        Missing steps before them count as not measured.
        """
        track = self.by_name.get(name)
        if track is not None:
            track.rewind(first_step)
        if track is None or track.next_step > first_step:
            track = self.by_name[name] = Track.empty(self._buckets, self._recent, first_step=first_step)
        track.skip(first_step - track.next_step)
        track.extend(values)

    def rewind(self, next_step: int) -> None:
        """As :meth:`Track.rewind`; none remains that is empty."""
        for name, track in list(self.by_name.items()):
            track.rewind(next_step)
            if track.is_empty:
                del self.by_name[name]

    def settle(self) -> None:
        """As :meth:`Track.settle`."""
        for track in self.by_name.values():
            track.settle()


# ---------------------------------------------------------------------------------- all others

MAX_NAMED = 128
"""So many loss parts and validation metrics are kept, the first that were logged: each takes 23 KiB."""

_COLUMNS = ("grad_norm", "grad_max", "lr", "step_seconds", "data_seconds")
"""The columns of steps that have no other history."""

_KINDS = get_args(MetricKind)

_NAMED = ("part", "own validation")
"""The kinds to which a user gives names."""


@dataclass(slots=True, eq=False)
class Metrics:
    """Every logged value that is no panel's curve, by kind and name: loss parts, validations, updates, GPU.

    Each is kept in a quarter of the resolution of the curves, because there may be many. Steps of a metric
    that were not measured cost nothing.
    """

    are_left_out: bool = False
    """Whether more than ``MAX_NAMED`` were logged."""
    _tracks: dict[str, Tracks] = field(default_factory=lambda: {kind: Tracks(512, 128) for kind in _KINDS})

    def add(self, steps: Steps) -> None:
        """Add the columns and the loss parts of steps."""
        first_step = steps.first_step
        for name in _COLUMNS:
            self._add("step", name, first_step, getattr(steps, name))
        for group, rates in enumerate(steps.group_lrs[1:], 2):  # the first is the step's
            self._add("step", f"lr {group}", first_step, rates)
        # The parts of the loss, and what else the training logs in each step.
        for name, column in steps.losses.items():
            self._add("part", name, first_step, column)

    def add_validation(self, step: int, result: Validation) -> None:
        """Add loss, accuracy and the experiment's own metrics, at the step of the validation."""
        self._add("validation", "loss", step, [result.loss])
        self._add("validation", "accuracy", step, [result.accuracy])
        for name, value in result.metrics.items():
            self._add("own validation", name, step, [value])

    def add_updates(self, record: UpdatesMeasured) -> None:
        """Add the update ratio of each layer."""
        for layer, ratio in record.ratios.items():
            self._add("update", layer, record.step, [ratio])

    def add_sample(self, sample: DeviceSample, run: RunStarted | None, step: int) -> None:
        """Add what NVML says of the training GPU, and torch's allocator, at the newest step."""
        if step < 1:
            return
        gpu = training_gpu(run, sample)
        if gpu is not None:
            for name in ("memory_used_bytes", "utilization_percent", "power_watts", "temperature_c"):
                self._add("device", name, step, [getattr(gpu, name)])
        if sample.allocator is not None:
            self._add("device", "allocated_bytes", step, [sample.allocator.allocated_bytes])

    def rewind(self, next_step: int) -> None:
        """Forget the values from ``next_step`` on: the run repeats these steps."""
        for tracks in self._tracks.values():
            tracks.rewind(next_step)

    def settle(self) -> None:
        """As :meth:`Track.settle`."""
        for tracks in self._tracks.values():
            tracks.settle()

    def view(self, lock: threading.Lock) -> tuple[Metric, ...]:
        """All of them, by kind and in the order in which they came.

        A history is computed when it is read, under the ``lock`` of who adds to it.
        """

        def read(track: Track) -> Series:
            with lock:
                return track.snapshot()

        return tuple(
            Metric(kind, name, partial(read, track))
            for kind in _KINDS
            for name, track in self._tracks[kind].by_name.items()
        )

    def _add(self, kind: MetricKind, name: str, first_step: int, values: Column) -> None:
        """Add the values of consecutive steps, which replace those from ``first_step`` on."""
        if values.count(None) == len(values):
            return
        tracks = self._tracks[kind]
        if name not in tracks.by_name and kind in _NAMED:
            named = sum(len(self._tracks[kind].by_name) for kind in _NAMED)
            if named == MAX_NAMED:
                self.are_left_out = True
                return
        tracks.add(name, first_step, values)
