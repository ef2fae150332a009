"""Blocks in turns: who runs next, which steps count, when enough is known, and how sure."""

import math
from typing import Any

import numpy as np
import pytest

from amptui.monitor.ab_test import BLOCK_STEPS, MAX_ROUNDS, MIN_PAIRS, MIN_ROUNDS, ABTest, paired_ratio
from tests.builders import changed, make_step

STEP = make_step(1, precision="fp32", step_seconds=0.003, samples=8)
SECONDS = {"fp32": 0.003, "bf16": 0.002, "fp16": 0.004}


def played(ab_test: ABTest, *, noise: float = 0.0, steps: int = 10_000, skip_each: int = 0) -> None:
    """The steps that it asks for until it is over, in their usual times; fp16 skips one of ``skip_each``."""
    rng = np.random.default_rng(0)
    for number in range(1, steps + 1):
        name = ab_test.precision
        skipped = bool(skip_each) and name == "fp16" and number % skip_each == 0
        seconds = 1e-6 if skipped else SECONDS[name] * math.exp(rng.normal(0, noise))
        ab_test.add(changed(STEP, step=number, precision=name, step_seconds=seconds, skipped=skipped), 0)
        if ab_test.over:
            return


def test_it_ends_when_the_interval_is_narrow_and_goes_back_to_what_was_chosen() -> None:
    ab_test = ABTest(("fp32", "bf16"), chosen="bf16", block_steps=5)
    played(ab_test, noise=0.005)
    result = ab_test.record(1)
    assert (result.over, result.reason, result.rounds) == (True, "narrow", MIN_ROUNDS)
    assert ab_test.precision == "bf16"
    row: Any = result.rows[1]
    assert row.speedup == pytest.approx(1.5, rel=0.02)
    assert row.speedup_low <= row.speedup <= row.speedup_high
    assert result.rows[0].speedup is None
    assert row.samples_per_second == pytest.approx(8 / 0.002, rel=0.02)


def test_skipped_steps_are_left_out_of_a_block() -> None:
    ab_test = ABTest(("fp32", "fp16"), chosen="fp32", block_steps=4, max_rounds=2)
    played(ab_test, skip_each=3)
    result = ab_test.record(1)
    assert result.reason == "limit"
    baseline, fp16 = result.rows
    assert (fp16.blocks, fp16.steps) == (2, 8)
    assert fp16.skipped > 0
    assert fp16.step_seconds == pytest.approx(SECONDS["fp16"])
    assert fp16.samples_per_second == pytest.approx(8 / SECONDS["fp16"])
    assert fp16.speedup == pytest.approx(0.75)
    assert baseline.steps == 8


def test_a_precision_that_skips_every_step_ends_its_blocks_and_has_no_speed() -> None:
    ab_test = ABTest(("fp32", "fp16", "bf16"), chosen="fp32", block_steps=4)
    played(ab_test, skip_each=1)
    result = ab_test.record(1)
    _, fp16, bf16 = result.rows
    assert (result.reason, result.rounds) == ("narrow", MIN_ROUNDS)
    assert (fp16.blocks, fp16.steps, fp16.skipped) == (0, 0, 4 * MIN_ROUNDS)
    assert (fp16.step_seconds, fp16.samples_per_second, fp16.speedup) == (None, None, None)
    assert bf16.speedup == pytest.approx(1.5)


INTERVALS = 1000


@pytest.mark.ci
@pytest.mark.parametrize(
    ("spread", "memory", "drift", "block_spread"),
    [
        (0.03, 0.0, 0.0, 0.0),
        (0.06, 0.0, 0.0, 0.0),
        (0.03, 0.8, 0.0, 0.0),
        (0.05, 0.99, 0.0, 0.0),
        (0.01, 0.0, 0.0, 0.01),
        (0.03, 0.8, 0.3, 0.0),
    ],
)
def test_wherever_it_stops_the_interval_covers_the_truth_as_often_as_it_says(
    spread: float, memory: float, drift: float, block_spread: float
) -> None:
    """Steps whose noise has a memory or none, a drift over all of them, noise that a block has in common."""
    rng = np.random.default_rng(7)
    steps = 2 * BLOCK_STEPS * MAX_ROUNDS
    weights = memory ** np.arange(steps)
    weights = weights[weights > 1e-4]
    covered = 0
    for _ in range(INTERVALS):
        shocks = rng.normal(0, spread * math.sqrt(1 - memory**2), steps + len(weights))
        noise = np.convolve(shocks, weights, mode="valid")[:steps] + np.linspace(0, drift, steps)
        noise += np.repeat(rng.normal(0, block_spread, steps // BLOCK_STEPS), BLOCK_STEPS)
        ab_test = ABTest(("fp32", "bf16"), chosen="fp32")
        for deviation in noise.tolist():
            name = ab_test.precision
            ab_test.add(changed(STEP, precision=name, step_seconds=SECONDS[name] * math.exp(deviation)), 0)
            if ab_test.over:
                break
        row: Any = ab_test.record(1).rows[1]
        covered += row.speedup_low <= SECONDS["fp32"] / SECONDS["bf16"] <= row.speedup_high
    # Were it right 95% of the time, fewer than 925 of 1,000 would cover less than once in a thousand tests.
    assert covered / INTERVALS >= 0.925


def test_stopped_it_says_what_it_knows() -> None:
    ab_test = ABTest(("fp32", "bf16"), chosen="fp32", block_steps=5)
    played(ab_test, steps=10)
    ab_test.stop()
    ab_test.stop()
    result = ab_test.record(10)
    assert (result.reason, result.rounds) == ("stopped", 1)
    assert result.rows[1].speedup == pytest.approx(1.5)
    assert result.rows[1].speedup_low is None
    assert not ab_test.add(STEP, 0)


def test_too_few_pairs_give_a_ratio_and_no_interval_and_steps_that_never_vary_are_known_exactly() -> None:
    assert paired_ratio([], []) is None
    for pairs in range(1, MIN_PAIRS + 1):
        ratio: Any = paired_ratio([3.0] * pairs, [2.0] * pairs)
        assert ratio.value == pytest.approx(1.5)
        interval = (None, None, None) if pairs < MIN_PAIRS else pytest.approx((1.5, 1.5, 0.0), abs=1e-9)
        assert (ratio.low, ratio.high, ratio.relative_width) == interval
