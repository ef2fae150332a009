"""Whatever connects to a run: a screen misses nothing, the server lives on, and a screen can still come."""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.errors import RunFolderError
from amptui.runs import server
from amptui.runs.socket_place import connect
from tests.runs.served import ENOUGH_SECONDS, HELLO, Screen, running, until

Hostile = Callable[[socket.socket, random.Random], None]


def random_bytes(connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(chance.randbytes(chance.randrange(1, 5000)))


def a_line_without_end(connection: socket.socket, _chance: random.Random) -> None:
    for _ in range(100):
        connection.sendall(b"x" * 10_000)


def nothing(_connection: socket.socket, _chance: random.Random) -> None:
    pass


def half_a_hello(connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(HELLO[: chance.randrange(1, len(HELLO) - 1)])


def another_version(connection: socket.socket, _chance: random.Random) -> None:
    connection.sendall(b'{"hello": {"protocol": 999999999999999999999}}\n')


def deep_nesting(connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(chance.choice([b"[", b'{"hello":']) * 6000 + b"\n")


def hello_and_nonsense(connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(HELLO + chance.randbytes(200) + b"\n")


def hello_and_no_reading(connection: socket.socket, _chance: random.Random) -> None:
    connection.sendall(HELLO)


def hello_and_half_closed(connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(HELLO)
    connection.shutdown(chance.choice([socket.SHUT_RD, socket.SHUT_WR]))


def a_byte_at_a_time(connection: socket.socket, _chance: random.Random) -> None:
    for byte in b'{"hello": {"protocol": 2}, "request": "stop"}\n' * 3:
        connection.sendall(bytes([byte]))


def a_web_browser(connection: socket.socket, _chance: random.Random) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


HOSTILE: list[Hostile] = [
    random_bytes,
    a_line_without_end,
    nothing,
    half_a_hello,
    another_version,
    deep_nesting,
    hello_and_nonsense,
    hello_and_no_reading,
    hello_and_half_closed,
    a_byte_at_a_time,
    a_web_browser,
]


def attack(folder: Path, seed: int, count: int, done: threading.Event) -> None:
    chance = random.Random(seed)
    held = []
    for number in range(count):
        try:
            connection = connect(folder)
        except RunFolderError:
            continue
        with contextlib.suppress(OSError):
            HOSTILE[number % len(HOSTILE)](connection, chance)
        # Some stay open for a while, some are closed at once.
        held.append(connection)
        for each in held[:: chance.randrange(1, 4)] if len(held) > 6 else ():
            each.close()
            held.remove(each)
    for connection in held:
        connection.close()
    done.set()


def test_a_hundred_hostile_connections_cost_a_screen_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REFUSAL_SECONDS", 3600.0)
    with running(tmp_path) as run:
        good = run.attach_screen()
        good.catch_up(run)
        done = [threading.Event(), threading.Event()]
        threads = [
            threading.Thread(target=attack, args=(tmp_path, seed, 60, over)) for seed, over in enumerate(done)
        ]
        for thread in threads:
            thread.start()
        while not all(over.is_set() for over in done):
            run.publish(20, size=200)
            good.read_until(lambda: good.known == run.known)
        for thread in threads:
            thread.join()
        assert good.histories == 1
        assert good.known == run.known
        assert run.asked == []
        assert run.server.trouble == ""
        until(lambda: run.server.viewers == 1, meanwhile=lambda: run.publish(1))
        assert sum(change.change == "refused" for change in run.changes) == 1
        run.attach_screen().catch_up(run)


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
