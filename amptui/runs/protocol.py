"""What a run and its screens say to each other over a socket: strict JSON, one ASCII object a line.

A screen says ``hello`` first, then what it asks for, and how it leaves. The run answers with a ``hello`` of
its own, the ``history`` of all that was, and from then on the records as they are in its journal; or with
an ``error``, after which it hangs up.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from amptui import wire
from amptui.control import Control, Probe
from amptui.records import PRECISIONS, Record

PROTOCOL = 1
"""Counted up when a screen of the version before could not follow any more."""

MOST_REQUEST_BYTES = 64 * 1024
"""A screen's line; the longest that is ever sent has some hundred."""

MOST_LINE_BYTES = 256 * 1024**2
"""A run's line: a history has a few MiB, a record some hundred bytes."""

MOST_REASON_CHARACTERS = 200

_MOST_ERROR_CHARACTERS = 500

LeaveKind = Literal["detached", "hung up"]
"""How a screen left that could still say so: on purpose, or because its terminal was closed."""


class ProtocolError(ValueError):
    """A line that nobody who speaks this protocol would send; its text is one short line."""


@dataclass(frozen=True, slots=True)
class PrecisionAsked:
    """The steps to come shall run in ``precision``."""

    precision: str

    def __post_init__(self) -> None:
        _check_precision(self.precision)


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """Training shall stand still, or go on."""

    paused: bool

    def __post_init__(self) -> None:
        _check(type(self.paused) is bool, "paused is true or false")


@dataclass(frozen=True, slots=True)
class ProbeAsked:
    """A measurement with the next step."""

    probe: Probe

    def __post_init__(self) -> None:
        _check(self.probe in get_args(Probe), "no such probe")


@dataclass(frozen=True, slots=True)
class ComparisonAsked:
    """These precisions shall run in turns; none of them ends a comparison."""

    precisions: tuple[str, ...]

    def __post_init__(self) -> None:
        for precision in self.precisions:
            _check_precision(precision)
        several = len(set(self.precisions)) == len(self.precisions) != 1
        _check(several, "a comparison needs two or more different precisions")


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """A checkpoint after this step."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A clean end after this step."""

    reason: str

    def __post_init__(self) -> None:
        _check(type(self.reason) is str, "a reason is text")
        _check(len(self.reason) <= MOST_REASON_CHARACTERS, "the reason is too long")


Request = PrecisionAsked | PauseAsked | ProbeAsked | ComparisonAsked | CheckpointAsked | StopAsked
"""What a screen can ask of a run."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A screen's first line."""

    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class Leave:
    """A screen's last line."""

    kind: LeaveKind


@dataclass(frozen=True, slots=True)
class RunHello:
    """A run's first line."""

    protocol: int
    version: str
    """amptui's, in the run's process."""
    pid: int
    run_dir: str


@dataclass(frozen=True, slots=True)
class History:
    """All that a session knew at one moment, as ``Session.restore`` takes it."""

    state: Any


@dataclass(frozen=True, slots=True)
class RunError:
    """Why the run hangs up."""

    text: str


def apply(request: Request, control: Control) -> None:
    """Ask ``control`` for what a screen asked for."""
    match request:
        case PrecisionAsked(precision):
            control.request_precision(precision)
        case PauseAsked(paused):
            control.request_pause(paused)
        case ProbeAsked(probe):
            control.request_probe(probe)
        case ComparisonAsked(precisions):
            control.request_comparison(precisions)
        case CheckpointAsked():
            control.request_checkpoint()
        case StopAsked(reason):
            control.request_stop(reason)


def encode(said: Hello | Request | Leave) -> bytes:
    """A screen's line."""
    match said:
        case Hello(protocol):
            return _line({"hello": {"protocol": protocol}})
        case Leave(kind):
            return _line({"leave": kind})
    return _line({"request": _NAMES[type(said)], **asdict(said)})


def parse(line: bytes) -> Hello | Request | Leave:
    """What a screen said in ``line``. Raises ``ProtocolError``."""
    said = _object(line)
    match said:
        case {"hello": {"protocol": int(protocol)}}:
            return Hello(protocol)
        case {"leave": "detached" | "hung up" as kind}:
            return Leave(kind)
        case {"request": str(name)}:
            return _request(name, said)
    raise ProtocolError("neither a hello nor a request nor a farewell")


def hello_line(hello: Mapping[str, Any]) -> bytes:
    """A run's first line."""
    return _line({"hello": {"protocol": PROTOCOL, **hello}})


def history_line(state: str) -> bytes:
    """A session's state, which is JSON already, as a run's line."""
    return b'{"history":' + state.encode("ascii") + b"}\n"


def error_line(text: str) -> bytes:
    """A run's last line to a screen that it does not serve."""
    return _line({"error": text})


def read(line: bytes) -> RunHello | History | RunError | Record | None:
    """What a run said in ``line``; None for a record of a later version. Raises ``ProtocolError``."""
    if line.startswith(b'{"type":'):
        return _record(line)  # the short way for most lines: parsed once
    match _object(line):
        case {"history": state}:
            return History(state)
        case {"error": str(text)}:
            return RunError(" ".join(text.split())[:_MOST_ERROR_CHARACTERS])
        case {
            "hello": {
                "protocol": int(protocol),
                "version": str(version),
                "pid": int(pid),
                "run_dir": str(run_dir),
            }
        }:
            return RunHello(protocol, version, pid, run_dir)
        case {"type": _}:
            return _record(line)
    raise ProtocolError("neither a hello nor a history nor a record")


class Lines:
    """Puts the pieces that a socket gives together to lines of at most ``most_bytes``."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
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
        if max(self._begun_bytes, *map(len, lines), 0) > self._most_bytes:
            raise ProtocolError(f"a line of more than {self._most_bytes} bytes")
        return lines


def _line(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(wire.plain(content), allow_nan=False, separators=(',', ':'))}\n".encode("ascii")


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = wire.parse(line.decode("ascii"), max_bytes=MOST_LINE_BYTES)
    except ValueError as error:
        raise ProtocolError("not a line of strict JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


def _record(line: bytes) -> Record | None:
    try:
        return wire.loads(line.decode("ascii"))
    except ValueError as error:
        raise ProtocolError(f"not a record: {error}") from error


def _request(name: str, said: Mapping[str, Any]) -> Request:
    match name, said:
        case "precision", {"precision": precision}:
            return PrecisionAsked(precision)
        case "pause", {"paused": paused}:
            return PauseAsked(paused)
        case "probe", {"probe": probe}:
            return ProbeAsked(probe)
        case "comparison", {"precisions": [*precisions]}:
            return ComparisonAsked(tuple(precisions))
        case "checkpoint", _:
            return CheckpointAsked()
        case "stop", {"reason": reason}:
            return StopAsked(reason)
    raise ProtocolError("not a request that this run knows")


_NAMES: Mapping[type, str] = {
    PrecisionAsked: "precision",
    PauseAsked: "pause",
    ProbeAsked: "probe",
    ComparisonAsked: "comparison",
    CheckpointAsked: "checkpoint",
    StopAsked: "stop",
}


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ProtocolError(otherwise)


def _check_precision(precision: object) -> None:
    _check(isinstance(precision, str) and precision in PRECISIONS, "no such precision")
