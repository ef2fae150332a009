"""A run serves screens: each knows everything, none delays the run, and the socket is always to be found."""

import contextlib
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui import __version__
from amptui.records.control import CheckpointRequest
from amptui.records.run import FORM
from amptui.runs import protocol, server
from amptui.runs.protocol import Ask
from tests.runs.served import ENOUGH_SECONDS, HELLO, Run, Screen, attached, running, until

CHECKPOINT = protocol.encode(Ask(4, CheckpointRequest()))


def test_a_screen_gets_hello_then_the_history_then_what_is_new(run: Run) -> None:
    run.publish(3)
    screen = run.adopt_screen()
    screen.read_until(lambda: screen.histories, meanwhile=run.publish)
    run.publish(2)
    screen.read_until(lambda: len(screen.lines) == 4)
    hello = {"protocol": FORM, "version": __version__}
    assert screen.lines[:2] == [{"hello": hello}, {"history": [0, 1, 2]}]
    assert [line["text"] for line in screen.lines[2:]] == ["3 ", "4 "]
    assert run.histories == 1


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


@pytest.mark.parametrize(
    ("farewell", "change"),
    [(b'{"leave": "detached"}\n', "detached"), (b'{"leave": "hung up"}\n', "hung up"), (b"", "lost")],
)
def test_how_a_screen_left_is_told_also_with_much_unread(run: Run, farewell: bytes, change: str) -> None:
    screen = attached(run)
    run.publish(2000, size=400)
    screen.say(farewell)
    screen.connection.close()
    until(lambda: len(run.changes) == 2, meanwhile=run.publish)
    assert run.told() == [("attached", 1), (change, 0)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"request": "reboot"}', "not a request that this run knows"),
        (b'{"request": "precision", "number": 3, "precision": "fp4"}', "not a request that this run knows"),
        (b'{"request": "x-ray", "number": ' + b"9" * 5000 + b"}", "not a line of strict JSON"),
        (b'{"hello":' * 7_000, "not a line of strict JSON"),
        (b"\xff\xfe\x00", "not a line of strict JSON"),
        (HELLO.strip(), "a second hello"),
        (b"x" * 70_000, "a line of more than 65536 bytes"),
    ],
    ids=["unknown", "precision", "number", "deep", "bytes", "second hello", "long"],
)
def test_a_screen_that_talks_nonsense_is_told_and_let_go(run: Run, line: bytes, why: str) -> None:
    screen = attached(run)
    screen.say(line + b"\n")
    assert screen.read_to_the_end()[-1] == {"error": why}
    until(lambda: len(run.changes) == 2)
    assert (run.told()[1], run.changes[1].detail) == (("lost", 0), why)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (
            b'{"hello": {"protocol": 1}}\n',
            f"the run uses protocol {FORM}, the screen 1; attach with the version of amptui that started it",
        ),
        (CHECKPOINT, "the first line must be a hello"),
    ],
)
def test_who_does_not_begin_with_a_hello_of_this_version_is_refused_and_not_obeyed(
    run: Run, hello: bytes, why: str
) -> None:
    screen = run.adopt_screen(hello=hello)
    assert screen.read_to_the_end() == [{"error": why}]
    until(lambda: run.changes)
    assert (run.told(), run.changes[0].detail, run.asked) == ([("refused", 0)], why, [])


def test_who_says_nothing_is_let_go_but_for_the_run_s_own_screen(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run.adopt_screen(hello=b"")
    monkeypatch.setattr(server, "HELLO_SECONDS", 0.01)
    stranger = run.attach_screen(hello=b"")
    assert stranger.read_to_the_end() == [{"error": "no hello within 0.01 s"}]
    own.say(HELLO)
    own.catch_up(run)


def test_sixteen_screens_watch_and_a_seventeenth_is_told_so(run: Run) -> None:
    screens = [attached(run) for _ in range(16)]
    assert run.attach_screen(hello=b"").read_to_the_end() == [{"error": "16 screens are already attached"}]
    screens[0].connection.close()
    until(lambda: run.server.viewers == 15, meanwhile=run.publish)
    attached(run)
    assert run.server.viewers == 16


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
        assert run.told()[-1] == ("attached", 2)  # the run is over: nobody reads of changes after that


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
