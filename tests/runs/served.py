"""A run that is served, for tests: a session whose state is the list of what was published, and screens."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amptui.records import codec
from amptui.records.run import Note
from amptui.runs import protocol
from amptui.runs.server import Server
from amptui.runs.socket_place import connect

if TYPE_CHECKING:
    from amptui.records.answers import RequestMade

ENOUGH_SECONDS = 60.0

HELLO = protocol.encode(protocol.Hello())


def until(holds: Callable[[], object], *, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait for what has no event of its own."""
    limit = time.monotonic() + ENOUGH_SECONDS
    while not holds():
        assert time.monotonic() < limit
        meanwhile()
        time.sleep(0.002)


def note(number: int, *, size: int = 0) -> Note:
    return Note(time=float(number), severity="info", text=f"{number} ".ljust(size, "."))


def number_of(line: dict[str, Any]) -> int:
    return int(line["text"].split()[0])


class Run:
    """What a run's pump does: keep all that is known, and publish what is new."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.known: list[int] = []
        self.asked: list[RequestMade] = []
        self.histories = 0
        self.folder = folder
        self._screens: list[Screen] = []
        self.server = Server(folder, **{"handle_request": self.asked.append, **changes})

    def history(self) -> str:
        self.histories += 1
        return json.dumps(self.known)

    def publish(self, count: int = 0, *, size: int = 0) -> None:
        fresh = range(len(self.known), len(self.known) + count)
        self.known.extend(fresh)
        lines = "".join(f"{codec.dumps(note(number, size=size))}\n" for number in fresh)
        self.server.publish(lines.encode(), self.history)

    def adopt_screen(self, *, buffer_bytes: int | None = None, hello: bytes = HELLO) -> "Screen":
        ours, theirs = socket.socketpair()
        if buffer_bytes is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self.server.adopt(ours)
        return self._kept(Screen(theirs, hello=hello))

    def attach_screen(self, *, hello: bytes = HELLO) -> "Screen":
        return self._kept(Screen(connect(self.folder), hello=hello))

    def close(self) -> None:
        self.server.close(0.0)
        for screen in self._screens:
            screen.connection.close()

    def _kept(self, screen: "Screen") -> "Screen":
        self._screens.append(screen)
        return screen

    def is_served(self, *screens: "Screen") -> bool:
        """Whether the run serves no others."""
        return len(self.server._screens) == len(screens)


@contextmanager
def running(folder: Path, **changes: Any) -> Iterator[Run]:
    run = Run(folder, **changes)
    run.server.start()
    try:
        yield run
    finally:
        run.close()


class Screen:
    """A screen's bare socket, and what it knows by what it read."""

    def __init__(self, connection: socket.socket, *, hello: bytes = HELLO) -> None:
        self.connection = connection
        connection.settimeout(ENOUGH_SECONDS)
        if hello:
            self.say(hello)
        self.lines: list[dict[str, Any]] = []
        self.known: list[int] = []
        self.histories = 0
        self._begun = b""

    def say(self, data: bytes) -> None:
        self.connection.sendall(data)

    def read(self, max_bytes: int = 2**20) -> bool:
        """Take what has arrived, or wait for something; false at the end."""
        try:
            data = self.connection.recv(max_bytes)
        except ConnectionResetError:
            data = b""
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._learn(json.loads(line))
        return bool(data)

    def read_to_the_end(self) -> list[dict[str, Any]]:
        while self.read():
            pass
        assert self._begun == b"", "a torn line"
        return self.lines

    def read_until(
        self, holds: Callable[[], object], *, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Read on, while the run goes on with ``meanwhile``, until this screen learned what it should."""
        self.connection.settimeout(0.01)
        limit = time.monotonic() + ENOUGH_SECONDS
        while not holds():
            assert time.monotonic() < limit
            meanwhile()
            try:
                assert self.read(), "the run hung up"
            except TimeoutError:
                continue
        self.connection.settimeout(ENOUGH_SECONDS)

    def catch_up(self, run: Run) -> None:
        self.read_until(lambda: self.histories and self.known == run.known, meanwhile=run.publish)

    def _learn(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        if line["type"] == "History":
            self.known = list(line["state"])
            self.histories += 1
        elif line["type"] == "Note":
            self.known.append(number_of(line))


def attached(run: Run) -> Screen:
    """One more screen that is up to date."""
    screen = run.adopt_screen()
    screen.catch_up(run)
    return screen
