"""The ranks of a script, in threads that step together and share a store."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from amptui.ranks.agreement import guest_control, orders
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.guest_control import GuestControl
from amptui.ranks.world import World
from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.control import (
    CheckpointRequest,
    ComparisonRequest,
    PauseRequest,
    PrecisionRequest,
    Request,
    StopRequest,
)
from tests.ranks.agreeing import PATIENCE_SECONDS, in_threads
from tests.tiny import Log


class Rank:
    """One rank: its loop, and the part of its peer that passes orders on."""

    def __init__(self, ranks: "Ranks", rank: int) -> None:
        self.ranks = ranks
        self.rank = rank
        emit = ranks.log.emit if rank == 0 else lambda _record: None
        self.control = GuestControl(World(rank, rank, ranks.count), emit)
        self.board = Board(ranks.store, "test")
        self.step = 0
        self.obeyed: list[tuple[int, Request]] = []
        self.hears: Callable[[], object] = lambda: True

    def talk(self) -> None:
        """As its peer's thread does."""
        while not self.ranks.have_done:
            if self.hears():
                self.control.talk(self.board.look("call") or 0)
            time.sleep(0.001)

    def steps_so_far(self) -> int:
        return self.step

    def make_step(self) -> None:
        """With all ranks: nobody ends it before all are in it."""
        self.ranks.together.wait(PATIENCE_SECONDS)
        self.step += 1
        self.look()

    def look(self) -> None:
        self.control.look(self.step)
        self.take()

    def newest(self) -> Request:
        return self.obeyed[-1][1]

    def take(self) -> Request | None:
        newest: Request | None = None
        for kind in (PrecisionRequest, PauseRequest, CheckpointRequest):
            if pending := self.control.take(kind):
                newest = pending.request
                self.obeyed.append((self.step, newest))
                self.control.answer(pending)
        return newest


class Ranks:
    """Some ranks that begin at the same step."""

    def __init__(self, count: int = 2, *, connected: bool = True) -> None:
        self.count = count
        self.log = Log()
        self.store = HashStore()
        self.together = threading.Barrier(count, action=self._look_whether_over)
        self.all = [Rank(self, rank) for rank in range(count)]
        board = self.all[0].board
        for rank in range(count):
            board.post(f"at/{rank}", [0, 0, {}])
            board.post(f"near/{rank}", [0, {}, 0])
        for member in self.all:
            if connected:
                member.control.connect(member.board, member.steps_so_far)
        self.until: Callable[[], object] = lambda: False
        self.have_done = self.is_over = False

    def run(self, work: Callable[[Rank], object]) -> None:
        """Call ``work`` for each rank in a thread of its own, beside those that talk."""
        self.have_done = False
        talking = [threading.Thread(target=rank.talk, daemon=True) for rank in self.all]
        for thread in talking:
            thread.start()
        try:
            in_threads([partial(work, rank) for rank in self.all], self.together)
        finally:
            self.have_done = True
        for thread in talking:
            thread.join(PATIENCE_SECONDS)

    def make_steps(self, until: Callable[[], object]) -> None:
        """Have all make steps together ``until`` that is true after one."""

        def train(rank: Rank) -> None:
            while not self.is_over:
                rank.make_step()

        self.until, self.is_over = until, False
        self.run(train)

    def _look_whether_over(self) -> None:
        self.is_over = bool(self.until())

    def ask(self, request: Request) -> None:
        self.all[0].control.ask(request)

    def refusals(self) -> list[tuple[str, str]]:
        return [(record.request.kind, record.reason) for record in self.log.of(RequestRefused)]


@pytest.fixture(autouse=True)
def _quick_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "poll_seconds", lambda _ranks: 0.001)


def test_all_ranks_obey_at_the_same_step_and_what_is_asked_at_once_together() -> None:
    ranks = Ranks(3)
    requests: list[Request] = [PrecisionRequest("bf16"), CheckpointRequest(), PrecisionRequest("fp32")]
    for request in requests:
        ranks.ask(request)
        ranks.make_steps(partial(_have_obeyed, ranks.all, 1 + requests.index(request)))
    for request in requests[:2]:
        ranks.ask(request)
    ranks.make_steps(partial(_have_obeyed, ranks.all, 5))
    obeyed = ranks.all[0].obeyed
    assert obeyed == ranks.all[1].obeyed == ranks.all[2].obeyed
    assert [request for _, request in obeyed] == requests + requests[:2]
    assert obeyed[3][0] == obeyed[4][0]
    assert len(ranks.log.of(RequestTaken)) == 5


def _have_obeyed(ranks: list[Rank], count: int = 1) -> bool:
    return all(len(rank.obeyed) >= count for rank in ranks)


def test_a_pause_takes_other_requests_and_ends_for_all() -> None:
    ranks = Ranks()
    paused = threading.Barrier(3)
    switched = threading.Barrier(3)

    def train(rank: Rank) -> None:
        while not rank.obeyed:
            rank.make_step()
        assert rank.obeyed == [(rank.step, PauseRequest(True))]
        paused.wait(PATIENCE_SECONDS)
        while rank.newest() != PrecisionRequest("fp16"):
            rank.control.wait()
            rank.take()
        switched.wait(PATIENCE_SECONDS)
        while rank.newest() != PauseRequest(False):
            rank.control.wait()
            rank.take()

    def ask() -> None:
        ranks.ask(PauseRequest(True))
        paused.wait(PATIENCE_SECONDS)
        ranks.ask(PrecisionRequest("fp16"))
        switched.wait(PATIENCE_SECONDS)
        ranks.ask(PauseRequest(False))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    ranks.run(train)
    asking.join(PATIENCE_SECONDS)
    assert ranks.all[0].obeyed == ranks.all[1].obeyed
    assert len({step for step, _ in ranks.all[0].obeyed}) == 1


def test_a_comparison_s_next_block_begins_on_all_ranks() -> None:
    ranks = Ranks()
    leader, other = ranks.all
    leader.control.want_turn("bf16", now="fp32")
    assert leader.control.attention
    turns: list[tuple[int, str]] = []

    def both_have() -> bool:
        if turn := leader.control.take_turn():
            turns.append((leader.step, turn))
        return bool(turns and other.obeyed)

    ranks.make_steps(both_have)
    ((step, turn),) = turns
    assert turn == "bf16"
    assert other.obeyed == [(step, PrecisionRequest("bf16"))]


def test_ranks_at_different_places_refuse_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after batches that one rank did not have: the steps that it counts are others."""
    ranks = Ranks()
    monkeypatch.setattr(guest_control, "collectives_by_group", lambda: {"mesh": threading.get_ident()})
    ranks.ask(PrecisionRequest("bf16"))
    ranks.make_steps(lambda: ranks.refusals() and ranks.all[0].step > 10)
    assert ranks.all[0].step == ranks.all[1].step
    assert ranks.all[0].obeyed == ranks.all[1].obeyed == []
    ranks.ask(PrecisionRequest("fp16"))
    ranks.ask(ComparisonRequest(("fp32", "bf16")))
    ranks.all[0].look()
    refused = [("precision", "failed"), ("precision", "unavailable"), ("comparison", "unavailable")]
    assert ranks.refusals() == refused
    ranks.ask(ComparisonRequest())
    ranks.all[0].look()
    assert ranks.all[0].control.take(ComparisonRequest) is not None  # one that runs may end


def _has_agreed(ranks: Ranks) -> None:
    """An order for a switch stands, and rank 0 comes to its step."""
    first, other = ranks.all
    first.control.ask(PrecisionRequest("bf16"))
    for _ in range(2):
        first.control.talk()
        other.control.talk(first.board.look("call"))
    for rank in ranks.all:
        agreement: Any = rank.control._agreement
        order = agreement.pending
        assert order is not None
        rank.step = order.point


def test_a_rank_that_does_not_come_makes_nobody_wait_for_long_and_does_later_as_they_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guest_control, "MEETING_SECONDS", 0.05)
    ranks = Ranks()
    reasons: list[str] = []
    ranks.all[0].control.cannot_stop = reasons.append
    ranks.ask(StopRequest("q"))
    _has_agreed(ranks)
    for rank in ranks.all:  # one after the other
        rank.look()
    assert ranks.refusals() == [("precision", "failed")]
    assert len(reasons) == 1
    assert "rank 1" in reasons[0]
    assert [rank.obeyed for rank in ranks.all] == [[], []]
    assert [rank.control.stop_reason for rank in ranks.all] == [None, None]
    assert not ranks.all[0].control.over  # it may come the next time


def test_the_end_of_the_agreement_ends_a_pause_and_a_comparison() -> None:
    ranks = Ranks()
    for rank in ranks.all:
        rank.control.end("rank 1 has ended")
        rank.control.wait()
        assert rank.take() == PauseRequest(False)
    control = ranks.all[0].control
    control.want_turn("bf16", now="fp32")
    pending = control.take(ComparisonRequest)
    assert pending is not None
    assert pending.request == ComparisonRequest()


def test_a_rank_without_a_group_obeys_alone() -> None:
    ranks = Ranks(connected=False)
    leader = ranks.all[0]
    leader.control.ask(PrecisionRequest("bf16"))
    leader.control.ask(StopRequest("q"))
    leader.step = 1
    leader.look()
    assert leader.obeyed == []  # perhaps the others come
    leader.control.be_alone()
    leader.step = 2
    leader.look()
    assert leader.obeyed == [(2, PrecisionRequest("bf16"))]
    assert leader.control.stop_reason == "q"


def test_a_lost_store_ends_the_agreement_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    _has_agreed(ranks)

    def lost(_board: Board, _name: str, _value: object) -> None:
        raise dist.DistNetworkError("connection reset")

    monkeypatch.setattr(Board, "post", lost)
    ranks.all[0].look()
    assert ranks.all[0].control.over
    assert ranks.refusals() == [("precision", "failed")]
