"""Whatever connects to a run: a screen misses nothing, the server lives on, and a screen can still come."""

import contextlib
import json
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.runs.socket_place import connect
from tests.runs.served import ENOUGH_SECONDS, HELLO, Screen, running


@given(st.lists(st.binary(min_size=1, max_size=80) | st.just(HELLO), max_size=6), st.booleans())
def test_whatever_is_said_the_answer_is_lines_and_the_next_one_is_served(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], close: bool
) -> None:
    with running(tmp_path_factory.mktemp("run")) as run:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.settimeout(ENOUGH_SECONDS)
            run.server.adopt(ours)
            with contextlib.suppress(BrokenPipeError):
                for piece in pieces:
                    theirs.sendall(piece)
            if close:
                theirs.shutdown(socket.SHUT_WR)
            run.adopt_screen().catch_up(run)
            run.server.close(0.0 if not close else ENOUGH_SECONDS)
            answer = _all_of(theirs)
        assert run.server.trouble == ""
        for line in answer.splitlines():
            assert set(json.loads(line)) <= {"hello", "history", "error"}


def _all_of(connection: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(2**16):
            answer += data
    return answer


def test_screens_that_come_and_go_all_the_time_get_whole_histories(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        over = threading.Event()

        def publish() -> None:
            while not over.is_set():
                run.publish(3, size=300)
                over.wait(0.001)

        pump = threading.Thread(target=publish)
        pump.start()
        try:
            for _ in range(60):
                connection = connect(tmp_path)
                screen = Screen(connection)
                screen.read_until(lambda screen=screen: len(screen.known) > 10)  # type: ignore[misc]
                assert screen.known == list(range(len(screen.known)))
                connection.close()
        finally:
            over.set()
            pump.join()
        assert run.server.trouble == ""
