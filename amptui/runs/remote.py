"""A run on another machine: HOST:RUN on the command line, and the connection to it through the user's ssh.

Nothing listens on a port: ssh starts `amptui relay` on HOST, whose input and output are the connection. Its
first line is a header, strict JSON; what follows is what the run and the screen send each other.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from amptui.base import strictjson
from amptui.base.errors import AmptuiError, RemoteError, RunFolderError, UsageError
from amptui.base.fork import how_ended
from amptui.base.text import one_line, printable
from amptui.records.codec import Codec
from amptui.runs.find import live_run
from amptui.runs.rundir import default_base, expanded, run_argument
from amptui.runs.socket_place import connect_to_live

COMMAND_VARIABLE = "AMPTUI_REMOTE_COMMAND"
"""Environment variable with the command that starts amptui on HOST."""

_NAME = re.compile(r"((?:[^/:\[\]]*@)?(?:\[[^/\[\]]+\]|[^/:\[\]]+)):(.*)", re.DOTALL)
"""A host and what follows its colon; an IPv6 address stands in brackets."""

_OPTIONS = (
    # Compressed: a run's history is 50 times smaller, what follows it 5 times.
    *("-T", "-x", "-a", "-C", "-o", "RemoteCommand=none"),
    # A second connection could not bind the ports of the user's forwardings again, and nothing shall listen.
    *("-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no"),
    # ssh gives a dead connection up after three times that.
    *("-o", "ServerAliveInterval=5"),
)
"""For every connection, as scp has them but for the compression; all else is as the user configured it."""

_EXIT_SECONDS = 2.0
"""How long ssh may take to exit after it closed its output, or to send what a screen said last."""

_LAST_WORDS_SECONDS = 0.5
"""How long its last errors, already written, are waited for: a ControlPersist master may hold them open."""

_MAX_NOISE_BYTES = 64 * 1024
"""What the user's shell on HOST may print before the header."""

_MAX_ERROR_BYTES = 4096
"""The end of what ssh says that is kept."""

_MAX_QUOTED_CHARACTERS = 160

_SSH_FAILED = 255
"""The exit status of ssh itself (ssh(1)); any other is the command's on HOST."""

_NOT_FOUND = 127

_HOST_KEY = "Host key verification failed"
"""The last line of what ssh says of an unknown or changed key; the lines before it name the file."""

_MARK = "amptui-relay"

_HEADER_OPENING = f'{{"{_MARK}"'.encode("ascii")
"""How the header's line begins; what the user's shell printed without an end of line may stand before it."""

_PIECE_BYTES = 64 * 1024


def program_there() -> str:
    """How amptui starts on another machine."""
    return os.environ.get(COMMAND_VARIABLE, "") or "amptui"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """HOST:RUN."""

    host: str
    """As ssh takes it: a name of its configuration, or ``user@host``."""
    run: str
    """RUN there; empty for the newest."""

    def argument(self, run: str) -> str:
        """``HOST:RUN`` for the shell."""
        user, at, name = self.host.rpartition("@")
        return shlex.quote(f"{user}{at}{f'[{name}]' if ':' in name else name}:{run}")


def remote_of(text: str) -> Remote | None:
    """The run on another machine that ``text`` names; None if it names one here.

    As for scp and rsync, a slash before the first colon makes it a path of this machine; so does a file or a
    saved run of that name. Raises ``UsageError`` for a host that ssh would take for an option.
    """
    match = _NAME.fullmatch(text)
    # Unlike Path.exists, this returns False for a path that is too long or invalid.
    if match is None or os.path.lexists(expanded(Path(text))):
        return None
    with suppress(RunFolderError):
        if os.path.lexists(default_base() / text):
            return None
    host = match[1].replace("[", "").replace("]", "")
    if any(part.startswith("-") or not part for part in host.split("@")):
        raise UsageError(f"{host!r} is not a host", hint="write HOST:RUN or USER@HOST:RUN")
    return Remote(host=host, run=match[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line that HOST sends."""

    folder: str = ""
    """The run's, absolute; empty if ``error`` is not."""
    run: str = ""
    """RUN for a command line there."""
    error: str = ""
    """Why no run is connected, in one line with a hint."""
    status: int = 0
    """The exit status that this error has."""

    def line(self) -> bytes:
        return f"{json.dumps({_MARK: True, **asdict(self)})}\n".encode("ascii")


def read_header(line: bytes) -> Header | None:
    """The header that ends ``line``, whose texts but the folder are safe to print; None if there is none."""
    try:
        fields = strictjson.parse(line[max(0, line.find(_HEADER_OPENING)) :])
        if not isinstance(fields, dict) or _MARK not in fields:
            return None
        header = Codec[Header](Header).read(fields)
    except ValueError:
        return None
    if not (header.error or header.folder.startswith("/")):
        return None
    return replace(header, run=printable(one_line(header.run)), error=printable(one_line(header.error)))


class Ssh:
    """One ssh process that runs a command on HOST, whose input and output are ``connection``.

    What ssh and the command write to standard error is kept, never shown. Raises ``RemoteError`` where there
    is no ssh.
    """

    header: Header
    """What the relay wrote first, once :func:`connect` has read it."""

    def __init__(self, remote: Remote, arguments: list[str]) -> None:
        ssh = shutil.which("ssh")
        if ssh is None:
            raise RemoteError("there is no ssh here", hint="install OpenSSH's client")
        self.host = remote.host
        command = " ".join([program_there(), *map(shlex.quote, arguments)])
        self.connection, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the host is no option: `remote_of`
                [ssh, *_OPTIONS, remote.host, "--", command],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
            )
        except (OSError, ValueError) as error:  # ValueError: HOST's name of a run that no argument can hold
            self.connection.close()
            why = getattr(error, "strerror", "") or one_line(str(error))
            raise RemoteError(f"cannot start ssh: {printable(why)}") from error
        finally:
            theirs.close()
        self._error_text = b""
        self._noise = b""
        # ssh, and later the run, never wait for what it says to be read.
        self._errors = threading.Thread(target=self._read_errors, name="amptui-ssh-errors", daemon=True)
        self._errors.start()

    def read_header(self) -> Header:
        """Wait for the relay's first line; raise ``RemoteError`` if there is none."""
        while piece := self.connection.recv(_MAX_NOISE_BYTES, socket.MSG_PEEK):
            end = piece.find(b"\n") + 1
            # What comes before it is noise of the user's shell, what follows it is the run's.
            self._noise += self.connection.recv(end or len(piece))
            line = self._noise.rpartition(b"\n")[0].rpartition(b"\n")[2] if end else b""
            if line and (header := read_header(line)) is not None:
                return header
            if len(self._noise) > _MAX_NOISE_BYTES:
                raise RemoteError(f"{self.host} does not speak amptui's protocol: {self.last_error()}")
        raise self.trouble()

    def trouble(self) -> RemoteError:
        """Why there is no connection, or no answer, once ssh has closed it."""
        status = self._wait(_EXIT_SECONDS)
        self._errors.join(_LAST_WORDS_SECONDS)
        line, see_more = self.last_error(), f"to see more: ssh {shlex.quote(printable(self.host))}"
        if status is None or status == _SSH_FAILED or status < 0:
            why = line or ("ssh closed the connection" if status is None else f"ssh {how_ended(status)}")
            hint = see_more if _HOST_KEY in why else ""
            return RemoteError(f"cannot reach {self.host}: {why.removesuffix('.')}", hint=hint)
        if status == _NOT_FOUND or "not found" in line:
            hint = f"name it with {COMMAND_VARIABLE}, for example '~/venv/bin/amptui'"
            return RemoteError(f"{self.host} finds no amptui ({line or 'status 127'})", hint=hint)
        # amptui itself never ends well without an answer: something ended the shell before.
        exits = "a start-up file of its shell may exit; " if status == 0 else ""
        return RemoteError(
            f"{self.host} {how_ended(status)} without an answer: {line or 'no message'}",
            hint=f"{exits}{see_more}",
        )

    def last_error(self) -> str:
        """The last line of what ssh, or else the shell on HOST, said; safe to print."""
        lines: list[str] = []
        for text in (self._error_text, self._noise):
            kept = map(one_line, text.decode(errors="replace").splitlines())
            lines = lines or [line for line in kept if line and not line.startswith(("Warning: ", "debug"))]
        lines = [printable(line[:_MAX_QUOTED_CHARACTERS]) for line in lines[-2:]]
        if len(lines) > 1 and lines[-1].startswith("Connection closed by"):
            return f"{lines[-2]}; {lines[-1]}"
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Close the connection; let ssh send what it has, and end it."""
        self.connection.close()
        if self._wait(_EXIT_SECONDS) is None:
            self._process.terminate()
            if self._wait(_EXIT_SECONDS) is None:
                self._process.kill()
                self._process.wait()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None, "a pipe"
        with self._process.stderr as errors:
            while piece := os.read(errors.fileno(), _MAX_ERROR_BYTES):
                self._error_text = (self._error_text + piece)[-_MAX_ERROR_BYTES:]

    def _wait(self, seconds: float) -> int | None:
        try:
            status: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return status


def connect(remote: Remote) -> Ssh:
    """Connect to the run; ssh may ask for a password on the terminal.

    Raises ``RemoteError``, or ``UsageError`` if there is no such run.
    """
    ssh = Ssh(remote, ["relay", "--", remote.run])
    try:
        ssh.header = header = ssh.read_header()
        if header.error:
            is_usage = header.status == UsageError.exit_status
            raise (UsageError if is_usage else RemoteError)(f"{remote.host}: {header.error}")
    except BaseException:
        ssh.close()
        raise
    return ssh


def relay(text: str) -> int:
    """HOST's end: connect the run that ``text`` names until one hangs up; return the exit status."""
    try:
        folder = live_run(text).path.absolute()
        connection = connect_to_live(folder)
    except AmptuiError as error:
        refusal = Header(error=str(error), status=error.exit_status)
        with suppress(OSError):
            _write(refusal.line())
        return error.exit_status
    header = Header(folder=str(folder), run=run_argument(folder))
    with connection, suppress(OSError):  # the screen has gone
        _write(header.line())

        def send_requests() -> None:
            with suppress(OSError):
                while piece := os.read(0, _PIECE_BYTES):
                    connection.sendall(piece)
            with suppress(OSError):  # at their end, hang up
                connection.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=send_requests, daemon=True).start()
        while piece := connection.recv(_PIECE_BYTES):
            _write(piece)
    return 0


def _write(data: bytes) -> None:
    """Write all of ``data`` to standard output. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]
