"""A rank among others, without a script: threads of one process that share a store."""

import pytest
from torch._C._distributed_c10d import HashStore

from amptui.engine.distributed.board import Board
from amptui.engine.distributed.guest_control import GuestControl
from amptui.engine.distributed.world import World
from amptui.process.rank_peer import RankPeer
from tests.tiny import Log


def test_a_rank_that_fails_tells_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else they would wait for it after each request."""
    world, log = World(1, 1, 2), Log()
    board, control = Board(HashStore(), "test"), GuestControl(world, log.emit)
    monkeypatch.setattr("amptui.process.rank_peer.open_board", lambda _name: board)
    monkeypatch.setattr("amptui.process.rank_peer.world_of_script", lambda: world)
    RankPeer(world, control, log.emit)._work()  # it was not started with a loop
    assert board.look("gone")[0] == 1
    assert control.over
    assert capsys.readouterr().err.count("\n") == 1
