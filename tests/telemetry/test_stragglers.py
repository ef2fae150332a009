"""A slow rank among noisy ones is found with its reason, and none is found among equal ones."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from amptui.records.ranks import RanksSampled, StandingOut, condensed
from amptui.telemetry.stragglers import MIN_SAMPLES, RankVerdict, find_straggler
from tests.telemetry.simulated_ranks import STEP_SECONDS, SimulatedRanks, Slow

SEEDS = range(20)

MANY = [pytest.param(64, marks=pytest.mark.ci), pytest.param(1024, marks=pytest.mark.nightly)]


def window(world_size: int, seed: int, seconds: int = 20, **options: Any) -> list[RanksSampled]:
    standing_out = StandingOut()
    simulated = SimulatedRanks(world_size, seed, **options)
    return [condensed(sample, standing_out) for sample in simulated.samples(seconds)]


def verdicts(samples: list[RanksSampled]) -> list[RankVerdict | None]:
    """The verdict after each sample, of the 20 newest."""
    verdicts_so_far: list[RankVerdict | None] = [None]
    for end in range(1, len(samples) + 1):
        verdicts_so_far.append(find_straggler(samples[max(0, end - 20) : end], verdicts_so_far[-1]))
    return verdicts_so_far


@pytest.mark.parametrize("world_size", [2, 8, *MANY])
@pytest.mark.parametrize("slow", [name for name in get_args(Slow) if name])
def test_a_slow_rank_is_found_20_times_of_20(slow: Slow, world_size: int) -> None:
    for seed in SEEDS:
        rank = seed * 7 % world_size
        verdict = find_straggler(window(world_size, seed, slow=slow, slow_rank=rank))
        assert verdict is not None
        assert (verdict.rank, verdict.cause) == (rank, slow)
        assert verdict.seconds is not None
        assert verdict.others_seconds is not None
        assert verdict.seconds - verdict.others_seconds == pytest.approx(0.25 * STEP_SECONDS, rel=0.25)


@pytest.mark.parametrize("noise", [0.01, 0.1])
@pytest.mark.parametrize(
    "world_size", [*(pytest.param(size, marks=pytest.mark.ci) for size in (2, 8)), *MANY]
)
def test_equal_ranks_have_no_verdict_20_times_of_20(world_size: int, noise: float) -> None:
    for seed in SEEDS:
        assert set(verdicts(window(world_size, seed, 30, noise=noise))) == {None}


@pytest.mark.parametrize("fsdp", [False, True])
def test_a_clock_that_is_held_down_is_told_with_its_reason(fsdp: bool) -> None:
    verdict = find_straggler(window(8, 1, slow="clocks", slow_rank=3, fsdp=fsdp))
    assert verdict is not None
    assert (verdict.rank, verdict.cause, verdict.reasons) == (3, "clocks", ("thermal (hw)",))
    assert verdict.clock_mhz == pytest.approx(1485, rel=0.02)
    assert verdict.others_clock_mhz == pytest.approx(1980, rel=0.02)
    assert (verdict.seconds is None) == fsdp


def test_without_local_compute_only_data_and_clocks_tell() -> None:
    waits = find_straggler(window(8, 1, slow="input", slow_rank=3, fsdp=True))
    assert waits is not None
    assert (waits.rank, waits.cause) == (3, "input")
    assert find_straggler(window(8, 1, slow="compute", slow_rank=3, fsdp=True)) is None


def test_clocks_that_are_held_down_on_all_ranks_make_none_slow() -> None:
    samples = window(8, 1, fsdp=True)
    held = [replace(sample, throttled={"power cap": sample.ranks}) for sample in samples]
    assert find_straggler(held) is None


def test_a_lower_clock_without_a_reason_is_no_verdict() -> None:
    samples = window(8, 1, slow="clocks", slow_rank=3, fsdp=True)
    assert find_straggler([replace(sample, throttled={}) for sample in samples]) is None


def test_a_few_samples_are_not_enough() -> None:
    samples = window(8, 1, slow="compute", slow_rank=3)
    assert find_straggler(samples[: MIN_SAMPLES - 1]) is None
    assert find_straggler(samples[:MIN_SAMPLES]) is not None


def test_ranks_that_all_differ_have_no_straggler() -> None:
    """Every rank is 3% slower than the one before: the last is no exception."""
    samples = [
        replace(sample, compute_seconds=tuple(0.01 * (1 + 0.03 * rank) for rank in sample.ranks))
        for sample in window(8, 1)
    ]
    assert find_straggler(samples) is None


def test_what_costs_less_than_a_twentieth_of_a_step_is_no_verdict_unless_it_was_one() -> None:
    little = window(8, 1, spread=0.0, slow="compute", slow_rank=3, excess=0.04)
    much = find_straggler(window(8, 1, spread=0.0, slow="compute", slow_rank=3))
    assert find_straggler(little) is None
    stays = find_straggler(little, much)
    assert stays is not None
    assert stays.rank == 3
    assert find_straggler(window(8, 1, spread=0.0), stays) is None


def test_ranks_without_numbers_are_not_judged() -> None:
    samples = window(4, 1, slow="compute", slow_rank=3)
    silent = [replace(sample, compute_seconds=(*sample.compute_seconds[:3], None)) for sample in samples]
    assert find_straggler(silent) is None
    empty = [replace(sample, compute_seconds=(), data_seconds=()) for sample in samples]
    assert find_straggler(empty) is None
