"""The vertical axis: it holds what it shows, whatever the values are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.export.axis import Kind, axis, nice

VALUES = st.lists(st.floats(), min_size=1).map(np.array)


@given(values=VALUES, kind=st.sampled_from([None, "linear", "log10", "log2"]))
def test_values_are_between_the_ends_of_their_axis(values: np.ndarray, kind: Kind | None) -> None:
    found = axis(values, kind)
    finite = values[np.isfinite(values)]
    showable = finite if kind in (None, "linear") else finite[finite > 0]
    assert (found is None) == (len(showable) == 0)
    if found is not None:
        heights = found.heights(values)
        assert found.low < found.high
        assert np.isfinite(found.heights(showable)).all()
        shown = heights[np.isfinite(heights)]
        assert ((shown >= -1e-9) & (shown <= 1 + 1e-9)).all()
        assert 2 <= len(found.ticks) <= 8


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 10.0], (0, 2, 4, 6, 8, 10)),
        ([0.11, 0.49], (0.1, 0.2, 0.3, 0.4, 0.5)),
        ([3.0, 3.0], (1.0, 2.0, 3.0, 4.0, 5.0)),
        ([0.0, 0.0], (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6)),
        ([-3.0, 400.0], (-100, 0, 100, 200, 300, 400)),
        ([0.02, 4.0], (0.01, 0.1, 1.0, 10.0)),
    ],
)
def test_labels_are_round_and_few(values: list[float], ticks: tuple[float, ...]) -> None:
    found = axis(np.array(values))
    assert found is not None
    assert found.ticks == pytest.approx(ticks)


def test_a_wide_range_of_positive_values_has_a_logarithmic_axis() -> None:
    kinds = [axis(np.array(values)) for values in ([0.01, 2.0], [1.0, 50.0], [-1.0, 5000.0])]
    assert [found.kind for found in kinds if found is not None] == ["log10", "linear", "linear"]


def test_loss_scales_have_labels_at_powers_of_two() -> None:
    found = axis(np.array([8192.0, 262144.0]), "log2")
    assert found is not None
    assert found.ticks == (8192, 16384, 32768, 65536, 131072, 262144)


@given(st.floats(1e-300, 1e300))
def test_a_nice_interval_is_slightly_larger_than_the_given_one(interval: float) -> None:
    found = nice(interval)
    assert interval * (1 - 1e-6) <= found <= 2.5 * interval * (1 + 1e-6)
    assert round(found / 10 ** math.floor(math.log10(found * (1 + 1e-12))), 6) in (1, 2, 5)
