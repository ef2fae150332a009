"""The ranks of a script, which share a store and talk in turns; those that meet do so in threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from amptui.ranks.agreement import guest_control
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.guest_control import GuestControl
from amptui.ranks.world import World
from amptui.records.answers import RequestRefused
from amptui.records.control import (
    CheckpointRequest,
    ComparisonRequest,
    PauseRequest,
    PrecisionRequest,
    Request,
    StopRequest,
)
from tests.tiny import Log


class Rank:
    """One rank: its control, and the steps and requests of its loop."""

    def __init__(self, ranks: "Ranks", rank: int) -> None:
        emit = ranks.log.emit if rank == 0 else lambda _record: None
        self.control = GuestControl(World(rank, rank, ranks.count), emit)
        self.board = Board(ranks.store, "test")
        self.step = 0
        self.obeyed: list[tuple[int, Request]] = []

    def steps_so_far(self) -> int:
        return self.step

    @property
    def order(self) -> Any:
        """What the ranks have agreed on; None if there is nothing to come."""
        agreement: Any = self.control._agreement
        return agreement.pending

    def look(self) -> None:
        self.control.look(self.step)
        self.take()

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
        self.all = [Rank(self, rank) for rank in range(count)]
        board = self.all[0].board
        for rank in range(count):
            board.post(f"at/{rank}", [0, 0, {}])
            board.post(f"near/{rank}", [0, {}, 0])
        for member in self.all:
            if connected:
                member.control.connect(member.board, member.steps_so_far)

    def agree(self, *requests: Request) -> None:
        """Ask for these; an order stands, and all ranks come to its step."""
        leader, *others = self.all
        for request in requests:
            leader.control.ask(request)
        for _ in range(2):
            leader.control.talk()
            for other in others:
                other.control.talk(leader.board.look("call"))
        for rank in self.all:
            assert rank.order is not None
            rank.step = rank.order.point

    def meet(self) -> None:
        """Each looks in a thread of its own."""
        with ThreadPoolExecutor(self.count) as threads:
            list(threads.map(Rank.look, self.all, timeout=60))

    def refusals(self) -> list[tuple[str, str]]:
        return [(record.request.kind, record.reason) for record in self.log.of(RequestRefused)]


BF16 = PrecisionRequest("bf16")


def test_ranks_at_different_places_refuse_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after batches that one rank did not have: the steps that it counts are others."""
    ranks = Ranks()
    monkeypatch.setattr(guest_control, "collectives_by_group", lambda: {"mesh": threading.get_ident()})
    ranks.agree(BF16)
    ranks.meet()
    assert ranks.all[0].obeyed == ranks.all[1].obeyed == []
    leader = ranks.all[0]
    leader.control.ask(PrecisionRequest("fp16"))
    leader.control.ask(ComparisonRequest(("fp32", "bf16")))
    leader.look()
    refused = [("precision", "failed"), ("precision", "unavailable"), ("comparison", "unavailable")]
    assert ranks.refusals() == refused
    leader.control.ask(ComparisonRequest())
    leader.look()
    assert leader.control.take(ComparisonRequest) is not None  # one that runs may end


def test_a_rank_that_does_not_come_makes_nobody_wait_for_long_and_does_later_as_they_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guest_control, "MEETING_SECONDS", 0.05)
    ranks = Ranks()
    reasons: list[str] = []
    ranks.all[0].control.cannot_stop = reasons.append
    ranks.agree(StopRequest("q"), BF16)
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
    leader = Ranks(connected=False).all[0]
    leader.control.ask(BF16)
    leader.control.ask(StopRequest("q"))
    leader.step = 1
    leader.look()
    assert leader.obeyed == []  # perhaps the others come
    leader.control.be_alone()
    leader.step = 2
    leader.look()
    assert leader.obeyed == [(2, BF16)]
    assert leader.control.stop_reason == "q"


def test_a_lost_store_ends_the_agreement_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    ranks.agree(BF16)

    def lost(_board: Board, _name: str, _value: object) -> None:
        raise dist.DistNetworkError("connection reset")

    monkeypatch.setattr(Board, "post", lost)
    ranks.all[0].look()
    assert ranks.all[0].control.over
    assert ranks.refusals() == [("precision", "failed")]
