"""Opens the files of a run's folder: regular files only, never through a link, new ones for this user alone.

Somebody else may have prepared the folder: a symbolic link could lead to any file, and opening a FIFO would
wait forever. Only the last part of a path is checked: the path to the folder itself may contain links.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

FILE_MODE = 0o600
"""Mode of new files in a run's folder."""

FOLDER_MODE = 0o700

_ALWAYS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

LINK = "a symbolic link, and none is followed here"
"""The reason in an error about one."""


class OwnFolder:
    """The folder of a live run, known by its identity: its path may come to mean another folder.

    Raises OSError. Used by any thread.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._identity = path, path.stat()

    def claim(self) -> None:
        """To be called before anything is written or removed there: raise OSError if it is another folder."""
        if not os.path.samestat(self._path.stat(), self._identity):
            raise OSError(errno.ESTALE, "another folder has taken its place", str(self._path))


def open_file(path: Path | str, flags: int, *, folder: int | None = None) -> int:
    """Open the file ``path`` with ``flags`` and return its descriptor; ``path`` may be a name in ``folder``.

    Raises OSError, also if ``path`` is not a regular file.
    """
    try:
        descriptor = os.open(path, flags | _ALWAYS, FILE_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, LINK, str(path)) from error
        if error.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            raise OSError(errno.ENXIO, "not a regular file", str(path)) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def open_to_read(path: Path | str, *, folder: int | None = None) -> BinaryIO:
    """Open ``path`` for reading. Raises OSError as :func:`open_file` does."""
    return os.fdopen(open_file(path, os.O_RDONLY, folder=folder), "rb")


def open_to_append(path: Path) -> BinaryIO:
    """Open ``path`` for unbuffered appending; it is created if missing. Raises OSError."""
    return os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def open_new(path: Path | str, *, folder: int | None = None) -> int:
    """Create an empty file at ``path`` for reading and appending, and return its descriptor.

    An existing file of that name, left by a killed process, or a link is removed first. Raises OSError.
    """
    with suppress(FileNotFoundError):
        os.unlink(path, dir_fd=folder)
    return open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, folder=folder)


def temporary_beside(path: Path) -> Path:
    """A name in the folder of ``path`` that no other process takes, on any machine, and nobody foresees."""
    return path.with_name(f".amptui-{os.urandom(8).hex()}.tmp")


def replace_text(path: Path, text: str) -> None:
    """Write ``path`` as a whole or not at all: readers see the old file or the new one. Raises OSError."""
    temporary = temporary_beside(path)
    try:
        with os.fdopen(open_new(temporary), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Open the folder ``path`` in a run's folder, so that nobody can replace it by a link meanwhile.

    Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _ALWAYS)
    except NotADirectoryError as error:
        if path.is_symlink():
            raise OSError(errno.ELOOP, LINK, str(path)) from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(path: Path) -> list[str]:
    """The names in the folder ``path`` in a run's folder; empty if it cannot be read."""
    try:
        with opened_folder(path) as folder:
            return os.listdir(folder)  # noqa: PTH208 - a descriptor, not a path
    except OSError:
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What of a run's folder is removed, or would be."""

    folder: Path
    journals: int = 0
    checkpoints: int = 0
    other_files: int = 0
    size_bytes: int = 0
    files: tuple[str, ...] = ()
    """Their paths in the folder, but for its lock's."""
    left: tuple[str, ...] = ()
    """Names in the folder that are not the run's: they stay, and so does the folder."""
    restart_seconds: float | None = None
    """For how long it has written nothing, if a launcher restarts its ranks and it did not end as asked."""
