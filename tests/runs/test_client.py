"""A screen's connection: what the run tells is folded in order, and what is asked never waits."""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError
from amptui.process.followers import Follower
from amptui.records.answers import REQUEST_KINDS, RequestMade
from amptui.records.control import Control
from amptui.records.run import FORM, Note, Record, RunFailed, RunFinished
from amptui.runs import protocol, socket_place
from amptui.runs.protocol import RunError
from amptui.runs.socket_place import connect
from amptui.telemetry.session import Session
from tests.runs.served import ENOUGH_SECONDS, Run, note, running, until
from tests.runs.test_journal import line

FINISHED = RunFinished(time=9.0, steps=3, seconds=1.0, reason="done")
UNEXPECTED_EXIT = "the training process exited unexpectedly"
FAILED = RunFailed(time=9.0, step=3, error="out of memory", traceback="")
ONE_OF_EACH: list[RequestMade] = [
    *(
        RequestMade("precision", precision="bf16"),
        RequestMade("pause", paused=True),
        RequestMade("x-ray"),
        RequestMade("trace"),
        RequestMade("histogram"),
    ),
    *(
        RequestMade("comparison", precisions=("fp32", "bf16")),
        RequestMade("checkpoint"),
        RequestMade("stop", reason="SIGTERM"),
    ),
]
RUN_HELLO = protocol.encode(protocol.Hello(version="1.2"))


def history(*numbers: int) -> bytes:
    """What a run sends first in which these have been noted."""
    session = Session("run")
    session.fold([note(number) for number in numbers])
    return protocol.history_line(session.state())


class Watching(Follower):
    """A client that knows where the run goes on, and what it has left."""

    def __init__(
        self,
        connection: socket.socket,
        reconnect: Callable[[], socket.socket | None] = lambda: None,
        recorded: Callable[[], Iterable[Record]] = tuple,
    ) -> None:
        self._next, self._journal = reconnect, recorded
        super().__init__(connection, "run")

    @property
    def known(self) -> list[int]:
        """The numbers of the notes that its session has."""
        abouts = [event.about for event in self.session.view().events]
        return sorted(int(about.text.split()[0]) for about in abouts if isinstance(about, Note))

    def connect_again(self) -> socket.socket | None:
        return self._next()

    def recorded(self) -> Iterable[Record]:
        return self._journal()


class Scripted:
    """A run of which the test says every byte."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.connection.settimeout(ENOUGH_SECONDS)
        self.recorded: Sequence[Record] = ()
        self.watching = Watching(theirs, recorded=lambda: self.recorded)

    def tell(self, *pieces: bytes, end: bool = True) -> Watching:
        """Say ``pieces`` to the started client, and hang up."""
        self.watching.start()
        for piece in pieces:
            self.connection.sendall(piece)
        if end:
            self.connection.close()
            assert self.watching.ended.wait(ENOUGH_SECONDS)
        return self.watching


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.connection.close()
    scripted.watching.leave(ENOUGH_SECONDS)


@pytest.mark.parametrize(
    ("said", "recorded", "known", "error"),
    [
        ((), [note(1), note(2), FAILED], [1, 2], ""),
        ((RUN_HELLO,), [note(1), FAILED], [1], ""),
        ((), [note(1)], [1], UNEXPECTED_EXIT),
        ((RUN_HELLO, history(1, 2)), [note(1), FAILED], [1, 2], UNEXPECTED_EXIT),
    ],
)
def test_a_run_that_is_over_before_it_sends_its_history_is_known_from_its_journal(
    scripted: Scripted, said: tuple[bytes, ...], recorded: list[Record], known: list[int], error: str
) -> None:
    scripted.recorded = recorded
    watching = scripted.tell(*said)
    assert watching.known == known
    assert watching.error == error
    assert (watching.session.view().outcome == FAILED) == (not error)


def test_a_lost_connection_is_followed_by_one_to_the_run_that_was_started_again() -> None:
    first, of_first = socket.socketpair()
    second, of_second = socket.socketpair()
    following = [of_second]
    watching = Watching(of_first, lambda: following.pop() if following else None)
    with first, second:
        watching.ask(RequestMade("stop", reason="SIGTERM"))
        watching.start()
        first.sendall(RUN_HELLO + history(1, 2))
        until(lambda: watching.known == [1, 2])
        first.close()
        second.sendall(RUN_HELLO + history(1, 2, 3) + line(note(4)))
        until(lambda: watching.known == [1, 2, 3, 4])
        assert not watching.ended.is_set()
        said = [protocol.parse(each) for each in second.recv(1 << 16).splitlines()]
        assert [type(each) for each in said] == [protocol.Hello, RequestMade]
        second.close()
        assert watching.ended.wait(ENOUGH_SECONDS)
    watching.leave(ENOUGH_SECONDS)
    assert watching.error == UNEXPECTED_EXIT


def test_lines_that_are_no_records_are_left_out(scripted: Scripted) -> None:
    odd = b'{"type": "OfLater", "time": 1}\n\xff\xfe\n\n{"type":"Note"}\n{"type":' + b"[" * 50_000 + b"\n"
    odd += b'{"type":"Hello","protocol":"x"}\n{"of": "later"}\n'
    watching = scripted.tell(RUN_HELLO, history(), odd, line(note(0)), b"{torn")
    assert watching.known == [0]


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ([RUN_HELLO, history(), line(FINISHED)], ""),
        ([RUN_HELLO, history(), line(FAILED)], ""),
        ([RUN_HELLO, history(), line(note(0))], UNEXPECTED_EXIT),
        ([RUN_HELLO], UNEXPECTED_EXIT),
        ([], "the run ended before it sent anything"),
        ([protocol.encode(RunError("another run is training there"))], "another run is training there"),
        ([RUN_HELLO, protocol.encode(RunError("too\nlong"))], "too long"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "not an amptui run"),
        ([history()], "not an amptui run"),
        (
            [RUN_HELLO.replace(f'"protocol":{FORM}'.encode(), b'"protocol":1')],
            f"the run uses protocol 1, this amptui {FORM}; attach with amptui 1.2",
        ),
        (
            [RUN_HELLO, protocol.history_line("[]")],
            (
                "this amptui cannot read the run's state: "
                "Session: expected an object, not list; attach with amptui 1.2"
            ),
        ),
    ],
)
def test_how_a_connection_ended_is_known(scripted: Scripted, told: list[bytes], error: str) -> None:
    watching = scripted.tell(*told)
    assert watching.error == error
    assert not watching.send(b"too late\n")


def test_every_request_reaches_the_control_of_the_run_under_its_number(tmp_path: Path) -> None:
    control = Control()
    reached: list[RequestMade] = []
    assert {request.kind for request in ONE_OF_EACH} == REQUEST_KINDS

    def obey(request: RequestMade) -> None:
        reached.append(request)
        control.ask(request)

    with running(tmp_path, handle_request=obey):
        watching = Watching(connect(tmp_path))
        numbers = [watching.ask(request) for request in ONE_OF_EACH]
        until(lambda: len(reached) == len(ONE_OF_EACH))
        watching.leave(ENOUGH_SECONDS)
    assert [
        replace(made, time=asked.time) for made, asked in zip(reached, ONE_OF_EACH, strict=True)
    ] == ONE_OF_EACH
    assert numbers == [request.number for request in ONE_OF_EACH]
    assert control.stop_reason == watching.stop_reason == "SIGTERM"
    # A stop may be a signal's, in the middle of anything: the screen knows it by its reason.
    assert [(made.kind, made.number) for made in watching.session.view().pending] == [
        (request.kind, request.number) for request in reached if request.kind != "stop"
    ]


def test_what_the_run_will_not_hear_is_no_request(scripted: Scripted) -> None:
    scripted.watching.leave(ENOUGH_SECONDS)
    number = scripted.watching.ask(RequestMade("x-ray"))
    view = scripted.watching.session.view()
    assert view.pending == ()
    assert [(each.request.number, each.request.kind) for each in view.answers] == [(number, "x-ray")]


def test_a_run_that_hears_nothing_delays_no_key_and_hears_it_all_later(scripted: Scripted) -> None:
    watching = scripted.tell(RUN_HELLO, history(), end=False)
    sent = 0
    while watching.send(f"{sent:0999}\n".encode()):
        sent += 1
    assert sent > 50
    expected = protocol.encode(protocol.Hello()) + b"".join(f"{n:0999}\n".encode() for n in range(sent))
    heard = b""
    while len(heard) < len(expected):
        heard += scripted.connection.recv(2**20)
    assert heard == expected
    until(lambda: watching.send(b"again\n"))


def test_a_run_that_cannot_be_reached_is_told_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent"
    assert unreachable(absent) == f"no live run in {absent}; `amptui runs` shows which runs are live"
    monkeypatch.setattr(socket_place, "is_another_users", lambda _path: True)
    assert unreachable(run.folder).endswith("run.sock: it belongs to another user")


def unreachable(folder: Path) -> str:
    with pytest.raises(RunFolderError) as caught:
        connect(folder)
    return str(caught.value)
