"""The rows of numbers that ranks post for rank 0, some times a second, all at about the same point."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from amptui.engine.distributed.orders import NEVER, OrderBoard
from amptui.engine.distributed.rank_rows import RankNumbers, RankRow, RankRows

_SLEEP_SECONDS = 0.005

_LAST = "last"

LAST_ROWS_SECONDS = 5.0
"""How long rank 0 waits for the last rows of a training: all end it at the same point."""


def rows_seconds(ranks: int) -> float:
    """The time from one row of each rank to the next: rank 0 reads 4,000 a second at most."""
    return max(0.25, ranks / 1000)


class PostedRows:
    """One rank's part. The training compares a number with ``due`` at each point and calls :meth:`put`.

    A thread beside it calls :meth:`announce` at rank 0, with ``received`` for the rows of all ranks, and
    elsewhere :meth:`follow`. No rank waits for a row.
    """

    def __init__(
        self,
        board: OrderBoard,
        rank: int,
        ranks: int,
        received: Callable[[RankRows], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._rank = rank
        self._ranks = ranks
        self._received = received
        self._clock = clock
        self.due = NEVER
        """The point after which the training measures."""
        self._number = 0
        self._own: RankRow | None = None
        self._next_at = 0.0
        self._finished = False
        self._taking = threading.Lock()
        """The thread may take rows while the training takes the last."""
        board.decide("sample", [0, 0])

    def put(self, step: int, numbers: RankNumbers) -> None:
        """The training's numbers at this point, which is after ``step``."""
        self.due = NEVER
        self._own = RankRow(self._number, step, numbers)

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
        if self._finished:
            return
        row, now = self._own, self._clock()
        if row is not None and self._board.count("rows") >= self._number * (self._ranks - 1):
            self._own = None
            self._take(row, "row")
        elif row is None and self.due == NEVER and now >= self._next_at:
            self._next_at = now + rows_seconds(self._ranks)
            self._number += 1
            self._board.post("sample", [self._number, point])
            self.due = point

    def finish(self, step: int, numbers: RankNumbers) -> None:
        """The training's last numbers; at rank 0 the rows of those that come here in time are taken."""
        self._finished, self.due = True, NEVER
        row = RankRow(self._number + 1, step, numbers)
        with suppress(RuntimeError):  # the board's: nobody is told
            if self._rank:
                self._board.post(f"{_LAST}/{self._rank}", row.values())
                self._board.count(_LAST, 1)
                return
            limit = time.monotonic() + LAST_ROWS_SECONDS
            while time.monotonic() < limit:
                if self._board.count(_LAST) >= self._ranks - 1:
                    self._take(row, _LAST)
                    return
                time.sleep(_SLEEP_SECONDS)

    def _take(self, own: RankRow, name: str) -> None:
        others = self._board.read([f"{name}/{rank}" for rank in range(1, self._ranks)])
        with self._taking:
            if name == _LAST or not self._finished:
                self._received(RankRows([own.values(), *others]))
