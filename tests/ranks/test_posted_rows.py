"""Rows of numbers that ranks post: none is lost where a training ends, whatever threads came to."""

from collections.abc import Callable

import pytest
from torch._C._distributed_c10d import HashStore

from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.posted_rows import PostedRows
from amptui.ranks.agreement.rows import RankNumbers
from tests.ranks.agreeing import KeptRows

STEPS = 5


class TwoRanks:
    """Both ranks' rows, whose threads come to them as a test says; a step a point."""

    def __init__(self) -> None:
        self.report = KeptRows()
        self.board = Board(HashStore(), "test")
        self.leader, self.other = (PostedRows(self.board, rank, 2, self.report) for rank in range(2))
        self._measured = [0, 0]

    def train(self, step: int, *, finishes: bool = False) -> None:
        """The point after ``step`` on both ranks."""
        for rank, rows in enumerate((self.leader, self.other)):
            if finishes or step >= rows.due:
                more, self._measured[rank] = step - self._measured[rank], step
                (rows.finish if finishes else rows.put)(step, RankNumbers(steps=more, last_step=step))

    def lead(self) -> None:
        """Rank 0's thread comes."""
        self.leader.announce(2)

    def follow(self) -> None:
        """Rank 1's thread comes."""
        self.other.follow(*self.board.read(["sample"])[0])


Threads = Callable[[TwoRanks], None]


def neither(_ranks: TwoRanks) -> None:
    """Both threads are late."""


@pytest.mark.parametrize("before", [TwoRanks.lead, neither], ids=["asked", "not asked"])
@pytest.mark.parametrize("then", [TwoRanks.follow, neither], ids=["heard", "not heard"])
@pytest.mark.parametrize("later", [TwoRanks.follow, neither], ids=["posted", "not posted"])
@pytest.mark.parametrize("last", [TwoRanks.lead, neither], ids=["taken", "not taken"])
def test_each_step_of_each_rank_is_told_once(
    before: Threads, then: Threads, later: Threads, last: Threads
) -> None:
    """Also those that were measured for a row which not all had posted when the training ended."""
    ranks = TwoRanks()
    threads = {1: (before, then), 3: (later, last)}
    for step in range(1, STEPS):
        for come in threads.get(step, ()):
            come(ranks)
        ranks.train(step)
    ranks.train(STEPS, finishes=True)
    for come in (last, later):  # a thread may come once more
        come(ranks)
    ranks.leader.take_last()
    assert [sum(rows.column("steps")[rank] for rows in ranks.report.rows) for rank in range(2)] == [STEPS] * 2
    assert ranks.report.is_closed


def test_where_a_rank_has_told_nothing_the_report_is_closed_without_it() -> None:
    ranks = TwoRanks()
    ranks.leader.finish(1, RankNumbers(steps=1, last_step=1))
    ranks.leader.take_last()
    assert ranks.report.rows == []
    assert ranks.report.is_closed
