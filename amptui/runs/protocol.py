"""The protocol between a run and its screens over a socket: strict JSON, one ASCII object a line.

A screen sends a ``Hello`` first, then its requests, which are records. The run answers with a ``Hello`` of
its own, then the ``History`` so far, and from then on the records as they are in its journal; or with a
``RunError``, after which it closes the connection.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

from amptui.base import strictjson
from amptui.base.version import __version__
from amptui.records import codec
from amptui.records.answers import RequestMade
from amptui.records.codec import Codec
from amptui.records.run import FORM, PRECISIONS, Record

MAX_REQUEST_BYTES = 64 * 1024
"""Limit of a screen's line; real ones have at most a few hundred."""

MAX_LINE_BYTES = 256 * 1024**2
"""Limit of a run's line: a history has a few MiB, a record some hundred bytes."""


class ProtocolError(ValueError):
    """A line that breaks the protocol; the message is one short line."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first line of either end."""

    protocol: int = FORM
    version: str = __version__
    """amptui's, in its process."""


@dataclass(frozen=True, slots=True)
class History:
    """A session's state at one moment, as ``Session.restore`` takes it."""

    state: Any


@dataclass(frozen=True, slots=True)
class RunError:
    """Why the run closes the connection."""

    text: str


Message = Hello | RequestMade | RunError

_MESSAGES: Codec[Message] = Codec(Message)


def encode(message: Message) -> bytes:
    """Encode a message of either end as a line."""
    return f"{_MESSAGES.dumps(message)}\n".encode()


def parse(line: bytes) -> Message:
    """Decode a screen's ``line``. Raises ``ProtocolError``."""
    try:
        message = _MESSAGES.read(strictjson.parse(line))
        if not isinstance(message, RequestMade):
            return message
        precisions = (message.precision,) if message.kind == "precision" else message.precisions
        if not set(precisions) <= set(PRECISIONS):
            raise ValueError("no such precision")
        count = len(precisions)
        if len(set(precisions)) != count or (message.kind == "comparison" and count == 1):
            raise ValueError("a comparison needs two or more different precisions")
    except ValueError as error:
        raise ProtocolError("not a message that this run knows") from error
    return replace(message, time=time.time())  # of this machine's clock


def history_line(state: str) -> bytes:
    """Encode a session's state, which is JSON already, as a run's line."""
    return f'{{"type":"History","state":{state}}}\n'.encode()


def read(line: bytes) -> Hello | History | RunError | Record:
    """Decode a run's ``line``. Raises ``ProtocolError``."""
    try:
        match line[:32].partition(b",")[0]:
            case b'{"type":"History"':
                return History(strictjson.parse(line, max_bytes=MAX_LINE_BYTES)["state"])
            case b'{"type":"Hello"' | b'{"type":"RunError"':
                return _MESSAGES.read(strictjson.parse(line))
            case _:
                return codec.loads(line)
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"not a line of a run: {error}") from error
