"""A real HTTP server on this machine that takes what a run sends to a webhook."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

SECRET = "T0pS3cret-path"  # noqa: S105 - of tests


@dataclass(frozen=True, slots=True)
class Post:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        fields: dict[str, Any] = json.loads(self.body)
        return str(fields["text"])


class Receiver(ThreadingHTTPServer):
    """Answers with ``statuses`` in turn and then with 200; waits for ``gate`` first."""

    daemon_threads = True

    def __init__(self, statuses: Sequence[int], location: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.location = location
        self.gate = threading.Event()
        self.gate.set()
        self.posts: list[Post] = []
        self._arrival = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://user:pass-{SECRET}@127.0.0.1:{self.server_port}/{SECRET}?key={SECRET}"

    def take(self, post: Post) -> int:
        with self._arrival:
            self.posts.append(post)
            self._arrival.notify_all()
            return self.statuses.pop(0) if self.statuses else 200

    def wait_for(self, count: int) -> list[Post]:
        with self._arrival:
            arrived = self._arrival.wait_for(lambda: len(self.posts) >= count, 60)
        assert arrived, f"{len(self.posts)} of {count} requests came"
        return list(self.posts)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.take(Post(self.path, dict(self.headers), body))
        self.server.gate.wait()
        self.send_response(status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - as the base calls it

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - as above
        """Nothing on standard error."""


@contextmanager
def receiver(*statuses: int, location: str = "") -> Iterator[Receiver]:
    """A server that runs meanwhile; no proxy of the environment stands before it."""
    with pytest.MonkeyPatch.context() as patch, Receiver(statuses, location) as server:
        patch.setenv("no_proxy", "127.0.0.1")
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
