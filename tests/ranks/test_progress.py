"""Who makes the others wait, and when ranks are given up: by beats at made-up times."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from amptui.ranks.progress import (
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


BUSY: tuple[RankPhase, ...] = ("compiling", "saving")

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


BEHIND = WORKS._replace(place=at(6), phase="after_step", step=2)

WAITS, LOADS = WORKS._replace(waits=True), WORKS._replace(phase="loading")

PREPARES = (Heartbeat(place=at(3), waits=True), Heartbeat(place=at(2)))

IN_GROUPS = [WORKS._replace(place=place) for place in (at(7, a=5), at(7, a=4, b=9), at(7, b=8), at(7, c=1))]
"""0 waits for 1 in their group, which waits for 2 in theirs; 3 has nothing to do with them."""


@pytest.mark.parametrize(
    ("seconds", "ranks", "options", "awaited", "hung"),
    [
        # Whoever has begun fewer collectives makes the others wait, and is given up later.
        (9, [WORKS, BEHIND, WORKS], {}, None, None),
        (30, [WORKS, BEHIND, WORKS], {}, [1], None),
        (60, [BEHIND, WORKS, WORKS], {}, [0], [0]),
        (30, [BEHIND, WORKS, BEHIND], {}, [0, 2], None),
        (30, IN_GROUPS, {}, [2], None),
        (599, [WORKS, BEHIND], {"hang_seconds": 600.0}, [1], None),
        (601, [WORKS, BEHIND], {"hang_seconds": 600.0}, [1], [1]),
        (601, [WORKS, BEHIND], {"hang_seconds": 0.0}, [1], None),
        # At the same place nobody is to blame, but for one that others wait for.
        (30, [WAITS, WORKS, WAITS], {}, [1], None),
        (60, [WORKS, WORKS], {}, None, []),
        (60, [LOADS, LOADS], {}, None, None),
        # A process that does not answer is named whatever its place.
        (60, [WORKS, WORKS._replace(place=at(9))], {"silent": [1]}, [1], [1]),
        (60, PREPARES, {"silent": [1]}, [1], [1]),
        # Preparations, compiling and what only one rank does may take longer; who has left is not watched.
        (2000, PREPARES, {}, [1], None),
        *[(BUSY_SECONDS - 1, [WORKS, BEHIND._replace(phase=busy)], {}, [1], None) for busy in BUSY],
        *[(BUSY_SECONDS, [WORKS, BEHIND._replace(phase=busy)], {}, [1], [1]) for busy in BUSY],
        (60, [WORKS, WORKS._replace(place=at(1), left=True)], {"silent": [1]}, None, None),
    ],
)
def test_who_makes_the_others_wait_and_who_is_given_up(
    seconds: float,
    ranks: Sequence[Heartbeat],
    options: dict[str, Any],
    awaited: list[int] | None,
    hung: list[int] | None,
) -> None:
    progress = table(*ranks, seconds=int(seconds), **options)
    found = progress.awaited(seconds + 1.0), progress.hung(seconds + 1.0)
    assert [who if who is None else list(who.ranks) for who in found] == [awaited, hung]


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
