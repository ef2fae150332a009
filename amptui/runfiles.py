"""Opens the files of a run's folder: never through a link, regular files only, new ones for this user alone.

A run's folder may be one that somebody else prepared. Every file in it is opened here, by its last name: a
symbolic link would lead to a file elsewhere, and opening a FIFO would wait for ever. The folder itself may be
reached by links: its user named it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

FILE_MODE = 0o600
"""Of what is made in a run's folder. A umask can only take away from it."""

FOLDER_MODE = 0o700

_ALWAYS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

LINK = "a symbolic link, and none is followed here"
"""What is said of one."""


def open_file(path: Path | str, flags: int, *, folder: int | None = None) -> int:
    """A descriptor of the file ``path``, opened with ``flags``; ``path`` may be a name in ``folder``.

    Raises OSError, also where ``path`` is no regular file, and for writing where the file has a second name:
    what is written here would change there as well.
    """
    try:
        descriptor = os.open(path, flags | _ALWAYS, FILE_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, LINK, str(path)) from error
        if error.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            raise OSError(errno.ENXIO, "not a regular file", str(path)) from error
        raise
    try:
        _check(os.fstat(descriptor), str(path), writes=bool(flags & (os.O_WRONLY | os.O_RDWR)))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_to_read(path: Path | str, *, folder: int | None = None) -> BinaryIO:
    """The file ``path`` for reading. Raises OSError as :func:`open_file` does."""
    return os.fdopen(open_file(path, os.O_RDONLY, folder=folder), "rb")


def open_to_append(path: Path) -> BinaryIO:
    """The file ``path``, made if need be, for writing at its end at once. Raises OSError."""
    return os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def open_new(path: Path | str, *, folder: int | None = None) -> int:
    """A descriptor of a new, empty file at ``path``, for reading, writing and appending.

    What has that name is removed first: a file that a killed process left, or a link that leads elsewhere.
    Raises OSError.
    """
    with suppress(FileNotFoundError):
        os.unlink(path, dir_fd=folder)
    return open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, folder=folder)


def is_still(descriptor: int, opened: os.stat_result) -> bool:
    """Whether ``descriptor`` leads to what it led to when it was ``opened``.

    Code of a model file may close what is not its own, and the next file that it opens gets the number.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), opened)
    except OSError:
        return False


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder ``path`` within a run's folder, so that nobody can put a link in its place.

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
    """What the folder ``path`` within a run's folder holds; nothing where it cannot be read."""
    try:
        with opened_folder(path) as folder:
            return os.listdir(folder)  # noqa: PTH208 - a descriptor, not a path
    except OSError:
        return []


def _check(found: os.stat_result, path: str, *, writes: bool) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if writes and found.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name (a hard link), where it would change as well", path)
