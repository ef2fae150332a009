"""What ranks do when what they post on is lost."""

import threading
from collections.abc import Callable

import pytest
from torch._C._distributed_c10d import HashStore

from amptui.ranks.agreement import orders
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.agreement.orders import OrderBoard
from amptui.ranks.agreement.other_ranks import OtherRanks
from amptui.records.control import CheckpointRequest, StopRequest
from tests.ranks.agreeing import Ranks


class At(OtherRanks):
    """Ranks that go on at ``store`` when a board is lost."""

    def __init__(self, store: HashStore | None) -> None:
        self.store = store

    def explain_lost(self, error: Exception) -> OrderBoard | Exception:
        return RuntimeError(f"the store: {error}") if self.store is None else Board(self.store, "test")


@pytest.fixture(autouse=True)
def _quick_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "poll_seconds", lambda _ranks: 0.001)


def test_a_lost_store_ends_the_training_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(2)

    def lost(_board: Board, _names: object) -> object:
        raise OSError("connection reset")

    monkeypatch.setattr(Board, "read", lost)
    other = ranks.controls[1]
    other.join(Board(ranks.store, "test"), At(None))
    other.leave()
    with pytest.raises(RuntimeError, match="the store: connection reset"):
        other.at_boundary()


def test_ranks_go_on_at_another_board(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, is_lost = Ranks(2), threading.Event()
    first = [Board(ranks.store, "test") for _ in ranks.controls]
    other = HashStore()
    for name in ("read", "look", "decide"):
        monkeypatch.setattr(Board, name, _losable(getattr(Board, name), first, is_lost))
    for control, board in zip(ranks.controls, first, strict=True):
        control.join(board, At(other))
    taken: list[list[int]] = [[], []]
    stopped: dict[int, int] = {}

    def work(boundary: int, rank: int, control: RankControl) -> None:
        if control.take(CheckpointRequest):
            taken[rank].append(boundary)
        if control.stopping:
            stopped.setdefault(rank, boundary)

    ranks.controls[0].ask(CheckpointRequest())
    ranks.boundaries(lambda: taken[0], work)
    is_lost.set()
    ranks.controls[1].ask(StopRequest("SIGTERM"))
    ranks.boundaries(lambda: stopped, work)
    assert taken[0] == taken[1]
    assert stopped[0] == stopped[1]
    for control in ranks.controls:
        control.leave()


def _losable(
    method: Callable[..., object], boards: list[Board], is_lost: threading.Event
) -> Callable[..., object]:
    def call(board: Board, *given: object) -> object:
        if is_lost.is_set() and board in boards:
            raise OSError("connection reset")
        return method(board, *given)

    return call
