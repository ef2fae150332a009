"""HOST's end of `amptui attach HOST:RUN`: connects standard input and output to a run's socket.

The first line is a header, strict JSON. What follows is what the run and the screen send each other.
"""

import json
import os
import re
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from amptui.base import strictjson
from amptui.base.errors import AmptuiError
from amptui.base.text import one_line, printable
from amptui.base.version import __version__
from amptui.records.codec import Codec
from amptui.runs.find import live_run
from amptui.runs.rundir import run_argument
from amptui.runs.socket_place import connect_to_live

_MARK = "amptui-relay"

_OPENING = f'{{"{_MARK}"'.encode("ascii")
"""How the header's line begins; what the user's shell printed without an end of line may stand before it."""

_PIECE_BYTES = 64 * 1024

_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line that HOST sends."""

    version: str
    """amptui's, there."""
    folder: str = ""
    """The run's, absolute; empty if ``error`` is not."""
    run: str = ""
    """RUN for a command line there."""
    error: str = ""
    """Why no run is connected, in one line with a hint."""
    status: int = 0
    """The exit status that this error has."""

    def line(self) -> bytes:
        """As it is sent."""
        return f"{json.dumps({_MARK: True, **asdict(self)})}\n".encode("ascii")


_CODEC: Codec[Header] = Codec(Header)


def read_header(line: bytes) -> Header | None:
    """The header that ends ``line``, whose texts but the folder are safe to print; None if there is none."""
    try:
        fields = strictjson.parse(line[max(0, line.find(_OPENING)) :])
        if not isinstance(fields, dict) or _MARK not in fields:
            return None
        header = _CODEC.read(fields)
    except ValueError:
        return None
    if not (header.error or header.folder.startswith("/")) or not _VERSION.fullmatch(header.version):
        return None
    return replace(header, run=printable(one_line(header.run)), error=printable(one_line(header.error)))


def relay(text: str) -> int:
    """Connect the run that ``text`` names; return the exit status once the run or the screen hangs up."""
    try:
        folder = live_run(text).path.absolute()
        connection = connect_to_live(folder)
    except AmptuiError as error:
        refusal = Header(version=__version__, error=str(error), status=error.exit_status)
        with suppress(OSError):
            _write(refusal.line())
        return error.exit_status
    header = Header(version=__version__, folder=str(folder), run=run_argument(folder))
    with connection, suppress(OSError):  # the screen has gone
        _write(header.line())
        threading.Thread(target=_send_requests, args=(connection,), daemon=True).start()
        while piece := connection.recv(_PIECE_BYTES):
            _write(piece)
    return 0


def _send_requests(connection: socket.socket) -> None:
    """Pass on what the screen sends; at its end, hang up."""
    with suppress(OSError):
        while piece := os.read(0, _PIECE_BYTES):
            connection.sendall(piece)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _write(data: bytes) -> None:
    """Write all of ``data`` to standard output. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]
