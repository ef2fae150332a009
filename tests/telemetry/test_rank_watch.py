"""The rows of a run's ranks, and what was wrong with them: stragglers, waits, differences."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from amptui.diagnosis.event_words import event_text
from amptui.records.ranks import RankLost, RanksDisagree, RanksSampled, RankValue, StandingOut, condensed
from amptui.records.run import Record
from amptui.telemetry.rank_watch import RanksView
from amptui.telemetry.session import Session
from amptui.telemetry.stragglers import (
    WINDOW_SAMPLES,
    RankVerdict,
    SlowRankNews,
    StragglerNews,
    find_straggler,
)
from tests.builders import assert_holds, fold, view_of
from tests.telemetry.record_samples import resumed, run, steps
from tests.telemetry.simulated_ranks import STEP_SECONDS, SimulatedRanks, Slow

SIMULATED = SimulatedRanks(4, 1, slow="compute", slow_rank=2)
SAMPLES = tuple(SIMULATED.samples(20))
STARTED = (run(world_size=4, parallel="ddp"), SIMULATED.started())


def ranks_of(*records: Record) -> RanksView:
    ranks = view_of(*records).ranks
    assert ranks is not None
    return ranks


def test_a_row_has_medians_and_the_newest_numbers() -> None:
    ranks = ranks_of(*STARTED, *SAMPLES)
    assert [row.rank for row in ranks.rows] == [0, 1, 2, 3]
    row, newest = ranks.rows[1], SAMPLES[-1]
    assert row.compute_seconds == pytest.approx(np.median([each.compute_seconds[1] or 0 for each in SAMPLES]))
    assert_holds(row, {"place.host": "node-1", "place.device": "cuda:1", "skipped": newest.skipped[1]})
    assert row.sm_clock_mhz == newest.sm_clock_mhz[1]
    seconds = ranks.rows[2].compute_seconds
    assert ranks.percentiles["compute"][-1] == pytest.approx(seconds, rel=1e-3)
    beside_it = {"straggler.rank": 2, "straggler.seconds": seconds}  # on the screen
    assert_holds(ranks, {"step": newest.step, **beside_it})


def test_a_disagreement_lasts_until_the_ranks_agree_again() -> None:
    differs = RanksDisagree(
        time=130.0, step=9, what="loss scale", count=1, most=2.0, others=(RankValue(rank=3, value=1.0),)
    )
    weights = replace(differs, what="weights", step=10)
    assert ranks_of(*STARTED, differs, weights).disagreements == (differs, weights)
    again = replace(differs, count=0, others=(), step=11)
    assert ranks_of(*STARTED, differs, weights, again).disagreements == (weights,)


def test_a_new_process_forgets_what_was_wrong_but_not_where_the_ranks_are() -> None:
    lost = RankLost(time=130.0, step=9, rank=2, host="node-1", cause="killed")
    assert ranks_of(*STARTED, *SAMPLES, lost).lost == (lost,)
    ranks = ranks_of(*STARTED, *SAMPLES, lost, resumed(5))
    assert (ranks.lost, ranks.rows, ranks.straggler) == ((), (), None)
    again = ranks_of(*STARTED, *SAMPLES, lost, resumed(5), SAMPLES[0])
    assert [row.place is not None for row in again.rows] == [True] * 4


def test_a_run_resumed_on_more_ranks_has_as_many() -> None:
    assert ranks_of(*STARTED, *SAMPLES, resumed(5, world_size=8)).world_size == 8
    assert view_of(*STARTED, *SAMPLES, resumed(5, world_size=1)).ranks is None
    assert view_of(run(), *steps(1, 20)).ranks is None, "of a single process"


def told_of_slow_ranks(session: Session) -> list[tuple[int, str] | None]:
    """The rank and the cause of each such event, the oldest first; None: none is slow any more."""
    news = [event.about for event in reversed(session.view().events) if isinstance(event.about, SlowRankNews)]
    verdicts = [change.verdict for change in news]
    return [None if verdict is None else (verdict.rank, verdict.cause) for verdict in verdicts]


@pytest.mark.parametrize("cause", ["input", "compute", "clocks"])
def test_a_slow_rank_is_one_event_and_another_when_none_is_slow_any_more(cause: Slow) -> None:
    session = fold(STARTED)
    session.fold(SimulatedRanks(4, 2, slow=cause, slow_rank=3).samples(60))
    assert told_of_slow_ranks(session) == [(3, cause)]
    (event,) = [event for event in session.view().events if isinstance(event.about, SlowRankNews)]
    assert isinstance(event.about, SlowRankNews)
    assert event.about.place == SIMULATED.started().ranks[3]
    assert (event.severity, session.view().warnings) == ("warning", 1)
    session.fold(SimulatedRanks(4, 3).samples(60, time=160.0))
    assert told_of_slow_ranks(session) == [(3, cause), None]
    assert session.view().events[0].severity == "info"
    assert event_text(session.view().events[0]) == "the ranks are equally fast again"
    session.fold(SimulatedRanks(4, 4, slow=cause, slow_rank=3).samples(60, time=220.0))
    assert told_of_slow_ranks(session) == [(3, cause), None, (3, cause)]


def test_a_rank_that_is_slow_now_and_then_is_told_once() -> None:
    news = StragglerNews()
    slow = RankVerdict(rank=2, cause="compute", seconds=2.0, others_seconds=1.0)
    held = replace(slow, cause="clocks")
    other = replace(slow, rank=1)
    verdicts = (None, slow, slow, None, slow, held, slow, other, None, held, other)
    told = [place for place, verdict in enumerate(verdicts) if news.judge(verdict)]
    assert told == [1, 5, 7], "each rank with each cause once"
    assert [news.judge(None) for _ in range(WINDOW_SAMPLES + 5)].count(True) == 1
    assert news.judge(slow)


# ------------------------------------------------------------------- the slow rank among noisy ones


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
        verdict: Any = find_straggler(window(world_size, seed, slow=slow, slow_rank=rank))
        assert (verdict.rank, verdict.cause) == (rank, slow)
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
    verdict: Any = find_straggler(window(8, 1, slow="clocks", slow_rank=3, fsdp=fsdp))
    assert (verdict.rank, verdict.cause, verdict.reasons) == (3, "clocks", ("thermal (hw)",))
    assert verdict.clock_mhz == pytest.approx(1485, rel=0.02)
    assert verdict.others_clock_mhz == pytest.approx(1980, rel=0.02)
    assert (verdict.seconds is None) == fsdp


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
    stays: Any = find_straggler(little, much)
    assert stays.rank == 3
    assert find_straggler(window(8, 1, spread=0.0), stays) is None
