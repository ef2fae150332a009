"""What of the ranks' numbers is kept in a journal."""

from dataclasses import replace

import pytest

from amptui.records import codec
from amptui.records.ranks import MAX_RANKS_SAMPLED, RanksSampled, StandingOut, condensed
from tests.telemetry.simulated_ranks import SimulatedRanks


def sample(world_size: int) -> RanksSampled:
    """Rank r computes for r ms and more; rank 700 waits for data, and rank 5's clock is held down."""
    ranks = tuple(range(world_size))
    return RanksSampled(
        time=1.0,
        step=9,
        steps=9,
        world_size=world_size,
        ranks=ranks,
        step_seconds=(1.23456,) * world_size,
        compute_seconds=tuple(rank / 1000 for rank in ranks),
        data_seconds=tuple(0.5 if rank == 700 else 0.0 for rank in ranks),
        skipped=(3,) * world_size,
        sm_clock_mhz=tuple(900.0 if rank == 5 else None if rank == 6 else 1980.0 for rank in ranks),
        throttled={"thermal": (5,), "power cap": (300,)},
    )


def test_a_small_run_keeps_all_ranks() -> None:
    kept = condensed(sample(MAX_RANKS_SAMPLED))
    assert kept.step_seconds == (1.235,) * MAX_RANKS_SAMPLED
    assert kept == replace(
        sample(MAX_RANKS_SAMPLED), step_seconds=kept.step_seconds, throttled={"thermal": (5,)}
    )


def test_a_large_run_keeps_the_ranks_that_stand_out_and_percentiles() -> None:
    kept = condensed(sample(1000))
    assert len(kept.ranks) <= MAX_RANKS_SAMPLED
    assert kept.ranks == tuple(sorted(set(kept.ranks)))
    assert {0, 1, 5, 700, 999} <= set(kept.ranks)
    assert kept.compute_seconds == tuple(rank / 1000 for rank in kept.ranks)
    assert kept.data_seconds[kept.ranks.index(700)] == 0.5
    assert kept.sm_clock_mhz[kept.ranks.index(5)] == 900.0
    assert kept.skipped == (3,) * len(kept.ranks)
    assert kept.throttled == {"thermal": (5,)}
    assert kept.peak_allocated_bytes == ()
    assert kept.compute_percentiles == (0.0, 0.1, 0.5, 0.899, 0.999)
    assert kept.data_percentiles == (0.0, 0.0, 0.0, 0.0, 0.5)
    assert kept.world_size == 1000


def test_numbers_that_were_not_measured_do_not_count() -> None:
    nothing = replace(sample(1000), compute_seconds=(None,) * 999 + (float("nan"),), data_seconds=())
    kept = condensed(nothing)
    assert kept.compute_percentiles == kept.data_percentiles == ()
    assert {0, 5} <= set(kept.ranks)


@pytest.mark.parametrize("world_size", [64, 65, 1024, 4096])
def test_a_journal_grows_by_the_second_and_not_by_the_rank(world_size: int) -> None:
    standing_out = StandingOut()
    for each in SimulatedRanks(world_size, 1, slow="clocks", slow_rank=7).samples(3):
        assert len(codec.dumps(condensed(each, standing_out))) < 6000


def test_a_slow_rank_stands_out_among_many_with_hiccups() -> None:
    """In each sample 30 of 1,000 other ranks take longer than the slow one."""
    standing_out = StandingOut()
    for second in range(20):
        slow = [0.02 if rank % 33 == second else 0.01 for rank in range(1000)]
        slow[500] = 0.012
        kept = condensed(replace(sample(1000), compute_seconds=tuple(slow)), standing_out)
    assert 500 in kept.ranks
    assert 500 not in condensed(replace(sample(1000), compute_seconds=tuple(slow))).ranks


def test_other_ranks_begin_anew() -> None:
    standing_out = StandingOut()
    for _ in range(20):
        condensed(sample(1000), standing_out)
    fewer = replace(sample(900), compute_seconds=tuple(1.0 - rank / 1000 for rank in range(900)))
    assert {0, 1, 2} <= set(condensed(fewer, standing_out).ranks)
