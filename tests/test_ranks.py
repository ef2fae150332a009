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
    entry = condensed(sample(MAX_RANKS_SAMPLED))
    assert entry.step_seconds == (1.235,) * MAX_RANKS_SAMPLED
    assert entry == replace(
        sample(MAX_RANKS_SAMPLED), step_seconds=entry.step_seconds, throttled={"thermal": (5,)}
    )


def test_a_large_run_keeps_the_ranks_that_stand_out_and_percentiles() -> None:
    entry = condensed(sample(1000))
    assert len(entry.ranks) <= MAX_RANKS_SAMPLED
    assert entry.ranks == tuple(sorted(set(entry.ranks)))
    assert {0, 1, 5, 700, 999} <= set(entry.ranks)
    assert entry.compute_seconds == tuple(rank / 1000 for rank in entry.ranks)
    assert entry.data_seconds[entry.ranks.index(700)] == 0.5
    assert entry.sm_clock_mhz[entry.ranks.index(5)] == 900.0
    assert entry.skipped == (3,) * len(entry.ranks)
    assert entry.throttled == {"thermal": (5,)}
    assert entry.peak_allocated_bytes == ()
    assert entry.compute_percentiles == (0.0, 0.1, 0.5, 0.899, 0.999)
    assert entry.data_percentiles == (0.0, 0.0, 0.0, 0.0, 0.5)
    assert entry.world_size == 1000


def test_numbers_that_were_not_measured_do_not_count() -> None:
    nothing = replace(sample(1000), compute_seconds=(None,) * 999 + (float("nan"),), data_seconds=())
    entry = condensed(nothing)
    assert entry.compute_percentiles == entry.data_percentiles == ()
    assert {0, 5} <= set(entry.ranks)


@pytest.mark.parametrize("world_size", [64, 65, 1024, 4096])
def test_a_journal_grows_by_the_second_and_not_by_the_rank(world_size: int) -> None:
    standing_out = StandingOut()
    for sample in SimulatedRanks(world_size, 1, slow="clocks", slow_rank=7).samples(3):
        assert len(codec.dumps(condensed(sample, standing_out))) < 6000


def test_a_slow_rank_stands_out_among_many_with_hiccups() -> None:
    """In each sample 30 of 1,000 other ranks take longer than the slow one."""
    standing_out = StandingOut()
    for second in range(20):
        slow = [0.02 if rank % 33 == second else 0.01 for rank in range(1000)]
        slow[500] = 0.012
        entry = condensed(replace(sample(1000), compute_seconds=tuple(slow)), standing_out)
    assert 500 in entry.ranks
    assert 500 not in condensed(replace(sample(1000), compute_seconds=tuple(slow))).ranks


def test_other_ranks_begin_anew() -> None:
    standing_out = StandingOut()
    for _ in range(20):
        condensed(sample(1000), standing_out)
    fewer = replace(sample(900), compute_seconds=tuple(1.0 - rank / 1000 for rank in range(900)))
    assert {0, 1, 2} <= set(condensed(fewer, standing_out).ranks)
