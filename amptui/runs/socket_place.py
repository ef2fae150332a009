"""A run's socket, in its folder: how the run listens there, and how screens connect."""

import errno
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import FILE_MODE, is_another_users
from amptui.runs.lock import holder
from amptui.runs.rundir import reason, run_argument

SOCKET_NAME = "run.sock"

_MAX_ADDRESS_BYTES = 103 if sys.platform == "darwin" else 107
"""The longest address of a Unix socket (unix(7), on macOS unix(4))."""

STARTING_SECONDS = 30.0
"""How long a run may take from its lock to its socket; on an idle machine it takes milliseconds."""

_PATIENCE_SECONDS = 3.0
"""How long an older run is asked again: it may be ending, and a lock may bear its last holder's signature."""

_RETRY_SECONDS = 0.02

_BACKLOG = 128
"""Limit of connections waiting to be accepted; large enough that other users cannot keep a viewer out."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A listening socket and its file."""

    socket: socket.socket
    path: Path

    def close(self) -> None:
        """Stop listening, and remove the file: who holds the folder's lock has it."""
        with suppress(OSError):
            self.path.unlink()
        self.socket.close()


def listen(folder: Path) -> Listening:
    """A listening socket for the run in ``folder``, for its user alone.

    Raises ``RunFolderError`` if the folder can hold none.
    """
    path = folder.resolve() / SOCKET_NAME
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        with _address(path) as address:
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(Path(address).lstat().st_mode):
                    Path(address).unlink()  # a dead run's: this one holds the folder's lock
            # The file takes its mode from the socket; a umask would affect every thread.
            os.fchmod(listening.fileno(), FILE_MODE)
            listening.bind(address)
            listening.listen(_BACKLOG)
            return Listening(listening, path)
    except OSError as error:
        listening.close()
        hint = "screens can attach to a run in a folder of a local disk: --run-dir"
        raise RunFolderError(f"cannot listen at {path}: {reason(error)}", hint=hint) from error


class NotListeningError(RunFolderError):
    """No run listens in that folder: none is live, or one has just begun."""


def connect_to_live(folder: Path) -> socket.socket:
    """:func:`connect` to a run that holds the lock of ``folder``; one that has just begun is waited for.

    Raises ``RunFolderError`` as that does, and if the run ends meanwhile or does not listen in time.
    """
    began = time.monotonic()
    while True:
        trains = holder(folder)  # first: it may begin to listen and end meanwhile
        with suppress(NotListeningError):
            return connect(folder)
        run = run_argument(folder)
        if trains is None:
            raise RunFolderError(f"{run} has just ended", hint=f"view it with `amptui replay {run}`")
        age_seconds = time.time() - (trains.started or 0.0)
        if time.monotonic() - began >= _PATIENCE_SECONDS and not 0 <= age_seconds < STARTING_SECONDS:
            hint = f"what it has recorded: `amptui replay {run}`"
            raise RunFolderError(f"{run} is running, {trains}, but lets no screen attach", hint=hint)
        time.sleep(_RETRY_SECONDS)


def connect(folder: Path) -> socket.socket:
    """A connection to the live run in ``folder``.

    Raises ``NotListeningError`` if no run listens there, and another ``RunFolderError`` if it belongs to
    another user or is busy.
    """
    path = folder.resolve() / SOCKET_NAME
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_another_users(path):
            raise PermissionError(errno.EPERM, "it belongs to another user")
        # A suspended run accepts no connections: an error is better than waiting.
        connection.setblocking(False)
        with _address(path) as address:
            connection.connect(address)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        connection.close()
        hint = "`amptui runs` shows which runs are live"
        raise NotListeningError(f"no live run in {folder}", hint=hint) from error
    except OSError as error:
        connection.close()
        raise RunFolderError(f"cannot reach the run at {path}: {reason(error)}") from error
    connection.setblocking(True)
    return connection


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """A name for ``path`` that is short enough for a socket, however long its folder's name."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES:
        yield str(path)
        return
    if sys.platform == "darwin":  # it has no /proc
        with tempfile.TemporaryDirectory(prefix="amptui-") as private:
            link = Path(private, "d")
            link.symlink_to(path.parent.absolute())
            yield str(link / path.name)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
