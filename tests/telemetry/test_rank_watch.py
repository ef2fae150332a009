"""The rows of a run's ranks, and what was wrong with them."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from amptui.diagnosis.event_words import event_text
from amptui.records.ranks import RankLost, RanksDisagree, RanksSampled, RankValue
from amptui.records.run import Record
from amptui.telemetry.rank_watch import RanksView
from amptui.telemetry.session import Session
from amptui.telemetry.stragglers import WINDOW_SAMPLES, RankVerdict, SlowRankNews, StragglerNews
from tests.builders import assert_holds, fold, view_of
from tests.telemetry.record_samples import resumed, run, steps
from tests.telemetry.simulated_ranks import SimulatedRanks, Slow

SIMULATED = SimulatedRanks(4, 1, slow="compute", slow_rank=2)
SAMPLES = tuple(SIMULATED.samples(20))
STARTED = (run(world_size=4, parallel="ddp"), SIMULATED.started())


def ranks_of(*records: Record) -> RanksView:
    ranks = view_of(*records).ranks
    assert ranks is not None
    return ranks


def column(samples: Iterable[RanksSampled], rank: int) -> list[float]:
    return [value for sample in samples if (value := sample.compute_seconds[rank]) is not None]


def test_ranks_are_known_before_their_first_sample() -> None:
    ranks = ranks_of(*STARTED)
    assert (ranks.world_size, ranks.rows, ranks.step, ranks.straggler) == (4, (), None, None)


def test_a_row_has_medians_and_the_newest_numbers() -> None:
    ranks = ranks_of(*STARTED, *SAMPLES)
    assert [row.rank for row in ranks.rows] == [0, 1, 2, 3]
    row, newest = ranks.rows[1], SAMPLES[-1]
    assert row.compute_seconds == pytest.approx(np.median(column(SAMPLES, 1)))
    assert_holds(row, {"place.host": "node-1", "place.device": "cuda:1", "skipped": newest.skipped[1]})
    assert row.sm_clock_mhz == newest.sm_clock_mhz[1]
    seconds = ranks.rows[2].compute_seconds
    assert ranks.percentiles["compute"][-1] == pytest.approx(seconds, rel=1e-3)
    beside_it = {"straggler.rank": 2, "straggler.seconds": seconds}  # on the screen
    assert_holds(ranks, {"step": newest.step, **beside_it})


def test_the_percentiles_of_many_ranks_are_those_told() -> None:
    percentiles = (0.1, 0.2, 0.3, 0.4, 0.5)
    sample = replace(SAMPLES[0], world_size=1000, compute_percentiles=percentiles)
    assert ranks_of(*STARTED, sample).percentiles == {"compute": percentiles}
    assert ranks_of(*STARTED, sample).world_size == 1000


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


def test_equal_ranks_and_a_new_process_are_no_event() -> None:
    session = fold([*STARTED, *SimulatedRanks(4, 5).samples(60)])
    assert told_of_slow_ranks(session) == []
    session.fold([*SAMPLES, SIMULATED.started(), *SimulatedRanks(4, 5).samples(60)])
    assert told_of_slow_ranks(session) == [(2, "compute")]
