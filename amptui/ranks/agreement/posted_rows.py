"""The rows of numbers that ranks post for rank 0, some times a second, all at about the same point."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from amptui.ranks.agreement.orders import NEVER, OrderBoard
from amptui.ranks.agreement.rows import RankNumbers, RankRow, RankRows

_LAST = "last"

_NOTHING = RankRow(0, 0)
"""Instead of a row that a rank has not measured."""


def rows_seconds(ranks: int) -> float:
    """The time from one row of each rank to the next: rank 0 reads 4,000 a second at most."""
    return max(0.25, ranks / 1000)


class RowReport:
    """What rank 0 makes of rows, nothing here; called by one thread at a time."""

    def take(self, rows: RankRows) -> None:
        """Take the rows of all ranks, in their order."""

    def close(self) -> None:
        """The last rows were taken, or will never come."""


class PostedRows:
    """One rank's part. The training compares a number with ``due`` at each point and calls :meth:`put`.

    A thread beside it calls :meth:`announce` at rank 0, whose ``report`` takes the rows of all ranks, and
    elsewhere :meth:`follow`. No rank waits for a row.
    """

    def __init__(
        self,
        board: OrderBoard,
        rank: int,
        ranks: int,
        report: RowReport,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._rank = rank
        self._ranks = ranks
        self._report = report
        self._clock = clock
        self.due = NEVER
        """The point after which the training measures."""
        self._number = 0
        self._own: RankRow | None = None
        self._newest = _NOTHING
        """This rank's newest row, posted or not."""
        self._last: list[list[float]] = []
        """What it told at the end: that, and the numbers since."""
        self._taken = 0
        """The number of the newest rows that rank 0 has taken."""
        self._next_at = 0.0
        self._finished = False
        self._announcing = threading.Lock()
        """The thread may take rows while the training ends."""
        board.decide("sample", [0, 0])

    def put(self, step: int, numbers: RankNumbers) -> None:
        """The training's numbers at this point, which is after ``step``."""
        self.due = NEVER
        self._own = self._newest = RankRow(self._number, step, numbers)

    def follow(self, number: int, point: int) -> None:
        """Rank 0 has asked for row ``number`` at ``point``, or as soon as the training hears of it."""
        if number > self._number:
            self._number, self.due = number, point
        row, self._own = self._own, None
        if row is not None:
            self._board.post(f"row/{self._rank}", row.values())
            self._board.count("rows", 1)

    def announce(self, point: int) -> None:
        """Rank 0's: ask for the next rows at ``point`` if it is time, or take those that all have posted."""
        with self._announcing:
            if self._finished:
                return
            row, now = self._own, self._clock()
            if row is not None and self._board.count("rows") >= self._number * (self._ranks - 1):
                self._own = None
                rows, self._taken = [row.values(), *self._read("row")], self._number
                self._report.take(RankRows(rows))
            elif row is None and self.due == NEVER and now >= self._next_at:
                self._next_at = now + rows_seconds(self._ranks)
                self._number += 1
                self._board.post("sample", [self._number, point])
                self.due = point

    def finish(self, step: int, numbers: RankNumbers) -> None:
        """The training's last numbers; no rank waits for them: :meth:`take_last` follows where all part."""
        with self._announcing:
            self._finished, self.due = True, NEVER
        # The newest may be on its way: only rank 0 knows whether it has taken those of all.
        self._last = [self._newest.values(), RankRow(self._number + 1, step, numbers).values()]
        if self._rank:
            with suppress(RuntimeError):  # the board's: nobody is told
                self._board.post(f"{_LAST}/{self._rank}", self._last)
                self._board.count(_LAST, 1)

    def take_last(self) -> None:
        """Rank 0's, once it has waited for all others to come here: take what they have told at the end."""
        with suppress(RuntimeError):  # the board's: nobody is told
            if not self._rank and self._board.count(_LAST) >= self._ranks - 1:
                self._take_both([self._last, *self._read(_LAST)])
        self._report.close()

    def _take_both(self, told: list[Any]) -> None:
        """Take the last rows, and before them those that not all had posted when the training ended."""
        pending = [newest if newest[0] > self._taken else _NOTHING.values() for newest, _ in told]
        if any(number for number, *_ in pending):
            self._report.take(RankRows(pending))
        self._report.take(RankRows([last for _, last in told]))

    def _read(self, name: str) -> list[Any]:
        """What the other ranks have posted."""
        return self._board.read([f"{name}/{rank}" for rank in range(1, self._ranks)])
