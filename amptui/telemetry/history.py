"""The curves of a run of any length, in bounded memory: recent values exactly, all in buckets."""

import array as packed
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import is_
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from amptui.records.steps import Column, Steps, are_finite
from amptui.telemetry.view import EMPTY_SERIES, Counts, Floats, Series

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
            last_finite = np.flatnonzero(finite)[-1] if finite.any() else -1
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


@dataclass(slots=True, eq=False)
class RateTrack:
    """Samples per second of each step, whose means are samples by seconds at every resolution.

    Minimum, maximum and recent values are rates of single steps.
    """

    _rates: Track
    _samples: Track
    _seconds: Track
    """Like the samples, only of steps with a finite rate: all three have the same buckets."""
    _snapshot: Series | None = field(default=None, init=False)

    @classmethod
    def empty(cls, buckets: int = 2048, recent: int = 2048, *, first_step: int = 1) -> "RateTrack":
        """As :meth:`Track.empty`."""
        return cls(*(Track.empty(buckets, recent, first_step=first_step) for _ in range(3)))

    def extend(
        self, rates: Sequence[float | None], samples: Sequence[int], seconds: Sequence[float | None]
    ) -> None:
        """Add the next steps; a rate of None means that there is none."""
        self._snapshot = None
        self._rates.extend(rates)
        if are_finite(rates):
            self._samples.extend(samples)
            self._seconds.extend(seconds)
            return
        validity = [rate is not None and math.isfinite(rate) for rate in rates]
        self._samples.extend([n if is_valid else None for n, is_valid in zip(samples, validity, strict=True)])
        self._seconds.extend([s if is_valid else None for s, is_valid in zip(seconds, validity, strict=True)])

    @property
    def _all(self) -> tuple[Track, Track, Track]:
        return self._rates, self._samples, self._seconds

    def settle(self) -> None:
        """As :meth:`Track.settle`."""
        for track in self._all:
            track.settle()

    def skip(self, steps: int) -> None:
        """Add steps without a rate."""
        self._snapshot = None
        for track in self._all:
            track.skip(steps)

    def rewind(self, next_step: int) -> None:
        """As :meth:`Track.rewind`."""
        self._snapshot = None
        for track in self._all:
            track.rewind(next_step)

    def snapshot(self) -> Series:
        """The history so far, with the seconds as its weights."""
        if self._snapshot is None:
            rates, samples, seconds = self._rates.snapshot(), self._samples.sums(), self._seconds.sums()
            mean = np.divide(samples, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
            mean = np.minimum(np.maximum(mean, rates.minimum), rates.maximum)
            recent_seconds = self._seconds.snapshot().recent
            self._snapshot = replace(rates, mean=mean, weights=seconds, recent_weights=recent_seconds)
        return self._snapshot


@dataclass(slots=True, eq=False)
class Tracks:
    """Loss, samples per second, loss scale, skips and headroom of every step."""

    _started: bool = False
    _first_step: int = 1
    _loss: Track = field(default_factory=Track.empty)
    _rate: RateTrack = field(default_factory=RateTrack.empty)
    _scale: Track = field(default_factory=Track.empty)
    _skips: Track = field(default_factory=Track.empty)
    _headrooms: Track = field(default_factory=Track.empty)

    @property
    def _all(self) -> tuple[Track | RateTrack, ...]:
        return self._loss, self._rate, self._scale, self._skips, self._headrooms

    @property
    def last_step(self) -> int:
        """The newest step; 0 before the first."""
        return self._loss.next_step - 1 if self._started else 0

    def series(self) -> tuple[Series, Series, Series, Series, Series]:
        """The loss, the samples per second, the loss scale, the skips and the headroom of each step.

        Of several steps the rate is their samples by their seconds. A skip is 1 for a skipped step, 0 for an
        applied one. The headroom is in doublings, for steps whose gradients were measured.
        """
        loss, rate, scale, skips, headrooms = (
            track.snapshot() if self._started else EMPTY_SERIES for track in self._all
        )
        return loss, rate, scale, skips, headrooms

    def rewind(self, next_step: int) -> None:
        """Forget the steps from ``next_step`` on: they are repeated."""
        if next_step <= self._first_step:
            self._started = False
        for track in self._all:
            track.rewind(next_step)

    def add(self, steps: Steps, headrooms: Column | None = None) -> None:
        """Add steps, in place of those from the first of them on.

        Missing steps before them count as not measured, as does the headroom without ``headrooms``.
        """
        first = steps.first_step
        if not self._started or first < self._first_step:
            self._loss, self._scale, self._skips, self._headrooms = (
                Track.empty(first_step=first) for _ in range(4)
            )
            self._rate = RateTrack.empty(first_step=first)
            self._first_step, self._started = first, True
        gap = first - self._loss.next_step
        for track in self._all:
            track.rewind(first)
            track.skip(max(0, gap))
        self._loss.extend(steps.loss)
        self._rate.extend(steps.rates(), steps.samples, steps.step_seconds)
        self._scale.extend(steps.loss_scale)
        self._skips.extend(steps.skips)
        if headrooms is None:
            self._headrooms.skip(steps.count)
        else:
            self._headrooms.extend(headrooms)

    def settle(self) -> None:
        """As :meth:`Track.settle`."""
        for track in self._all:
            track.settle()
