"""What ranks tell rank 0: a row of numbers from each, some times a second and all at about the same point."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amptui.ranks.agreement.orders import NEVER
from amptui.ranks.numbers.meter import RankNumbers, RankReport, RankRows

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Board

_LAST = "last"

_NOTHING = (0.0, *RankNumbers())
"""Instead of a row that a rank has not measured."""


def rows_seconds(ranks: int) -> float:
    """The time from one row of each rank to the next: rank 0 reads 4,000 a second at most."""
    return max(0.25, ranks / 1000)


class PostedRows:
    """One rank's part. The training compares a number with ``due`` at each point and calls :meth:`put`.

    A thread beside it calls :meth:`announce` at rank 0, whose ``report`` takes the rows of all ranks, and
    elsewhere :meth:`follow`. No rank waits for a row.
    """

    def __init__(
        self,
        board: "Board",
        rank: int,
        ranks: int,
        report: RankReport | None,
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
        self._own_row: tuple[float, ...] | None = None
        """Its number, which is equal on all ranks, and the rank's numbers."""
        self._newest: tuple[float, ...] = _NOTHING
        """This rank's newest row, posted or not."""
        self._last: list[tuple[float, ...]] = []
        """What it told at the end: that, and the numbers since."""
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
        self._own_row = self._newest = (self._number, *numbers)

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
            row, now = self._own_row, self._clock()
            if row is not None and self._board.count("rows") >= self._number * (self._ranks - 1):
                assert self._report is not None, "rank 0 has one"
                self._own_row = None
                rows, self._taken_number = [row, *self._read("row")], self._number
                self._report.take(RankRows.of_posts(rows))
            elif row is None and self.due == NEVER and now >= self._next_at:
                self._next_at = now + rows_seconds(self._ranks)
                self._number += 1
                self._board.post("sample", [self._number, point])
                self.due = point

    def finish(self, numbers: RankNumbers) -> None:
        """The training's last numbers; no rank waits for them: :meth:`take_last` follows where all part."""
        with self._announcing:
            self._finished, self.due = True, NEVER
        # The newest may be on its way: only rank 0 knows whether it has taken those of all.
        self._last = [self._newest, (self._number + 1, *numbers)]
        if self._rank:
            with suppress(RuntimeError):  # the board's: nobody is told
                self._board.post(f"{_LAST}/{self._rank}", self._last)
                self._board.count(_LAST, 1)

    def take_last(self) -> None:
        """Rank 0's, once it has waited for all others to come here: take what they have told at the end."""
        if self._report is None:
            return
        with suppress(RuntimeError):  # the board's: nobody is told
            if self._board.count(_LAST) >= self._ranks - 1:
                last_posts = [self._last, *self._read(_LAST)]
                # Those that not all had posted when the training ended come first.
                pending = [newest if newest[0] > self._taken_number else _NOTHING for newest, _ in last_posts]
                if any(number for number, *_ in pending):
                    self._report.take(RankRows.of_posts(pending))
                self._report.take(RankRows.of_posts([last for _, last in last_posts]))
        self._report.close()

    def _read(self, name: str) -> list[Any]:
        """What the other ranks have posted."""
        return self._board.read([f"{name}/{rank}" for rank in range(1, self._ranks)])
