"""Agreements of ranks whose threads take turns in any order: all obey at the same point, or none does."""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.orders import Agreement, Order

_PHASE = 1 << 40

_MAX_TURNS = 300_000


class Turns:
    """Threads of which one runs at a time, drawn anew wherever one of them touches what others can see."""

    def __init__(self, draw: random.Random) -> None:
        self.count = 0
        self._draw = draw
        self._turn_over = threading.Semaphore(0)
        self._mine = threading.local()
        self._errors: list[BaseException] = []
        self._over = False
        self._ended: set[threading.Semaphore] = set()
        self._threads: list[threading.Thread] = []

    def offer(self) -> None:
        """Let another thread go on, or this one."""
        mine: threading.Semaphore | None = getattr(self._mine, "turn", None)
        if mine is None:  # the test's own
            return
        self._turn_over.release()
        mine.acquire()
        if self._over:
            raise SystemExit

    def run(self, workers: Sequence[tuple[int, Callable[[], object]]]) -> None:
        """Run all, each with a weight, until they return. Fails if that takes too many turns."""
        waiting = {self._start(work): weight for weight, work in workers}
        while waiting and not self._errors and self.count < _MAX_TURNS:
            self.count += 1
            (turn,) = self._draw.choices([*waiting], [*waiting.values()])
            turn.release()
            self._turn_over.acquire()
            waiting = {turn: weight for turn, weight in waiting.items() if turn not in self._ended}
        self._over = True
        for turn in waiting:
            turn.release()
        for thread in self._threads:
            thread.join(10)
        assert self._errors == []
        assert not waiting, "nobody goes on"

    def _start(self, work: Callable[[], object]) -> threading.Semaphore:
        turn = threading.Semaphore(0)

        def run() -> None:
            self._mine.turn = turn
            turn.acquire()
            try:
                if not self._over:
                    work()
            except SystemExit:
                pass
            except BaseException as error:  # noqa: BLE001 - the test fails with it
                self._errors.append(error)
            self._ended.add(turn)
            self._turn_over.release()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return turn


class TurningBoard:
    """A board in a store; everything done to it takes a turn."""

    def __init__(self, turns: Turns) -> None:
        self._offer = turns.offer
        self._board = Board(HashStore(), "test")

    def __getattr__(self, name: str) -> Any:
        self._offer()
        return getattr(self._board, name)


class _Changed:
    """A condition among threads of which one runs at a time."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None: ...

    def wait(self, _seconds: float) -> bool:
        self._turns.offer()
        return True

    def notify_all(self) -> None: ...


PAUSE = Order(requests={"pause": {"paused": True}})
"""It ends with the next order."""


class Rank:
    """A training of so many points, and the thread beside it."""

    def __init__(self, ranks: "Ranks", rank: int) -> None:
        self.ranks = ranks
        self.rank = rank
        self.point = 0
        self.passed = 0
        """Points of all phases."""
        self.obeyed: list[tuple[int, int, int]] = []
        self.is_paused = self.has_ended = False
        clock = ranks.clock
        self.agreement = Agreement(ranks.board, rank, ranks.count, cast("Any", self), clock=clock)
        self.agreement._changed = _Changed(ranks.turns)  # type: ignore[assignment]

    def arrived(self) -> int:
        self.ranks.turns.offer()
        return self.point

    def notice(self) -> None:
        self.ranks.turns.offer()

    def is_something_wanted(self) -> bool:
        return bool(self.ranks.wanted)

    def compose(self) -> Order:
        return self.ranks.wanted[0]

    def voided(self) -> None:
        self.ranks.voids += 1

    def obey(self, order: Order) -> None:
        self.obeyed.append((order.number, self.passed, order.probes))
        self.is_paused = bool(order.requests)
        if self.rank == 0:
            del self.ranks.wanted[0]

    def train(self) -> None:
        turns = self.ranks.turns
        for passed in range(1, self.ranks.points + 1):
            turns.offer()
            self.passed = passed
            new_phase = passed % self.ranks.phase_points == 0
            self.point = (self.point // _PHASE + 1) * _PHASE if new_phase else self.point + 1
            turns.offer()
            if self.point >= self.agreement.hold:
                self.agreement.settle(self.point, self.obey)
            while self.is_paused:
                turns.offer()
                self.agreement.settle_in_pause(self.obey)
            while self.ranks.are_tied and any(other.passed < passed - 1 for other in self.ranks.all):
                turns.offer()  # in a collective of the step before
        self.agreement.finish()
        self.has_ended = True

    def talk(self) -> None:
        while not all(rank.has_ended for rank in self.ranks.all):
            self.agreement.tick(self.ranks.board.read(["call"])[0] if self.rank else 0)


class Ranks:
    """Some ranks, of which rank 0 wants so many things, one after the other."""

    def __init__(self, count: int, draw: random.Random, *, wants: int = 12, points: int = 0) -> None:
        self.count = count
        self.points = points or draw.choice([60, 200])
        self.phase_points = draw.choice([7, 20, 1000])
        self.are_tied = draw.random() < 0.5
        self.voids = 0
        turn_seconds = draw.choice([0.0001, 0.01, 0.5])
        self.turns = Turns(draw)
        self.board: Any = TurningBoard(self.turns)
        self.wanted: list[Order] = []
        for number in range(1, wants + 1):
            if draw.random() < 0.3:
                self.wanted += [PAUSE, Order()]
            self.wanted.append(Order(probes=number))
        self.clock: Callable[[], float] = lambda: self.turns.count * turn_seconds
        self.all: list[Rank] = []
        self.all += [Rank(self, rank) for rank in range(count)]

    def run(self, draw: random.Random) -> None:
        works = [work for rank in self.all for work in (rank.train, rank.talk)]
        self.turns.run([(draw.choice([1, 1, 3, 10, 60]), work) for work in works])


@pytest.mark.ci
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32), count=st.integers(2, 4))
def test_every_order_is_obeyed_by_all_at_the_same_point_or_by_none(seed: int, count: int) -> None:
    draw = random.Random(seed)
    ranks = Ranks(count, draw)
    ranks.run(draw)
    first = ranks.all[0].obeyed
    assert all(rank.obeyed == first for rank in ranks.all)
    assert [rank.passed for rank in ranks.all] == [ranks.points] * count


def test_a_rank_that_does_not_answer_keeps_nobody_waiting_for_long() -> None:
    ranks = Ranks(2, random.Random(1), wants=1)
    first, other = ranks.all
    seconds = iter(range(0, 10_000, 4))
    first.agreement._clock = lambda: next(seconds)
    first.agreement._changed = threading.Condition()
    first.agreement.tick()
    first.point = first.agreement.hold
    waiting = threading.Thread(target=first.agreement.settle, args=(first.point, first.obey), daemon=True)
    waiting.start()
    while not ranks.voids:
        first.agreement.tick()
    waiting.join(60)
    assert not waiting.is_alive()
    other.agreement.tick(1)  # it hears at last
    assert first.obeyed == other.obeyed == []
    assert other.agreement.pending is None


def test_a_thread_that_cannot_go_on_ends_the_training_at_its_next_point_also_while_it_obeys() -> None:
    ranks = Ranks(1, random.Random(1), wants=1)
    agreement = ranks.all[0].agreement
    agreement._changed = threading.Condition()
    agreement.tick()
    agreement.tick()
    order = agreement.pending
    assert order is not None
    agreement.settle(order.point, lambda _order: agreement.fail(OSError("the board is gone")))
    assert agreement.hold == 0
    with pytest.raises(OSError, match="is gone"):
        agreement.settle(order.point + 1, lambda _order: None)
    with pytest.raises(OSError, match="is gone"):
        agreement.settle_in_pause(lambda _order: None)
