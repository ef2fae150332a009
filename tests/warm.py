"""Command lines of amptui that start with all imported, two seconds sooner: for tests of what comes after.

The environment counts at the time of an import (colours, encodings): a test that sets it starts Python anew.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from tests.warm_source import MOST_BYTES

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
"""What tests add to their own for the programs that they start."""


PATIENCE_SECONDS = 60
"""For what takes a few seconds on an idle machine."""


class WarmSource:
    """The process that forks them: one for all tests."""

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
        assert self._socket.recv(16) == b"ready"

    def start(self, command: Sequence[str], stdin: int, stdout: int, stderr: int) -> "WarmProcess":
        """Run ``python -m amptui ...`` or ``python -c ...`` with those, in this environment and folder."""
        assert command[0] == sys.executable
        asked = {
            "arguments": command[1:],
            "environment": {**os.environ, **ENVIRONMENT},
            "folder": str(Path.cwd()),
        }
        line = json.dumps(asked).encode()
        socket.send_fds(self._socket, [line], [stdin, stdout, stderr])
        return WarmProcess(self, int(self._socket.recv(16)))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run ``amptui`` without a terminal to its end; what it said."""
        command = [sys.executable, "-m", "amptui", *arguments]
        with open(os.devnull) as nothing, TemporaryFile() as out, TemporaryFile() as err:  # noqa: PTH123
            process = self.start(command, nothing.fileno(), out.fileno(), err.fileno())
            try:
                status = process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()
            said = [os.pread(file.fileno(), MOST_BYTES, 0) for file in (out, err)]
        return subprocess.CompletedProcess(command, status, *said)

    def end_of(self, pid: int) -> int:
        """The exit status of one that has ended, once."""
        self._socket.send(json.dumps({"wait": pid}).encode())
        return int(self._socket.recv(16))

    def close(self) -> None:
        """No more of them."""
        self._socket.close()
        self._process.wait(PATIENCE_SECONDS)


class WarmProcess:
    """What was started, as :class:`subprocess.Popen` has it."""

    def __init__(self, source: WarmSource, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._source = source
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended. Raises ``subprocess.TimeoutExpired``."""
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("amptui", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """As `kill` does, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], seconds)[0]:
            os.close(self._ended)
            self.returncode = self._source.end_of(self.pid)
        return self.returncode
