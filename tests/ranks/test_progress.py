"""Who makes the others wait, and when ranks are given up: by beats at made-up times."""

from collections.abc import Iterable
from typing import Any

import pytest

from amptui.ranks.ends.progress import (
    AWAITED_SECONDS,
    BUSY_SECONDS,
    Awaited,
    AwaitedNews,
    Heartbeat,
    ProgressTable,
)
from amptui.records.ranks import RankPhase, RanksAwaited


def at(place: int, **groups: int) -> dict[str, int]:
    """A place: so many meetings, and so many collectives in each of ``groups``."""
    return {"": place, **groups}


WORKS = Heartbeat(place=at(7), step=3, phase="training")


def table(
    *ranks: Heartbeat, hang_seconds: float = 60.0, silent: Iterable[int] = (), seconds: int = 30
) -> ProgressTable:
    """Ranks that have stood still for so long, looked at once a second; ``silent`` ones do not answer."""
    progress = ProgressTable(len(ranks), hang_seconds)
    progress.take(0.0, [Heartbeat()] * len(ranks))
    for now in range(1, seconds + 2):
        progress.take(
            now,
            [beat._replace(number=1 if rank in silent else now) for rank, beat in enumerate(ranks)],
        )
    return progress


def after(seconds: int, *ranks: Heartbeat, **options: Any) -> tuple[Awaited | None, Awaited | None]:
    """Who is awaited and who is given up when nobody has moved for so long."""
    progress = table(*ranks, seconds=seconds, **options)
    return progress.awaited(seconds + 1.0), progress.hung(seconds + 1.0)


def test_the_rank_that_has_begun_fewer_collectives_makes_the_others_wait() -> None:
    behind = WORKS._replace(place=at(6), phase="after_step", step=2)
    assert after(9, WORKS, behind, WORKS) == (None, None)
    assert after(30, WORKS, behind, WORKS) == (Awaited((1,), "after_step", 2, 30.0), None)
    assert after(60, behind, WORKS, WORKS)[1] == Awaited((0,), "after_step", 2, 60.0)
    assert after(30, behind, WORKS, behind)[0] == Awaited((0, 2), "after_step", 2, 30.0)


def test_where_groups_differ_the_rank_is_named_that_is_ahead_in_none() -> None:
    """0 waits for 1 in their group, which waits for 2 in theirs; 3 has nothing to do with them."""
    ranks = (at(7, a=5), at(7, a=4, b=9), at(7, b=8), at(7, c=1))
    beats = [WORKS._replace(place=place) for place in ranks]
    assert after(30, *beats)[0] == Awaited((2,), "training", 3, 30.0)


def test_of_ranks_at_the_same_place_those_that_wait_are_awaited_by_nobody() -> None:
    waits = WORKS._replace(waits=True)
    assert after(30, waits, WORKS, waits)[0] == Awaited((1,), "training", 3, 30.0)
    assert after(30, waits, waits) == (None, None)


def test_a_step_that_takes_long_on_all_ranks_is_nobodys_fault() -> None:
    assert after(30, WORKS, WORKS)[0] is None
    assert after(60, WORKS, WORKS) == (None, Awaited((), "training", 3, 60.0))
    waits = WORKS._replace(waits=True, phase="loading")
    assert after(60, waits, waits) == (None, Awaited((), "loading", 3, 60.0))
    loads = WORKS._replace(phase="loading")
    assert after(60, loads, loads) == (None, None)


def test_a_process_that_does_not_answer_is_named_whatever_its_place() -> None:
    ahead = WORKS._replace(place=at(9))
    assert after(30, WORKS, ahead, silent=[1])[0] == Awaited((1,), "silent", 3, 30.0)
    assert after(60, WORKS, ahead, silent=[1])[1] == Awaited((1,), "silent", 3, 60.0)


@pytest.mark.parametrize("hang_seconds", [0.0, 600.0])
def test_a_rank_that_is_slow_for_minutes_is_told_and_not_given_up(hang_seconds: float) -> None:
    behind = WORKS._replace(place=at(6), phase="after_step")
    awaited, hung = after(599, WORKS, behind, hang_seconds=hang_seconds)
    assert (awaited, hung) == (Awaited((1,), "after_step", 3, 599.0), None)
    assert (after(601, WORKS, behind, hang_seconds=hang_seconds)[1] is None) == (hang_seconds == 0)


@pytest.mark.parametrize(
    ("phase", "limit"),
    [
        ("loading", 60),
        ("validating", 60),
        *[(name, BUSY_SECONDS) for name in ("compiling", "alone", "saving")],
    ],
)
def test_a_rank_may_compile_or_save_for_longer(phase: RankPhase, limit: float) -> None:
    behind = WORKS._replace(place=at(6), phase=phase)
    assert after(int(limit) - 1, WORKS, behind)[1] is None
    assert after(int(limit), WORKS, behind)[1] == Awaited((1,), phase, 3, limit)


def test_preparations_may_take_for_ever_but_not_a_process_that_does_not_answer() -> None:
    waits, loads = Heartbeat(place=at(3), waits=True), Heartbeat(place=at(2))
    assert after(2000, waits, loads) == (Awaited((1,), "preparing", 0, 2000.0), None)
    assert after(60, waits, loads, silent=[1])[1] == Awaited((1,), "silent", 0, 60.0)


def test_a_rank_that_is_done_with_the_others_is_not_watched() -> None:
    left = WORKS._replace(place=at(1), left=True)
    assert after(60, WORKS, left, silent=[1]) == (None, None)


def test_time_in_which_this_process_did_not_run_is_nobodys_fault() -> None:
    """A machine that was suspended, say: others have not told anything meanwhile either."""
    progress = table(WORKS, WORKS, seconds=5)
    progress.take(1000.0, [WORKS._replace(number=6)] * 2)
    assert progress.still_seconds(1000.0) < AWAITED_SECONDS
    assert progress.hung(1000.0) is None


def test_whoever_comes_further_ends_the_wait() -> None:
    behind = WORKS._replace(place=at(6))
    progress = table(WORKS, behind)
    progress.take(32.0, [WORKS._replace(number=32), behind._replace(number=32, batches=1)])
    assert (progress.awaited(32.0), progress.still_seconds(32.0)) == (None, 0.0)


def test_a_wait_is_told_again_as_it_grows_and_when_it_is_over() -> None:
    news, records = AwaitedNews(), list[RanksAwaited | None]()
    for seconds in (10.0, 11.0, 13.0, 14.0):
        records.append(news.judge(Awaited((1,), "loading", 3, seconds), seconds))
    records.append(news.judge(None, 1.0))
    records.append(news.judge(None, 2.0))
    assert [record and (record.seconds, record.over) for record in records] == [
        (10.0, False),
        None,
        (13.0, False),
        None,
        (14.0, True),
        None,
    ]
