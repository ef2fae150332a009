"""What ranks tell rank 0: a row of numbers from each, some times a second and all at about the same point."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from amptui.ranks.agreement.orders import NEVER, OrderBoard

_NAN = float("nan")

_LAST = "last"

Floats = npt.NDArray[np.float64]

Table = Floats | list[list[float]]
"""[ranks, ROW_VALUES]."""


class RankNumbers(NamedTuple):
    """What a rank measured since its last row; NaN where it measured nothing."""

    steps: float = 0.0
    """How many steps the means are of."""
    last_step: float = 0.0
    """The last of them."""
    step_seconds: float = _NAN
    data_seconds: float = _NAN
    compute_seconds: float = _NAN
    grad_norm: float = _NAN
    skipped: float = 0.0
    """Steps that its scaler skipped so far."""
    overflowed: float = _NAN
    """Steps so far in which its own loss or gradients were not finite; NaN before one was looked at."""
    trouble_step: float = 0.0
    """The newest step that was looked at for that."""
    trouble_states: float = 0.0
    """What was found in it and in those before, for ``trouble_states.unpacked``."""
    loss_scale: float = _NAN
    """After ``last_step``."""
    peak_bytes: float = _NAN
    hashed_step: float = -1.0
    """After which the newest hash of the weights was computed; -1 before the first."""
    weights_hash: float = _NAN
    memory_used_bytes: float = _NAN
    """Of the rank's GPU, by NVML, as the next two."""
    sm_clock_mhz: float = _NAN
    clocks_event_reasons: float = 0.0
    """As NVML's mask."""


class RankRow(NamedTuple):
    """What a rank posts for rank 0, in float64."""

    number: float
    """Of the row, equal on all ranks."""
    step: float
    numbers: RankNumbers = RankNumbers()

    def values(self) -> list[float]:
        """The row as plain numbers."""
        return [*self[:-1], *self.numbers]

    @classmethod
    def of(cls, values: Sequence[float]) -> "RankRow":
        """Inverse of :meth:`values`."""
        own = len(cls._fields) - 1
        return cls._make([*values[:own], RankNumbers._make(values[own:])])


_COLUMNS = (*RankRow._fields[:-1], *RankNumbers._fields)

ROW_VALUES = len(_COLUMNS)


class RankRows(Sequence[RankRow]):
    """The rows of all ranks, in their order; a row is made when asked for: there may be thousands."""

    def __init__(self, table: Table) -> None:
        self._table = np.asarray(table, np.float64).reshape(-1, ROW_VALUES)

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> RankRow: ...
    @overload
    def __getitem__(self, index: slice) -> "RankRows": ...
    def __getitem__(self, index: int | slice) -> "RankRow | RankRows":
        rows = self._table[index]
        return RankRows(rows) if isinstance(index, slice) else RankRow.of(rows.tolist())

    def column(self, name: str) -> Floats:
        """[ranks]: one field of all rows, or of their numbers."""
        return self._table[:, _COLUMNS.index(name)]


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
        self._own_row: RankRow | None = None
        self._newest = _NOTHING
        """This rank's newest row, posted or not."""
        self._last: list[list[float]] = []
        """What it told at the end: that, and the numbers since."""
        self._taken_number = 0
        """The number of the newest rows that rank 0 has taken."""
        self._next_at = 0.0
        self._finished = False
        self._announcing = threading.Lock()
        """The thread may take rows while the training ends."""
        board.decide("sample", [0, 0])

    def put(self, step: int, numbers: RankNumbers) -> None:
        """The training's numbers at this point, which is after ``step``."""
        self.due = NEVER
        self._own_row = self._newest = RankRow(self._number, step, numbers)

    def follow(self, number: int, point: int) -> None:
        """Rank 0 has asked for row ``number`` at ``point``, or as soon as the training hears of it."""
        if number > self._number:
            self._number, self.due = number, point
        row, self._own_row = self._own_row, None
        if row is not None:
            self._board.post(f"row/{self._rank}", row.values())
            self._board.count("rows", 1)

    def announce(self, point: int) -> None:
        """Rank 0's: ask for the next rows at ``point`` if it is time, or take those that all have posted."""
        with self._announcing:
            if self._finished:
                return
            row, now = self._own_row, self._clock()
            if row is not None and self._board.count("rows") >= self._number * (self._ranks - 1):
                self._own_row = None
                rows, self._taken_number = [row.values(), *self._read("row")], self._number
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

    def _take_both(self, last_rows: list[Any]) -> None:
        """Take the last rows, and before them those that not all had posted when the training ended."""
        pending = [newest if newest[0] > self._taken_number else _NOTHING.values() for newest, _ in last_rows]
        if any(number for number, *_ in pending):
            self._report.take(RankRows(pending))
        self._report.take(RankRows([last for _, last in last_rows]))

    def _read(self, name: str) -> list[Any]:
        """What the other ranks have posted."""
        return self._board.read([f"{name}/{rank}" for rank in range(1, self._ranks)])
