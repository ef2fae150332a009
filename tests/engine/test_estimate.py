"""Intervals hold what they promise, also for noise that remembers; and the laws of a ratio."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.estimate import MIN_PAIRS, paired_ratio

times = st.floats(1e-5, 10.0)


def test_more_blocks_narrow_the_interval() -> None:
    rng = np.random.default_rng(3)
    widths = []
    for pairs in (4, 16, 64):
        noise = rng.normal(0, 0.05, (2, pairs))
        ratio = paired_ratio((3 * np.exp(noise[0])).tolist(), (2 * np.exp(noise[1])).tolist())
        assert ratio is not None
        widths.append(ratio.relative_width or math.inf)
    assert widths[0] > widths[1] > widths[2]


@given(st.lists(st.tuples(times, times), min_size=MIN_PAIRS, max_size=8))
def test_the_other_way_round_it_is_the_inverse(pairs: list[tuple[float, float]]) -> None:
    a, b = [one for one, _ in pairs], [other for _, other in pairs]
    forth, back = paired_ratio(a, b), paired_ratio(b, a)
    assert forth is not None
    assert back is not None
    assert forth.low is not None
    assert back.high is not None
    assert forth.value == pytest.approx(1 / back.value)
    assert forth.low == pytest.approx(1 / back.high)


@pytest.mark.parametrize("pairs", range(1, MIN_PAIRS))
def test_too_few_pairs_give_a_ratio_and_no_interval(pairs: int) -> None:
    ratio = paired_ratio([3.0] * pairs, [2.0] * pairs)
    assert ratio is not None
    assert ratio.value == pytest.approx(1.5)
    assert (ratio.low, ratio.high, ratio.relative_width) == (None, None, None)


def test_without_blocks_there_is_nothing_to_say() -> None:
    assert paired_ratio([], []) is None


def test_steps_that_never_vary_are_known_exactly() -> None:
    ratio = paired_ratio([3.0] * 4, [2.0] * 4)
    assert ratio is not None
    assert (ratio.low, ratio.high) == (ratio.value, ratio.value)
