"""Command lines of amptui that start with all imported, two seconds sooner: for tests of what comes after.

The environment counts at the time of an import (colours, encodings): a test that sets it starts Python anew.
"""

import fcntl
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

from tests.warm_source import MAX_BYTES

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
"""What tests add to their own for the programs that they start."""


PATIENCE_SECONDS = 60
"""For what takes a few seconds on an idle machine."""


class WarmSource:
    """The process that forks them: one for all tests.

    Where importing torch leaves native threads behind, which a fork does not take along, each is started anew
    and takes two seconds longer.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_source"],
            stdin=theirs.fileno(),
            env={**os.environ, **ENVIRONMENT},
            cwd=ROOT,
            start_new_session=True,
        )
        theirs.close()
        self._socket.settimeout(PATIENCE_SECONDS)
        said = self._socket.recv(16)
        assert said in (b"ready", b"threads"), f"tests.warm_source ended with {self._process.wait()}"
        self.forks = said == b"ready"

    def start(
        self,
        command: Sequence[str],
        stdin: int,
        stdout: int,
        stderr: int,
        environment: Mapping[str, str] = os.environ,
    ) -> "Process":
        """Run ``python -m amptui ...`` or ``python -c ...`` with those, in this environment and folder."""
        assert command[0] == sys.executable
        whole = {**environment, **ENVIRONMENT}
        if not self.forks:
            return start_anew(command, stdin, stdout, stderr, whole)
        asked = {"arguments": command[1:], "environment": whole, "folder": str(Path.cwd())}
        line = json.dumps(asked).encode()
        socket.send_fds(self._socket, [line], [stdin, stdout, stderr])
        return WarmProcess(self, int(self._socket.recv(16)))

    def run(
        self, *arguments: str, module: str = "amptui", seconds: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``amptui``, or another module, without a terminal to its end, in time; what it said."""
        command = [sys.executable, "-m", module, *arguments]
        with open(os.devnull) as nothing, TemporaryFile() as out, TemporaryFile() as err:  # noqa: PTH123
            process = self.start(command, nothing.fileno(), out.fileno(), err.fileno())
            try:
                status = process.wait(seconds)
            finally:
                process.kill()
            said = [os.pread(file.fileno(), MAX_BYTES, 0) for file in (out, err)]
        return subprocess.CompletedProcess(command, status, *said)

    def status_of(self, pid: int) -> int | None:
        """The exit status of one that has ended, once; None while it runs."""
        self._socket.send(json.dumps({"status": pid}).encode())
        status = self._socket.recv(16)
        return int(status) if status != b"runs" else None

    def close(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE_SECONDS)


class WarmProcess:
    """What was started, as :class:`subprocess.Popen` has it."""

    def __init__(self, source: WarmSource, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._source = source

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._source.status_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended. Raises ``subprocess.TimeoutExpired``."""
        limit = math.inf if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired("amptui", timeout or 0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """As `kill` does, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = WarmProcess | subprocess.Popen[bytes]


class PipedProcess:
    """A process and the pipes of its output, as :class:`subprocess.Popen` has them."""

    def __init__(self, process: Process, out: int, err: int) -> None:
        self._process, self._ends = process, (out, err)
        self.pid = process.pid
        self.poll, self.wait = process.poll, process.wait
        self.send_signal, self.kill = process.send_signal, process.kill

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for end in self._ends:
            os.close(end)
        self.wait(PATIENCE_SECONDS)

    @property
    def returncode(self) -> int | None:
        """The exit status; None as long as nobody has asked for it."""
        return self._process.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it said, once it and all that it started have ended. Raises ``subprocess.TimeoutExpired``."""
        limit, said, left = time.monotonic() + timeout, dict.fromkeys(self._ends, b""), set(self._ends)
        while left:
            ready, _, _ = select.select(left, [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired("amptui", timeout)
            for end in ready:
                data = os.read(end, MAX_BYTES)
                said[end] += data
                if not data:
                    left.remove(end)
        self.wait(max(0.0, limit - time.monotonic()))
        out, err = (said[end].decode() for end in self._ends)
        return out, err


def start_anew(
    command: Sequence[str], stdin: int, stdout: int, stderr: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a program as a shell does: it leads a session, on a terminal if it was given one."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - one call, which takes no lock
    )


def _take_terminal() -> None:
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def start_piped(
    command: Sequence[str], warm: WarmSource, environment: Mapping[str, str] = os.environ
) -> PipedProcess:
    """Run it without a terminal; what it says comes through pipes."""
    (out, its_out), (err, its_err) = os.pipe(), os.pipe()
    with open(os.devnull) as nothing:  # noqa: PTH123
        process = warm.start(command, nothing.fileno(), its_out, its_err, environment)
    os.close(its_out)
    os.close(its_err)
    return PipedProcess(process, out, err)
