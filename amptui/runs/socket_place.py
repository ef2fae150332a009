"""Where a run's socket is: the run and its viewers try the same paths in the same order."""

import errno
import hashlib
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
from amptui.base.runfiles import FILE_MODE, FOLDER_MODE, is_another_users
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
    status: os.stat_result
    """Of the file."""

    def close(self) -> None:
        """Stop listening, and remove the file if it is still ours."""
        with suppress(OSError):
            if os.path.samestat(self.path.lstat(), self.status):
                self.path.unlink()
        self.socket.close()


def listen(folder: Path) -> Listening:
    """A listening socket for the run in ``folder``, for its user alone.

    Raises ``RunFolderError`` if neither the folder nor the user's runtime folder can hold one.
    """
    troubles = []
    for path in socket_paths(folder):
        try:
            if path.name != SOCKET_NAME:
                path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
                status = path.parent.lstat()
                is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
                if not is_private or status.st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "its folder is not private")
            return _listen_at(path)
        except OSError as error:
            troubles.append(f"cannot listen at {path}: {reason(error)}")
    hint = "" if len(troubles) > 1 else "set XDG_RUNTIME_DIR to let screens attach"
    raise RunFolderError(troubles[0], hint=hint)


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
    for path in socket_paths(folder):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if is_another_users(path):
                raise PermissionError(errno.EPERM, "it belongs to another user")
            # A suspended run accepts no connections: an error is better than waiting.
            connection.setblocking(False)
            with _address(path) as address:
                connection.connect(address)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            connection.close()
        except OSError as error:
            connection.close()
            raise RunFolderError(f"cannot reach the run at {path}: {reason(error)}") from error
        else:
            connection.setblocking(True)
            return connection
    raise NotListeningError(f"no live run in {folder}", hint="`amptui runs` shows which runs are live")


def socket_paths(folder: Path) -> list[Path]:
    """Where the socket of the run in ``folder`` may be: in it, or in the user's runtime folder."""
    home = folder.resolve()
    paths = [home / SOCKET_NAME]
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    # The XDG base directory specification says to ignore a relative path.
    if runtime.is_absolute():
        name = hashlib.sha1(os.fsencode(home), usedforsecurity=False).hexdigest()[:16]
        paths.append(runtime / "amptui" / f"{name}.sock")
    return paths


def _listen_at(path: Path) -> Listening:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        with _address(path) as address:
            _remove_stale(address)
            # The file takes its mode from the socket; a umask would affect every thread.
            os.fchmod(listening.fileno(), FILE_MODE)
            listening.bind(address)
            listening.listen(_BACKLOG)
            status = Path(address).lstat()
    except BaseException:
        listening.close()
        raise
    return Listening(listening, path, status)


def _remove_stale(address: str) -> None:
    """Remove the socket of a dead run; anything that is not a socket, or is in use, stays."""
    try:
        if not stat.S_ISSOCK(Path(address).lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            Path(address).unlink(missing_ok=True)


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
