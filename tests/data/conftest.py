"""Fixtures of the data tests: a web server of our own that misbehaves on demand, and a recording request."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from amptui.data.sources import DataRequest, Progress


@dataclass
class Web:
    """A server on this machine; ``answers`` maps a path to what it does with a request."""

    url: str
    answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def serve(self, path: str, content: bytes, *, length: int | None = None) -> str:
        """Answer with ``content``, announcing ``length`` bytes."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(content) if length is None else length))
            handler.end_headers()
            handler.wfile.write(content)

        self.answers[path] = answer
        return self.url + path

    def stall(self, path: str, content: bytes = b"") -> str:
        """Send ``content`` of a longer file and then nothing; without content, not even the headers."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            if content:
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(content) + 1))
                handler.end_headers()
                handler.wfile.write(content)
            self.closing.wait(120)

        self.answers[path] = answer
        return self.url + path


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            here.asked.append(path)
            answer = here.answers.get(path)
            if answer is None:
                self.send_error(404)
            else:
                answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Web(f"http://127.0.0.1:{server.server_address[1]}/")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield here
    here.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Watched:
    """A request and what it was told."""

    request: DataRequest
    reports: list[Progress]
    warnings: list[str]
    stop: threading.Event


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Watched]:
    def make(kind: str = "auto") -> Watched:
        stop, reports, warnings = threading.Event(), list[Progress](), list[str]()
        request = DataRequest(
            data_dir=tmp_path / "data",
            kind=kind,  # type: ignore[arg-type]  # the tests name the three kinds
            report=reports.append,
            stopping=stop.is_set,
            warn=warnings.append,
        )
        return Watched(request, reports, warnings, stop)

    return make
