"""Block medians: bounded in number, and with a mean that joining them leaves as it is."""

import math
from itertools import pairwise
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.estimate import BLOCK_STEPS, MOST_BLOCKS
from amptui.telemetry.blocks import StepBlocks

times = st.floats(1e-5, 10.0)


def blocks_of(*batches: list[float]) -> list[float]:
    blocks = StepBlocks()
    for batch in batches:
        blocks.add(batch)
    return blocks.medians()


def test_a_block_is_the_median_of_its_steps() -> None:
    outlier = [0.004] * (BLOCK_STEPS - 1) + [9.0]
    assert blocks_of(outlier, [0.002] * BLOCK_STEPS) == pytest.approx([0.004, 0.002])


def test_steps_that_fill_no_block_wait_for_more() -> None:
    blocks = StepBlocks()
    blocks.add([0.004] * (BLOCK_STEPS - 1))
    assert blocks.medians() == []
    blocks.add([0.004])
    assert blocks.medians() == pytest.approx([0.004])


@given(st.lists(times, max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_it_does_not_matter_in_which_portions_steps_come(seconds: list[float], cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(seconds)]
    portions = [seconds[start:stop] for start, stop in pairwise(edges)]
    assert blocks_of(*portions) == blocks_of(seconds)


@given(st.lists(times, min_size=1, max_size=40), st.integers(1, 100))
def test_however_long_the_run_blocks_are_bounded_and_their_mean_stays(
    seconds: list[float], repetitions: int
) -> None:
    run = seconds * repetitions
    found = blocks_of(run)
    assert len(found) < 2 * MOST_BLOCKS
    medians = [median(run[i : i + BLOCK_STEPS]) for i in range(0, len(run) - BLOCK_STEPS + 1, BLOCK_STEPS)]
    assert len(found) >= min(len(medians), MOST_BLOCKS)
    # Those at the end wait for a whole block.
    a_block = 1
    while len(medians) // a_block >= 2 * MOST_BLOCKS:
        a_block *= 2
    counted = medians[: len(medians) // a_block * a_block]
    assert len(found) == len(counted) // a_block
    if counted:
        expected = fmean(map(math.log, counted))
        assert fmean(map(math.log, found)) == pytest.approx(expected, abs=1e-9)
