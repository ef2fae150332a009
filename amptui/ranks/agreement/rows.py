"""What ranks tell rank 0: a row of numbers from each, some times a second and all at about the same point."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amptui.ranks.agreement.orders import NEVER
from amptui.ranks.numbers.meter import RankNumbers, RankReport

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Board


def rows_seconds(ranks: int) -> float:
    """The time from one row of each rank to the next: rank 0 reads 4,000 a second at most."""
    return max(0.25, ranks / 1000)


class PostedRows:
    """One rank's part. The training compares a number with ``due`` at each point and calls :meth:`put`.

    A thread beside it calls :meth:`announce` at rank 0, whose ``report`` takes the rows of all ranks, and
    elsewhere :meth:`follow`. No rank waits for a row.
    """

    def __init__(self, board: "Board", rank: int, ranks: int, report: RankReport | None) -> None:
        self._board = board
        self._rank = rank
        self._ranks = ranks
        self._report = report
        self.due = NEVER
        """The point after which the training measures."""
        self._number = 0
        """That of the row that is asked for, or the newest; equal on all ranks."""
        self._own_row: RankNumbers | None = None
        self._newest = 0, RankNumbers()
        """The newest row that this rank has measured, and its number."""
        self._taken_number = 0
        """The number of the newest rows that rank 0 has taken."""
        self._next_at = 0.0
        self._finished = False
        self._announcing = threading.Lock()
        """The thread may take rows while the training ends."""
        board.decide("sample", [0, 0])

    def put(self, numbers: RankNumbers) -> None:
        """The training's numbers at this point."""
        self.due = NEVER
        self._own_row, self._newest = numbers, (self._number, numbers)

    def follow(self, number: int, point: int) -> None:
        """Rank 0 has asked for row ``number`` at ``point``, or as soon as the training hears of it."""
        if number > self._number:
            self._number, self.due = number, point
        row, self._own_row = self._own_row, None
        if row is not None:
            self._board.post(f"row/{self._rank}", row)
            self._board.count("rows", 1)

    def announce(self, point: int) -> None:
        """Rank 0's: ask for the next rows at ``point`` if it is time, or take those that all have posted."""
        with self._announcing:
            if self._finished:
                return
            number, now = self._number, time.monotonic()
            self.follow(number, point)
            if self._taken_number == number and now >= self._next_at:
                self._next_at = now + rows_seconds(self._ranks)
                self._board.post("sample", [number + 1, point])
                self.follow(number + 1, point)
            elif self._taken_number < number and self._board.count("rows") >= number * self._ranks:
                assert self._report is not None, "rank 0 has one"
                self._taken_number = number
                self._report.take(self._board.read([f"row/{rank}" for rank in range(self._ranks)]))

    def finish(self, numbers: RankNumbers, gather: Callable[[Any], Sequence[Any]]) -> None:
        """The training's last numbers, which ``gather`` gets of all ranks: here they come to the end."""
        with self._announcing:
            self._finished, self.due = True, NEVER
        last_rows = gather([*self._newest, numbers])
        if self._report is None:
            return
        # Those that not all had posted before come first.
        pending = [row if number > self._taken_number else None for number, row, _ in last_rows]
        if any(pending):
            self._report.take([row or RankNumbers() for row in pending])
        self._report.take([row for _, _, row in last_rows])
        self._report.close()
