"""Ranks that agree, in threads that share a store and pass their boundaries together."""

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from torch._C._distributed_c10d import HashStore

from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.numbers.meter import RankRows
from amptui.ranks.world import World
from tests.tiny import Log

PATIENCE_SECONDS = 60.0


def in_threads(works: Iterable[Callable[[], object]], together: threading.Barrier) -> None:
    """Do all ``works``, each in a thread of its own; the error of one ends the waits at ``together``."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)


class Others:
    """The other ranks, which never end."""

    def check_others(self) -> None: ...

    def explain_lost(self, error: Exception) -> Exception:
        return error

    def waiting(self, *, idle: bool = False) -> AbstractContextManager[None]:
        return nullcontext()


class KeptRows:
    """Keeps what rank 0 took."""

    def __init__(self) -> None:
        self.rows: list[RankRows] = []
        self.is_closed = False

    def take(self, rows: RankRows) -> None:
        assert not self.is_closed
        self.rows.append(rows)

    def close(self) -> None:
        self.is_closed = True


class Ranks:
    """Some ranks of `amptui train`, with threads that talk."""

    def __init__(self, count: int) -> None:
        self.log = Log()
        self.controls = [
            RankControl(World(rank, rank, count), self.log.emit if rank == 0 else lambda _record: None)
            for rank in range(count)
        ]
        self.report = KeptRows()
        self.controls[0].report = cast("Any", self.report)
        self.store = HashStore()
        self._until: Callable[[], object] = lambda: True
        self._is_over = False
        self._together = threading.Barrier(count, action=self._look_whether_over)

    def join(self) -> None:
        """Begin to agree."""
        for control in self.controls:
            control.join(Board(self.store, "test"), cast("Any", Others()))

    def run(self, work: Callable[[int, RankControl], object]) -> None:
        """Call ``work`` for each rank in a thread of its own."""
        in_threads(
            [lambda rank=rank: work(rank, self.controls[rank]) for rank in range(len(self.controls))],  # type: ignore[misc]
            self._together,
        )

    def boundaries(
        self, until: Callable[[], object], work: Callable[[int, int, RankControl], object] | None = None
    ) -> None:
        """Have all pass boundaries together, with ``work`` after each, ``until`` that is true after one."""

        def train(rank: int, control: RankControl) -> None:
            boundary = 0
            while not self._is_over:
                control.at_boundary()
                if work is not None:
                    work(boundary, rank, control)
                boundary += 1
                self._together.wait(PATIENCE_SECONDS)

        self._until, self._is_over = until, False
        self.run(train)

    def _look_whether_over(self) -> None:
        self._is_over = bool(self._until())
