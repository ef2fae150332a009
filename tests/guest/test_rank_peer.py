"""A rank among others, without a script: threads of one process that share a store."""

import pytest
from torch._C._distributed_c10d import HashStore

from amptui.guest.peer import RankPeer, _Sampling
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.guest_control import GuestControl
from amptui.ranks.world import World
from amptui.records.steps import Steps
from tests.telemetry.record_samples import step
from tests.tiny import Log


def test_a_rank_that_fails_tells_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else they would wait for it after each request."""
    world, log = World(1, 1, 2), Log()
    board, control = Board(HashStore(), "test"), GuestControl(world, log.emit)
    monkeypatch.setattr("amptui.guest.peer.open_board", lambda _name: board)
    monkeypatch.setattr("amptui.guest.peer.world_of_script", lambda: world)
    RankPeer(world, control, log.emit)._work()  # it was not started with a loop
    assert board.look("gone")[0] == 1
    assert control.over
    assert capsys.readouterr().err.count("\n") == 1


def test_a_sample_ends_with_a_step_of_the_first_optimizer() -> None:
    sampling = _Sampling()
    sampling.announce(1, 5)
    for number in range(1, 11):
        sampling.add(Steps.of(step(number, optimizer="critic")))
    assert sampling.take() is None
    for number in range(1, 6):
        sampling.add(Steps.of(step(number)))
    row = sampling.take()
    assert row is not None
    assert row[1].steps == 5
