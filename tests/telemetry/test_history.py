"""Histories against a naive model: every value counted once, every spike kept, however it was batched."""

import math
import tracemalloc
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.history import Track
from amptui.telemetry.view import Series

BUCKETS, RECENT = 8, 12

VALUES = st.lists(st.none() | st.floats() | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=150)


@st.composite
def batched_values(draw: st.DrawFn) -> tuple[list[float | None], list[list[float | None]]]:
    """Values, and the same values cut into batches, some of them empty."""
    values = draw(VALUES)
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=6)))
    edges = [0, *cuts, len(values)]
    return values, [values[a:b] for a, b in pairwise(edges)]


def is_nonfinite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def assert_bucket(series: Series, index: int, values: Sequence[float | None]) -> None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    assert series.nonfinite[index] == sum(map(is_nonfinite, values))
    if not finite:
        assert np.isnan([series.minimum[index], series.maximum[index], series.mean[index]]).all()
        return
    assert series.minimum[index] == min(finite)
    assert series.maximum[index] == max(finite)
    exact = sum(map(Fraction, finite), Fraction(0)) / len(finite)
    largest = max(abs(Fraction(value)) for value in finite)
    assert abs(Fraction(float(series.mean[index])) - exact) <= largest * Fraction(1e-13) + Fraction(1e-290)


def assert_recent(series: Series, values: Sequence[float | None]) -> None:
    expected = [value if value is not None and math.isfinite(value) else math.nan for value in values]
    np.testing.assert_array_equal(series.recent, expected)
    assert series.recent_nonfinite.tolist() == [is_nonfinite(value) for value in values]


def assert_same(one: Series, other: Series) -> None:
    for name in Series.__slots__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def filled(batches: Sequence[Sequence[float | None]], **options: int) -> Track:
    track = Track.empty(BUCKETS, RECENT, **options)
    for batch in batches:
        track.extend(batch)
    return track


@given(sequence=batched_values())
def test_the_overview_and_the_ring_equal_a_naive_model(
    sequence: tuple[list[float | None], list[list[float | None]]],
) -> None:
    values, batches = sequence
    series = filled(batches).snapshot()
    span = 1
    while len(values) > BUCKETS * span:
        span *= 2
    assert (series.count, series.bucket_steps) == (len(values), span)
    assert len(series.minimum) == math.ceil(len(values) / span)
    for index in range(len(series.minimum)):
        assert_bucket(series, index, values[index * span : (index + 1) * span])
    assert_recent(series, values[-RECENT:])
    finite = [place for place, value in enumerate(values) if value is not None and math.isfinite(value)]
    after = range(finite[-1] if finite else 0, len(values))
    assert series.nonfinite_since == next((place + 1 for place in after if is_nonfinite(values[place])), None)


@given(before=VALUES, gap=st.integers(0, 100), after=VALUES)
def test_skipping_steps_is_the_same_as_values_that_were_not_measured(
    before: list[float | None], gap: int, after: list[float | None]
) -> None:
    skipping, spelled = filled([before]), filled([[*before, *[None] * gap]])
    skipping.skip(gap)
    for track in (skipping, spelled):
        track.extend(after)
    assert_same(skipping.snapshot(), spelled.snapshot())


@given(values=VALUES, back=st.integers(0, 40), redone=VALUES)
def test_a_resumed_run_replaces_the_steps_that_it_does_again(
    values: list[float | None], back: int, redone: list[float | None]
) -> None:
    track = filled([values], first_step=1001)
    remaining = values[: max(0, len(values) - back)]
    boundary = len(remaining) // track.snapshot().bucket_steps if remaining != values else None
    old_span = track.snapshot().bucket_steps
    track.rewind(1001 + len(remaining))
    assert track.next_step == 1001 + len(remaining)
    track.extend(redone)
    series, model = track.snapshot(), [*remaining, *redone]
    assert series.count == len(model)
    span = series.bucket_steps
    for index in range(len(series.minimum)):
        # Only the bucket that the cut went through may still hold something of the forgotten steps.
        if boundary is None or len(remaining) % old_span == 0 or boundary * old_span // span != index:
            assert_bucket(series, index, model[index * span : (index + 1) * span])
    report = len(series.recent)
    assert report >= min(RECENT, len(redone))
    assert_recent(series, model[len(model) - report :])


def test_a_gap_of_any_length_takes_no_time_and_no_memory() -> None:
    track = filled([[1.0]])
    track.skip(10**15)
    track.extend([2.0])
    series = track.snapshot()
    assert series.last_step == 10**15 + 2
    assert np.nanmin(series.minimum) == 1.0
    assert np.nanmax(series.maximum) == 2.0
    assert series.recent[-1] == 2.0


@pytest.mark.ci
def test_ten_million_steps_stay_small_and_keep_a_spike_of_one_step() -> None:
    batch: list[float | None] = [0.5] * 100_000
    with_spike = [*batch[:-1], 99.0]
    tracemalloc.start()
    track = Track.empty()
    for number in range(100):
        track.extend(with_spike if number == 41 else batch)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    series = track.snapshot()
    assert held_bytes <= 150 * 1024
    assert (series.count, series.bucket_steps) == (10_000_000, 8192)
    (spike,) = np.flatnonzero(series.maximum == 99.0)
    assert spike == (42 * 100_000 - 1) // 8192
    assert (np.delete(series.maximum, spike) == 0.5).all()


def test_snapshots_are_copies() -> None:
    track = filled([[1.0, None, math.nan]])
    series = track.snapshot()
    assert track.snapshot() is series
    track.extend([5.0] * 20)
    assert series.count == 3
    assert series.maximum[0] == 1.0
