"""Intervals hold what they promise, also for noise that remembers; and the laws of a ratio."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.estimate import MIN_PAIRS, paired_ratio

times = st.floats(1e-5, 10.0)


def ratio_of(a: list[float], b: list[float]) -> Any:
    """A ratio that is there."""
    return paired_ratio(a, b)


def test_more_blocks_narrow_the_interval() -> None:
    rng = np.random.default_rng(3)
    widths = []
    for pairs in (4, 16, 64):
        noise = rng.normal(0, 0.05, (2, pairs))
        ratio = ratio_of((3 * np.exp(noise[0])).tolist(), (2 * np.exp(noise[1])).tolist())
        widths.append(ratio.relative_width)
    assert widths[0] > widths[1] > widths[2]


@given(st.lists(st.tuples(times, times), min_size=MIN_PAIRS, max_size=8))
def test_the_other_way_round_it_is_the_inverse(pairs: list[tuple[float, float]]) -> None:
    a, b = [one for one, _ in pairs], [other for _, other in pairs]
    forth, back = ratio_of(a, b), ratio_of(b, a)
    assert (forth.value, forth.low) == pytest.approx((1 / back.value, 1 / back.high))


def test_too_few_pairs_give_a_ratio_and_no_interval_and_steps_that_never_vary_are_known_exactly() -> None:
    assert paired_ratio([], []) is None
    for pairs in range(1, MIN_PAIRS + 1):
        ratio = ratio_of([3.0] * pairs, [2.0] * pairs)
        assert ratio.value == pytest.approx(1.5)
        interval = (None, None, None) if pairs < MIN_PAIRS else pytest.approx((1.5, 1.5, 0.0), abs=1e-9)
        assert (ratio.low, ratio.high, ratio.relative_width) == interval
