"""A history cut to columns: no spike and no NaN is lost."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.reports.export.step_axis import MAX_COLUMNS, columns
from amptui.telemetry.history import Track


@given(
    values=st.lists(st.none() | st.floats(), min_size=1, max_size=40),
    copies=st.integers(1, 150),
    buckets=st.sampled_from([4, 64, 2048]),
)
def test_extremes_and_nonfinite_values_stay(values: list[float | None], copies: int, buckets: int) -> None:
    track = Track.empty(buckets=buckets, first_step=5)
    track.extend(values * copies)
    series = track.snapshot()
    found = columns(series)
    assert len(found.mean) <= MAX_COLUMNS
    finite = [value for value in values if value is not None and math.isfinite(value)]
    assert np.isfinite(found.mean).any() == bool(finite)
    if finite:
        assert np.nanmin(found.minimum) == min(finite)
        assert np.nanmax(found.maximum) == max(finite)
    bad = sum(value is not None and not math.isfinite(value) for value in values)
    assert found.nonfinite.sum() == bad * copies
    assert found.first_step == 5
    assert len(found.mean) * found.width_steps >= series.count


def test_a_short_run_has_a_column_per_step() -> None:
    track = Track.empty()
    track.extend([1.0, None, 3.0])
    found = columns(track.snapshot())
    assert found.width_steps == 1
    assert found.middles().tolist() == [1.5, 2.5, 3.5]
    assert found.mean.tolist() == pytest.approx([1.0, math.nan, 3.0], nan_ok=True)
