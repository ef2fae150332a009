"""A run serves screens: each knows everything, none delays it; its socket is its user's alone."""

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RunFolderError
from amptui.records.answers import RequestMade
from amptui.records.run import FORM
from amptui.runs import protocol, server
from amptui.runs.lock import RunLock, holder
from amptui.runs.socket_place import connect, connect_to_live
from tests.runs.served import ENOUGH_SECONDS, HELLO, Run, Screen, attached, running, until

CHECKPOINT = protocol.encode(RequestMade("checkpoint", number=4))
FP4, ONE = (
    protocol.encode(request).strip()
    for request in (
        RequestMade("precision", precision="fp4"),
        RequestMade("comparison", precisions=("bf16",)),
    )
)


ACTIONS = st.lists(
    st.tuples(st.just("publish"), st.integers(0, 40))
    | st.tuples(st.just("join"), st.integers(1, 60_000))
    | st.tuples(st.just("read"), st.integers(1, 30_000))
    | st.tuples(st.just("leave"), st.integers(0, 3))
    | st.tuples(st.just("renew"), st.just(0)),
    max_size=40,
)


@given(ACTIONS)
def test_nothing_is_lost_or_doubled_whoever_comes_and_however_slowly_they_read(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch, running(tmp_path_factory.mktemp("run")) as run:
        patch.setattr(server, "MAX_QUEUED_BYTES", 20_000)
        screens: list[Screen] = []
        for action, number in actions:
            if action == "publish":
                run.publish(number, size=400)
            elif action == "join" and len(screens) < 8:
                screens.append(run.adopt_screen(buffer_bytes=number))
            elif action == "renew":
                run.server.renew()
            elif screens and action == "leave":
                screens.pop(number % len(screens)).connection.close()
            elif screens and action == "read":
                reader = screens[number % len(screens)]
                reader.connection.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    reader.read(number)
            for screen in screens:
                expected = list(range(len(screen.known)))
                assert screen.known == expected
        for screen in screens:
            screen.catch_up(run)
        run.publish(2)
        for screen in screens:
            screen.catch_up(run)
            assert screen.known == list(range(len(run.known)))


def test_what_a_screen_asks_before_it_leaves_is_heard_also_with_much_unread(run: Run) -> None:
    screen = attached(run)
    run.publish(2000, size=400)
    screen.say(CHECKPOINT)
    screen.connection.close()
    until(run.is_served, meanwhile=run.publish)
    assert [(request.kind, request.number) for request in run.asked] == [("checkpoint", 4)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (CHECKPOINT.strip().replace(b"checkpoint", b"reboot"), "not a message that this run knows"),
        (FP4, "not a message that this run knows"),
        (ONE, "not a message that this run knows"),
        (CHECKPOINT.strip().replace(b"4", b"9" * 5000), "not a message that this run knows"),
        (b'{"type":' * 7_000, "not a message that this run knows"),
        (b"\xff\xfe\x00", "not a message that this run knows"),
        (b"x" * 140_000, "a line of more than 65536 bytes"),
    ],
    ids=["unknown", "precision", "one side", "number", "deep", "bytes", "long"],
)
def test_a_screen_that_talks_nonsense_is_told_and_let_go(run: Run, line: bytes, why: str) -> None:
    screen = attached(run)
    screen.say(line + b"\n")
    assert screen.read_to_the_end()[-1] == {"type": "RunError", "text": why}
    until(run.is_served)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (
            b'{"type":"Hello","protocol":1}\n',
            f"the run uses protocol {FORM}, the screen 1; attach with the version of amptui that started it",
        ),
        (CHECKPOINT, "the first line must be a hello"),
    ],
)
def test_who_does_not_begin_with_a_hello_of_this_version_is_refused_and_not_obeyed(
    run: Run, hello: bytes, why: str
) -> None:
    screen = run.adopt_screen(hello=hello)
    assert screen.read_to_the_end() == [{"type": "RunError", "text": why}]
    until(run.is_served)
    assert run.asked == []


TALK = """
import socket, sys
screen = socket.socket(socket.AF_UNIX)
screen.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**23)
screen.connect(sys.argv[1])
talk = sys.argv[2].encode() * 200_000
while screen.send(talk):
    pass
"""


def test_a_screen_that_never_stops_talking_keeps_nobody_waiting(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        command = [sys.executable, "-S", "-c", TALK, str(tmp_path / "run.sock"), HELLO.decode()]
        talker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until(lambda: not run.is_served())
            attached(run)
            run.server.close(0.0)
            assert talker.wait(ENOUGH_SECONDS) != 0
        finally:
            talker.kill()
            talker.wait()


def test_closing_lets_screens_have_the_last_word(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        screens = [attached(run), run.attach_screen()]
        screens[1].catch_up(run)
        late = run.adopt_screen(hello=b"")  # it has not come to its hello when the run is over
        run.publish(5000, size=400)
        closing = threading.Thread(target=run.server.close, args=(ENOUGH_SECONDS,))
        closing.start()
        until(run.server._closing.is_set)
        for screen in (*screens, late):
            if screen is late:
                late.say(HELLO)
            screen.read_until(lambda screen=screen: screen.known == run.known)  # type: ignore[misc]
        for screen in (*screens, late):
            screen.read_to_the_end()
        closing.join()
        run.publish(1)  # what comes too late harms nobody


def test_closing_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.adopt_screen(hello=b"")
        stopped = run.adopt_screen(buffer_bytes=10_000)
        stopped.catch_up(run)
        run.publish(5000, size=400)
        run.server.close(0.05)
        known = stopped.known
        with pytest.raises(AssertionError, match="torn"):
            stopped.read_to_the_end()
        assert known == list(range(len(known)))


def test_the_socket_is_for_its_user_alone_and_gone_with_the_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with running(tmp_path) as run:
            status = (tmp_path / "run.sock").stat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o600
            assert run.server.trouble == ""
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_a_folder_with_a_very_long_name_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50) / ("longer" * 40)
    folder.mkdir(parents=True)
    with running(folder) as run:
        screen = run.attach_screen()
        run.publish(2)
        screen.catch_up(run)
        assert [path.name for path in folder.iterdir()] == ["run.sock"]
    assert list(folder.iterdir()) == []


def test_a_run_that_has_just_begun_is_waited_for(tmp_path: Path) -> None:
    with RunLock.take(tmp_path), ThreadPoolExecutor(1) as screens:
        attached = screens.submit(connect_to_live, tmp_path)
        with running(tmp_path) as run, attached.result(ENOUGH_SECONDS) as connection:
            screen = Screen(connection)
            screen.catch_up(run)


def test_a_dead_run_s_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "run.sock"))
        stale.listen()
    with running(tmp_path) as run:
        assert run.server.trouble == ""
        run.attach_screen().catch_up(run)


def test_where_the_folder_can_hold_no_socket_the_run_s_own_screen_is_served(tmp_path: Path) -> None:
    (tmp_path / "run.sock").write_text("not ours")
    for folder, why in (
        (tmp_path, "address already in use"),
        (tmp_path / "none", "no such file or directory"),
    ):
        with running(folder) as run:
            attached(run)
        assert run.server.trouble.startswith(f"cannot listen at {folder / 'run.sock'}: {why}")
    assert (tmp_path / "run.sock").read_text() == "not ours"


FORKS = """
import os, sys
from pathlib import Path
from amptui.runs.lock import RunLock, holder
from amptui.runs.server import Server

def fork(*_request):
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        os._exit(0)
    print(child, flush=True)

folder = Path(sys.argv[1])
lock = RunLock.take(folder)
server = Server(folder, handle_request=fork)
server.start()
os.read(0, 1)
"""


def test_a_worker_that_outlives_the_run_keeps_no_connection_open_and_holds_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        until(lambda: _connects(tmp_path))
        connection = connect(tmp_path)
        screen = Screen(connection)
        screen.say(CHECKPOINT)
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        found: Any = holder(tmp_path)
        assert found.pid == process.pid, "the run still holds it, with the worker beside it"
        process.kill()
        assert process.wait() == -9
        screen.read_to_the_end()
        connection.close()
        until(lambda: not _connects(tmp_path))
        assert holder(tmp_path) is None
        os.kill(worker, 0)  # it lives


def _connects(folder: Path) -> bool:
    try:
        connect(folder).close()
    except RunFolderError:
        return False
    return True
