"""What a slow screen is owed is bounded, and no line that it gets is torn."""

import socket
from collections.abc import Iterator

import pytest

from amptui.runs import peer
from amptui.runs.peer import Peer
from tests.runs.served import ENOUGH_SECONDS

HISTORY = b"h" * 50_000 + b"\n"
LINES = b"l" * 999 + b"\n"


class Pair:
    """A peer with a small buffer, and the screen at its other end."""

    def __init__(self) -> None:
        ours, self.screen = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
        self.screen.settimeout(ENOUGH_SECONDS)
        self.peer = Peer(ours, adopted=True, since=0.0)

    @property
    def standing(self) -> str:
        return self.peer.standing

    def introduce(self) -> None:
        self.peer.introduce(b"hello\n")
        self.peer.send()
        assert self.peer.standing == "waiting"
        assert self.screen.recv(100) == b"hello\n"

    def drain(self) -> bytes:
        """All that is owed, as the screen reads it."""
        data = b""
        while not (self.peer.settled or self.peer.standing == "waiting"):
            self.peer.send()
            data += self.screen.recv(2**20)
        self.screen.setblocking(False)
        try:
            while True:
                data += self.screen.recv(2**20)
        except BlockingIOError:
            return data


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(peer, "MAX_QUEUED_BYTES", 10_000)
    pair = Pair()
    yield pair
    pair.peer.close()
    pair.screen.close()


def test_lines_wait_beside_a_history_of_any_length(pair: Pair) -> None:
    pair.introduce()
    pair.peer.owe_history(HISTORY)
    pair.peer.send()
    assert pair.peer.blocked
    for _ in range(10):
        pair.peer.owe_lines(LINES)
    assert pair.peer.standing == "live"
    assert not pair.peer.settled
    assert pair.drain() == HISTORY + 10 * LINES
    assert pair.peer.settled


def test_more_than_that_is_taken_back_but_for_what_was_begun(pair: Pair) -> None:
    pair.introduce()
    pair.peer.owe_history(HISTORY)
    pair.peer.send()
    for _ in range(11):
        pair.peer.owe_lines(LINES)
    assert pair.standing == "behind"
    assert pair.drain() == HISTORY
    assert pair.standing == "waiting"


def test_who_fell_behind_may_be_owed_as_much_as_before(pair: Pair) -> None:
    pair.introduce()
    pair.peer.owe_history(b"1\n")
    pair.peer.send()
    for _ in range(11):
        pair.peer.owe_lines(LINES)
    assert pair.drain() == b"1\n"
    pair.peer.owe_history(b"2\n")
    for _ in range(10):
        pair.peer.owe_lines(LINES)
    assert pair.peer.standing == "live"
    assert pair.drain() == b"2\n" + 10 * LINES


def test_a_history_that_was_sent_gives_no_room_to_lines(pair: Pair) -> None:
    pair.introduce()
    pair.peer.owe_history(HISTORY)
    assert pair.drain() == HISTORY
    for _ in range(11):
        pair.peer.owe_lines(LINES)
    assert pair.peer.standing == "behind"


def test_who_takes_nothing_waits_for_no_history(pair: Pair) -> None:
    pair.introduce()
    pair.peer.owe_history(b"1\n")
    while not pair.peer.blocked:
        pair.peer.owe_lines(b"l\n")
        pair.peer.send()
    pair.peer.fall_behind()
    assert pair.standing == "behind"
    assert not pair.peer.settled
    pair.screen.recv(2**20)
    pair.peer.send()
    assert pair.standing == "waiting"


@pytest.mark.parametrize("begun", [True, False])
def test_a_last_word_tears_no_line(pair: Pair, *, begun: bool) -> None:
    pair.introduce()
    if begun:
        pair.peer.owe_history(HISTORY)
        pair.peer.send()
        pair.peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    pair.peer.close(b"why\n")
    data = b""
    while piece := pair.screen.recv(2**20):
        data += piece
    assert data == (HISTORY[: len(data)] if begun else b"why\n")
    assert len(data) < len(HISTORY)


def test_closing_ends_the_connection_for_those_who_hold_a_copy(pair: Pair) -> None:
    with pair.peer.connection.dup():
        pair.peer.close()
        assert pair.screen.recv(10) == b""


def test_the_other_end_is_known_to_be_gone_after_its_last_line(pair: Pair) -> None:
    pair.screen.sendall(b"one\ntwo\nthr")
    pair.screen.close()
    assert pair.peer.hear() == [b"one", b"two"]
    assert not pair.peer.gone
    assert pair.peer.hear() == []
    assert pair.peer.gone
