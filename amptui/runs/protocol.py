"""The protocol between a run and its screens over a socket: strict JSON, one ASCII object a line.

A screen sends ``hello`` first, then its requests, and at the end how it leaves. The run answers with a
``hello`` of its own, then the ``history`` so far, and from then on the records as they are in its journal;
or with an ``error``, after which it closes the connection.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from amptui.base import strictjson
from amptui.base.text import one_line
from amptui.base.version import __version__
from amptui.records import codec
from amptui.records.codec import Codec
from amptui.records.control import KINDS, REQUESTS, Request
from amptui.records.run import FORM, Record

MAX_REQUEST_BYTES = 64 * 1024
"""Limit of a screen's line; real ones have at most a few hundred."""

MAX_LINE_BYTES = 256 * 1024**2
"""Limit of a run's line: a history has a few MiB, a record some hundred bytes."""

LeaveKind = Literal["detached", "hung up"]
"""How a screen left: on purpose, or because its terminal was closed."""


class ProtocolError(ValueError):
    """A line that breaks the protocol; the message is one short line."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first line of either end."""

    protocol: int = FORM
    version: str = __version__
    """amptui's, in its process."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A screen's request; its records have its number."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Leave:
    """A screen's last line."""

    kind: LeaveKind


@dataclass(frozen=True, slots=True)
class History:
    """A session's state at one moment, as ``Session.restore`` takes it."""

    state: Any


@dataclass(frozen=True, slots=True)
class RunError:
    """Why the run closes the connection."""

    text: str


def encode(message: Hello | Ask | Leave) -> bytes:
    """Encode a screen's message, or a run's hello, as a line."""
    match message:
        case Hello():
            return _line({"hello": asdict(message)})
        case Leave(kind):
            return _line({"leave": kind})
        case Ask(number, request):
            return _line({"request": KINDS[type(request)], "number": number, **asdict(request)})


def parse(line: bytes) -> Hello | Ask | Leave:
    """Decode a screen's ``line``. Raises ``ProtocolError``."""
    fields = _object(line)
    match fields:
        case {"hello": {"protocol": int(protocol)}}:
            return Hello(protocol)
        case {"leave": "detached" | "hung up" as kind}:
            return Leave(kind)
        case {"request": str(kind)}:
            try:
                request = _REQUESTS[kind].read(fields)
            except (KeyError, ValueError) as error:
                raise ProtocolError("not a request that this run knows") from error
            number = fields.get("number")
            if type(number) is not int or number < 0:
                raise ProtocolError("a request has a number")
            return Ask(number, request)
    raise ProtocolError("neither a hello nor a request nor a farewell")


def history_line(state: str) -> bytes:
    """Encode a session's state, which is JSON already, as a run's line."""
    return f'{{"history":{state}}}\n'.encode()


def error_line(text: str) -> bytes:
    """Encode a run's last line to a screen that it refuses."""
    return _line({"error": text})


def read(line: bytes) -> Hello | History | RunError | Record:
    """Decode a run's ``line``. Raises ``ProtocolError``."""
    if line.startswith(b'{"type":'):
        try:
            return codec.loads(line)
        except ValueError as error:
            raise ProtocolError(f"not a record: {error}") from error
    match _object(line):
        case {"history": state}:
            return History(state)
        case {"error": str(text)}:
            return RunError(one_line(text))
        case {"hello": {"protocol": int(protocol), "version": str(version)}}:
            return Hello(protocol, version)
    raise ProtocolError("neither a hello nor a history nor a record")


class Lines:
    """Assembles the pieces that arrive at a socket into lines of at most ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def take(self, piece: bytes) -> list[bytes]:
        """The lines that end in ``piece``, without their ends. Raises ``ProtocolError`` for one too long."""
        end = piece.rfind(b"\n") + 1
        lines = []
        if end:
            *lines, _ = b"".join([*self._begun, piece[:end]]).split(b"\n")
            self._begun, self._begun_bytes = [], 0
        self._begun.append(piece[end:])
        self._begun_bytes += len(piece) - end
        if max(self._begun_bytes, *map(len, lines), 0) > self._max_bytes:
            raise ProtocolError(f"a line of more than {self._max_bytes} bytes")
        return lines


def _line(content: Mapping[str, Any]) -> bytes:
    return f"{strictjson.dumps(strictjson.plain(content))}\n".encode()


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = strictjson.parse(line, max_bytes=MAX_LINE_BYTES)
    except ValueError as error:
        raise ProtocolError("not a line of strict JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


_REQUESTS: Mapping[str, Codec[Request]] = {kind: Codec(request) for kind, request in REQUESTS.items()}
