"""What difference could have been shown: as often as promised, in simulated comparisons."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.reports.compare.power import POWER, detectable_difference
from amptui.reports.compare.welch import mean_difference


def spread_out(size: int, deviation: float) -> list[float]:
    """So many values with just that standard deviation."""
    values = np.arange(size, dtype=np.float64)
    scaled: list[float] = ((values - values.mean()) / values.std(ddof=1) * deviation).tolist()
    return scaled


@pytest.mark.parametrize(
    ("sizes", "deviations"),
    [
        ((2, 2), (1, 1)),
        ((3, 3), (1, 1)),
        ((3, 3), (1, 4)),
        ((2, 10), (1, 1)),
        ((3, 10), (2, 1)),
        ((9, 6), (1, 3)),
    ],
)
def test_a_detectable_difference_is_shown_as_often_as_promised(
    sizes: tuple[int, int], deviations: tuple[float, float]
) -> None:
    shift = detectable_difference(*map(spread_out, sizes, deviations))
    assert shift is not None
    draws = np.random.default_rng(3)
    trials, shown = 1500, 0
    for _ in range(trials):
        first, second = (draws.normal(0, deviations[i], sizes[i]) for i in (0, 1))
        found = mean_difference(first.tolist(), (second + shift).tolist())
        assert found is not None
        shown += not found.low <= 0 <= found.high
    # Four standard errors of a fraction of 1,500 are 4.1%.
    assert shown / trials == pytest.approx(POWER, abs=0.045)


def test_more_seeds_see_more_and_more_confidence_less() -> None:
    seen = [detectable_difference(*[spread_out(size, 0.1)] * 2) or 0 for size in (2, 3, 5, 10)]
    assert seen == sorted(seen, reverse=True)
    assert seen[1] == pytest.approx(0.393, rel=0.01)
    sure = detectable_difference(*[spread_out(5, 0.1)] * 2, confidence=0.99)
    assert sure is not None
    assert sure > seen[2]


def test_without_a_spread_nothing_is_told() -> None:
    assert detectable_difference([1.0], [1.0, 2.0]) is None
    assert detectable_difference([1.0, 1.0], [2.0, 2.0]) is None
    assert detectable_difference([1.0, 1.0], [2.0, 2.1]) is not None


values = st.lists(st.floats(-1e307, 1e307), min_size=2, max_size=6)


@given(first=values, second=values)
def test_no_finite_values_make_it_fail(first: list[float], second: list[float]) -> None:
    found = detectable_difference(first, second)
    assert found is None or found > 0
