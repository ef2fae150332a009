"""A run serves screens: each knows everything, none delays the run, and the socket is always to be found."""

import contextlib
import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amptui.control import Control
from amptui.errors import RunFolderError
from amptui.runs import peer, place, protocol, server
from amptui.runs.client import connect
from amptui.runs.protocol import CheckpointAsked, PauseAsked
from tests.runs.served import ENOUGH_SECONDS, HELLO, Run, Screen, running, until


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path) as run:
        yield run


def attached(run: Run) -> Screen:
    """One more screen that is up to date."""
    screen = run.adopt_screen()
    screen.catch_up(run)
    return screen


def test_a_screen_gets_hello_then_the_history_then_what_is_new(run: Run) -> None:
    run.publish(3)
    screen = run.adopt_screen()
    screen.read_until(lambda: screen.histories, meanwhile=run.publish)
    run.publish(2)
    screen.read_until(lambda: len(screen.lines) == 4)
    folder = str(run.server._folder)
    assert screen.lines[:2] == [
        {"hello": {"protocol": 1, "version": "1.2", "pid": 7, "run_dir": folder}},
        {"history": [0, 1, 2]},
    ]
    assert [line["text"] for line in screen.lines[2:]] == ["3 ", "4 "]
    assert run.histories == 1


def test_screens_that_wait_together_share_a_history(run: Run) -> None:
    screens = [run.adopt_screen() for _ in range(3)]
    until(lambda: run.server.viewers == 3)
    run.publish(1)
    for screen in screens:
        screen.read_until(lambda screen=screen: screen.histories)  # type: ignore[misc]
        assert screen.known == [0]
    assert run.histories == 1


def test_nobody_watching_costs_no_history(run: Run) -> None:
    for _ in range(100):
        run.publish(1)
    assert run.histories == 0
    assert attached(run).known == list(range(100))


ACTIONS = st.lists(
    st.tuples(st.just("publish"), st.integers(0, 40))
    | st.tuples(st.just("join"), st.integers(1, 60_000))
    | st.tuples(st.just("read"), st.integers(1, 30_000))
    | st.tuples(st.just("leave"), st.integers(0, 3))
    | st.tuples(st.just("renew"), st.just(0)),
    max_size=40,
)


@given(ACTIONS)
@settings(max_examples=40)
def test_nothing_is_lost_or_doubled_whoever_comes_and_however_slowly_they_read(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch, running(tmp_path_factory.mktemp("run")) as run:
        patch.setattr(peer, "MOST_QUEUED_BYTES", 20_000)
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


def test_a_screen_that_stops_reading_delays_nobody_and_gets_a_new_history(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "MOST_QUEUED_BYTES", 2**18)
    stopped, good = run.adopt_screen(), attached(run)
    stopped.catch_up(run)
    before = stopped.histories
    tracemalloc.start()
    try:
        for _ in range(50):
            run.publish(400, size=400)
            good.read_until(lambda: good.known[-1:] == run.known[-1:], meanwhile=good.lines.clear)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(good.known) == 20_000
    assert good.known == run.known
    assert held < 4_000_000  # of 10 MB that were published; what run and screen know is in it
    asked = run.histories
    run.publish(1, size=400)
    assert run.histories == asked  # none is made for a screen that takes nothing
    stopped.catch_up(run)
    assert stopped.histories == before + 1
    run.publish(2)
    stopped.catch_up(run)
    good.catch_up(run)
    assert stopped.histories == before + 1


def test_lines_that_the_server_did_not_get_round_to_become_a_history(run: Run) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def block(_request: object) -> None:
        entered.set()
        go_on.wait(ENOUGH_SECONDS)

    run.server._obey = block
    screen = attached(run)
    screen.say(protocol.encode(CheckpointAsked()))
    assert entered.wait(ENOUGH_SECONDS)
    for _ in range(200):
        run.publish(1)
    assert len(run.server._published) <= 51
    go_on.set()
    screen.catch_up(run)
    assert screen.histories == 2


def test_what_was_published_can_be_called_out_of_date(run: Run) -> None:
    screen = attached(run)
    run.publish(5)
    screen.catch_up(run)
    run.known[:] = [0, 1]  # the run goes on from before
    run.server.renew()
    screen.read_until(lambda: screen.histories == 2, meanwhile=run.publish)
    assert screen.known == [0, 1]
    run.publish(1)
    screen.catch_up(run)
    assert screen.known == [0, 1, 2]


def test_a_history_that_cannot_be_told_ends_who_waits_for_it(run: Run) -> None:
    def broken() -> str:
        raise TypeError("no\nway")

    screen = run.adopt_screen()
    until(lambda: run.server.viewers == 1)
    run.server.publish(b"", broken)
    told = {"error": "the run cannot tell its history: TypeError: no way"}
    assert screen.read_to_the_end()[1:] == [told]
    assert attached(run).histories == 1


def test_histories_take_a_small_share_of_the_pump_s_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HISTORY_SHARE", 1e-9)
    attached(run)
    late = run.adopt_screen()
    until(lambda: run.server.viewers == 2)
    for _ in range(10):
        run.publish(1)
    assert run.histories == 1
    run.server.close(ENOUGH_SECONDS)  # which does not keep it waiting
    late.read_to_the_end()
    assert late.known == list(range(10))


def test_requests_reach_the_run_s_control(tmp_path: Path) -> None:
    control = Control()
    with running(tmp_path, obey=lambda asked: protocol.apply(asked, control)) as run:
        screen = attached(run)
        screen.say(protocol.encode(PauseAsked(True)) + protocol.encode(CheckpointAsked())[:7])
        until(lambda: control.paused)
        assert not control.take_checkpoint()
        screen.say(protocol.encode(CheckpointAsked())[7:])
        until(control.take_checkpoint)


@pytest.mark.parametrize(
    ("farewell", "change"),
    [(b'{"leave": "detached"}\n', "detached"), (b'{"leave": "hung up"}\n', "hung up"), (b"", "lost")],
)
@pytest.mark.parametrize("unread", [0, 2000])
def test_how_a_screen_left_is_told(run: Run, farewell: bytes, change: str, unread: int) -> None:
    screen = attached(run)
    run.publish(unread, size=400)
    screen.say(farewell)
    screen.connection.close()
    until(lambda: len(run.changes) == 2, meanwhile=run.publish)
    assert run.told() == [("attached", 1), (change, 0)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"request": "reboot"}', "not a request that this run knows"),
        (HELLO.strip(), "a second hello"),
        (b"x" * 70_000, "a line of more than 65536 bytes"),
    ],
    ids=["unknown", "second hello", "long"],
)
def test_a_screen_that_talks_nonsense_is_told_and_let_go(run: Run, line: bytes, why: str) -> None:
    screen = attached(run)
    screen.say(line + b"\n")
    assert screen.read_to_the_end()[-1] == {"error": why}
    until(lambda: len(run.changes) == 2)
    assert (run.told()[1], run.changes[1].detail) == (("lost", 0), why)


def test_a_screen_of_another_version_is_refused_with_the_mend(run: Run) -> None:
    screen = run.adopt_screen(hello=b'{"hello": {"protocol": 2}}\n')
    why = "the run speaks protocol 1, the screen 2; watch it with the version of amptui that started it"
    assert screen.read_to_the_end() == [{"error": why}]
    until(lambda: run.changes)
    assert (run.told(), run.changes[0].detail) == ([("refused", 0)], why)


def test_who_asks_before_saying_hello_is_not_obeyed(run: Run) -> None:
    screen = run.adopt_screen(hello=protocol.encode(CheckpointAsked()))
    assert screen.read_to_the_end() == [{"error": "a hello comes first"}]
    assert run.asked == []


def test_refusals_are_told_once_in_a_while(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REFUSAL_SECONDS", 3600.0)
    for _ in range(5):
        run.attach_screen(hello=b"nonsense\n").read_to_the_end()
    assert run.told() == [("refused", 0)]


def test_who_says_nothing_is_let_go_but_for_the_run_s_own_screen(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run.adopt_screen(hello=b"")
    monkeypatch.setattr(server, "HELLO_SECONDS", 0)
    stranger = run.attach_screen(hello=b"")
    assert stranger.read_to_the_end() == [{"error": "it said nothing for 0 s"}]
    own.say(HELLO)
    own.catch_up(run)


def test_sixteen_screens_watch_and_a_seventeenth_is_told_so(run: Run) -> None:
    screens = [attached(run) for _ in range(16)]
    assert run.adopt_screen().read_to_the_end() == [{"error": "16 screens watch this run already"}]
    screens[0].connection.close()
    until(lambda: run.server.viewers == 15, meanwhile=run.publish)
    attached(run)
    assert run.server.viewers == 16


def test_sixteen_connections_may_say_nothing_for_a_while(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_SECONDS", 3600.0)
    strangers = [run.attach_screen(hello=b"") for _ in range(16)]
    # Nothing is said here: whoever sends while being refused may learn of the closed end first.
    refused = run.attach_screen(hello=b"")
    assert refused.read_to_the_end() == [{"error": "too many connections say nothing; try again in a while"}]
    strangers[0].say(HELLO)
    strangers[0].catch_up(run)


def test_another_user_s_process_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = attached(run)
    monkeypatch.setattr(place, "is_ours", lambda _connection: False)
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(tmp_path / "run.sock"))
        assert Screen(other, hello=b"").read_to_the_end() == [{"error": "this run is another user's"}]
    assert run.told() == [("attached", 1), ("refused", 1)]
    run.publish(1)
    screen.catch_up(run)


OTHER_USER = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(connection.makefile().read(), end="")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_real_other_user_s_process_is_refused_even_where_the_file_lets_it_in() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        with running(folder) as run:
            command = [sys.executable, "-I", "-c", OTHER_USER, str(folder / "run.sock")]

            def as_nobody() -> subprocess.CompletedProcess[str]:
                return subprocess.run(command, capture_output=True, text=True, check=False)

            assert "PermissionError" in as_nobody().stderr
            (folder / "run.sock").chmod(0o666)
            done = as_nobody()
            assert (done.stderr, json.loads(done.stdout)) == ("", {"error": "this run is another user's"})
            assert run.told() == [("refused", 0)]
    finally:
        shutil.rmtree(folder)


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


@pytest.mark.parametrize("left", ["a dead run's", "a closed one"])
def test_a_dead_run_s_socket_is_replaced(tmp_path: Path, left: str) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "run.sock"))
    if left == "a dead run's":
        stale.listen()
    stale.close()
    with running(tmp_path) as run:
        assert run.server.trouble == ""
        run.attach_screen().catch_up(run)


def test_a_live_run_s_socket_is_not(run: Run, tmp_path: Path) -> None:
    with running(tmp_path) as second:
        assert second.server.trouble.startswith(f"cannot listen at {tmp_path / 'run.sock'}: address already")
        attached(second)
    run.attach_screen().catch_up(run)


@pytest.mark.parametrize("how", ["socket", "folder", "moved"])
def test_a_run_whose_socket_vanished_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(server, "_TICK_SECONDS", 0.02)
    folder = tmp_path / "run"
    folder.mkdir()
    with running(folder) as run:
        screen = attached(run)
        if how == "socket":
            (folder / "run.sock").unlink()
        elif how == "folder":
            shutil.rmtree(folder)
            until(lambda: run.server.trouble)
            assert run.server.trouble == (
                f"cannot listen at {folder / 'run.sock'}: no such file or directory; "
                "with XDG_RUNTIME_DIR set, screens could attach all the same"
            )
            folder.mkdir()
        else:
            (folder / "run.sock").rename(folder / "other.sock")
        until(lambda: _connects(folder))
        run.attach_screen().catch_up(run)
        run.publish(2)
        screen.catch_up(run)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder for sockets."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return runtime


def test_where_the_folder_holds_no_socket_the_user_s_folder_for_sockets_does(
    tmp_path: Path, runtime: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.sock").write_text("not ours")
    with running(folder) as run:
        assert run.server.trouble == ""
        (found,) = (runtime / "amptui").iterdir()
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
        assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
        run.attach_screen().catch_up(run)
    assert (folder / "run.sock").read_text() == "not ours"
    assert list((runtime / "amptui").iterdir()) == []


def test_a_folder_for_sockets_that_others_can_enter_is_not_used(tmp_path: Path, runtime: Path) -> None:
    (runtime / "amptui").mkdir()
    (runtime / "amptui").chmod(0o777)
    with running(tmp_path / "vanished") as run:
        path = tmp_path / "vanished" / "run.sock"
        assert run.server.trouble == f"cannot listen at {path}: no such file or directory"
        assert list((runtime / "amptui").iterdir()) == []
        attached(run)  # its own screen needs no socket


def test_no_free_descriptor_is_a_trouble_that_passes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_TICK_SECONDS", 0.02)
    screen = attached(run)
    real = place.listen

    def full(_folder: Path) -> place.Listening:
        raise RunFolderError("too many open files")

    class Full:
        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "too many open files")

        def __getattr__(self, name: str) -> Any:
            return getattr(real_socket, name)

    listening = run.server._listening
    assert listening is not None
    real_socket = listening.socket
    monkeypatch.setattr(place, "listen", full)
    run.server._listening = place.Listening(
        Full(),  # type: ignore[arg-type]
        listening.path,
        listening.device,
        listening.inode,
    )
    connect(tmp_path).close()
    until(lambda: run.server.trouble == "too many open files")
    monkeypatch.setattr(place, "listen", real)
    until(lambda: not run.server.trouble)
    run.attach_screen().catch_up(run)
    run.publish(1)
    screen.catch_up(run)


def test_closing_lets_screens_have_the_last_word(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        screens = [attached(run), run.attach_screen()]
        screens[1].catch_up(run)
        late = run.adopt_screen(hello=b"")  # it has not come to its hello when the run is over
        run.publish(5000, size=400)
        closing = threading.Thread(target=run.server.close, args=(ENOUGH_SECONDS,))
        closing.start()
        late.say(HELLO)
        for screen in (*screens, late):
            screen.read_until(lambda screen=screen: screen.known == run.known)  # type: ignore[misc]
        for screen in (*screens, late):
            screen.read_to_the_end()
        closing.join()
        assert not run.server._thread.is_alive()
        run.publish(1)  # what comes too late harms nobody
        assert run.told()[-1] == ("attached", 3)


def test_closing_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.adopt_screen(hello=b"")
        stopped = run.adopt_screen(buffer_bytes=10_000)
        stopped.catch_up(run)
        run.publish(5000, size=400)
        run.server.close(0.05)
        until(lambda: not run.server._thread.is_alive())
        known = stopped.known
        with pytest.raises(AssertionError, match="torn"):
            stopped.read_to_the_end()
        assert known == list(range(len(known)))


def test_closing_what_was_never_started_or_watched_or_published_is_harmless(tmp_path: Path) -> None:
    run = Run(tmp_path)
    screen = run.adopt_screen()
    run.server.close(ENOUGH_SECONDS)
    assert screen.read_to_the_end() == []
    run.close()
    with running(tmp_path) as run:
        screen = run.adopt_screen()
        until(lambda: run.server.viewers == 1)
        run.server.close(ENOUGH_SECONDS)
        run.server.close(ENOUGH_SECONDS)
        assert [list(line) for line in screen.read_to_the_end()] == [["hello"]]


def test_a_fault_of_the_server_is_a_trouble_and_not_the_run_s_end(tmp_path: Path) -> None:
    def broken(_change: object) -> None:
        raise ZeroDivisionError("in a callback")

    with running(tmp_path, changed=broken) as run:
        run.adopt_screen().read_to_the_end()
        until(lambda: run.server.trouble)
        assert run.server.trouble == "no screen can attach any more: ZeroDivisionError: in a callback"
        run.publish(1)
        assert run.histories == 0
        assert not (tmp_path / "run.sock").exists()


def test_a_request_that_the_run_fails_at_costs_one_screen(tmp_path: Path) -> None:
    def broken(_request: object) -> None:
        raise ZeroDivisionError("in a callback")

    with running(tmp_path, obey=broken) as run:
        good, bad = attached(run), attached(run)
        bad.say(protocol.encode(CheckpointAsked()))
        why = "the run failed to serve it: ZeroDivisionError: in a callback"
        assert bad.read_to_the_end()[-1] == {"error": why}
        run.publish(1)
        good.catch_up(run)
        assert run.server.trouble == ""


def test_the_server_sleeps_while_nothing_happens(run: Run, tmp_path: Path) -> None:
    strangers = [run.attach_screen(hello=hello) for hello in (b"", b"half a li")]
    stopped, idle = run.adopt_screen(), attached(run)
    stopped.catch_up(run)
    for _ in range(20):
        run.publish(1000, size=400)
        idle.catch_up(run)
    clock = time.pthread_getcpuclockid(run.server._thread.ident or 0)
    before = time.clock_gettime(clock)
    threading.Event().wait(0.5)
    assert time.clock_gettime(clock) - before < 0.1
    assert len(strangers) == 2


FORKS = """
import os, sys
from pathlib import Path
from amptui.runs.server import Server

def fork(_change):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
    print("forked", flush=True)

hello = {"version": "1", "pid": os.getpid(), "run_dir": sys.argv[1]}
server = Server(Path(sys.argv[1]), hello=hello, obey=print, changed=fork)
server.start()
os.read(0, 1)
"""


def test_a_worker_that_outlives_the_run_keeps_no_connection_open(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        until(lambda: _connects(tmp_path))
        connection = connect(tmp_path)
        screen = Screen(connection)
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        process.kill()
        assert process.wait() == -9
        screen.read_to_the_end()
        connection.close()
        assert not _connects(tmp_path)


def _connects(folder: Path) -> bool:
    try:
        connect(folder).close()
    except RunFolderError:
        return False
    return True
