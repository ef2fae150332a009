"""Steps are left out until their times stand still: at least ten, at most fifty."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.warm_up import MAX_STEPS, MIN_STEPS, WarmUp


def left_out(step_seconds: list[float | None]) -> int:
    """How many of these steps settle."""
    settling, count = WarmUp(), 0
    for seconds in step_seconds:
        count += settling.begin_step()
        settling.add([seconds])
    return count


FALLING: list[float | None] = [0.002 * (1 + 2 * 0.9**i) for i in range(200)]


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        ([0.002] * 100, MIN_STEPS, MIN_STEPS),
        ([3.0, *[0.002] * 99], MIN_STEPS, MIN_STEPS),
        (FALLING, 35, MAX_STEPS - 1),
        ([0.002 * 1.05**i for i in range(200)], MAX_STEPS, MAX_STEPS),
        ([None] * 200, MAX_STEPS, MAX_STEPS),
    ],
    ids=["steady", "a slow first step", "getting faster", "never steady", "not measured"],
)
def test_steps_warm_up_until_their_times_stand_still(
    seconds: list[float | None], least: int, most: int
) -> None:
    assert least <= left_out(seconds) <= most


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.3])
def test_noise_is_distinguished_from_a_trend(spread: float) -> None:
    rng = np.random.default_rng(5)
    counts = [left_out((0.002 * np.exp(rng.normal(0, spread, 100))).tolist()) for _ in range(50)]
    assert np.mean(counts) < MIN_STEPS + 3


@given(st.lists(st.none() | st.floats(1e-6, 10), max_size=120))
def test_never_fewer_nor_more(seconds: list[float | None]) -> None:
    count = left_out(seconds)
    assert min(len(seconds), MIN_STEPS) <= count <= MAX_STEPS
