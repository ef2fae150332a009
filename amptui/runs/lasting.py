"""An append-only file that survives deletion: if it is deleted or moved, it is recreated with its content."""

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from amptui.base.runfiles import OwnFolder, open_file, open_new
from amptui.runs.rundir import reason

_LOOK_SECONDS = 1.0
"""Time between two checks of the file's name."""

_PART_BYTES = 2**20
"""Read and written in one piece: the memory that a copy takes."""

_RETRY_SHARE = 0.05
"""At most this part of the time goes into copies that fail, for example on a full disk."""

_NO_DESCRIPTOR = -1

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT


class LastingFile:
    """``path``, open for appending. Used by one thread at a time.

    While the name is gone, ``descriptor`` still writes to the file, and the new file gets all of it, unless
    another folder took the place of the run's own ``folder``. Raises OSError if ``path`` cannot be opened.
    """

    def __init__(self, path: Path, folder: OwnFolder) -> None:
        self.descriptor = open_file(path, _FLAGS)
        self.trouble = ""
        """What happened to the file's name, in one line; empty while all is well."""
        self.is_lost = False
        """The file has no name at the moment."""
        self.forgot = False
        """The file's earlier content could not be read any more, so the file that is there now lacks it."""
        self._path = self._place = path
        self._folder = folder
        self._identity = _identity(os.fstat(self.descriptor))
        self._due = 0.0

    def look(self) -> None:
        """Check once a second whether the name is still there, and restore it if not; never raises.

        Call it before each use of ``descriptor``: if other code closed it, its number may be another file's.
        """
        if not self._is_ours():
            self.descriptor = _NO_DESCRIPTOR
            self._begin_anew()
        now = time.monotonic()
        if now < self._due:
            return
        if self.is_lost:
            self._make_again()
            return
        self._due = now + _LOOK_SECONDS
        if self._has_lost_its_name():
            self.is_lost = True
            self.trouble = f"{self._path.name} was deleted or moved: writing it again"
            self._due = now

    def close(self) -> None:
        """Restore the file if it is gone, sync it and close it; never raises."""
        self.look()
        if self.is_lost or self._has_lost_its_name():
            self._make_again()
        with suppress(OSError):
            os.fsync(self.descriptor)
        with suppress(OSError):
            os.close(self.descriptor)

    def _is_ours(self) -> bool:
        try:
            return _identity(os.fstat(self.descriptor)) == self._identity
        except OSError as error:
            return error.errno != errno.EBADF

    def _has_lost_its_name(self) -> bool:
        if self._place != self._path and not os.path.lexists(self._path):
            return True  # the name that another file had taken is free again
        try:
            return not os.path.samestat(self._place.stat(), os.fstat(self.descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return self._is_stale()

    def _is_stale(self) -> bool:
        try:
            os.fstat(self.descriptor)
        except OSError:
            return True
        return False  # the name cannot be checked now

    def _make_again(self) -> None:
        """Copy the content to a new file, which gets its name when it is complete."""
        if not self._has_lost_its_name():  # its folder is back
            self.is_lost, self.trouble = False, ""
            return
        began = time.monotonic()
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            self._folder.claim()
            copy = open_new(beside)
            try:
                _copy(self.descriptor, copy)
                path = self._free_name()
                _rename(beside, path)
            except BaseException:
                os.close(copy)
                with suppress(OSError):
                    beside.unlink()
                raise
            self._take(path, copy)
        except _SourceLostError:
            self._begin_anew()
        except OSError as error:
            self._fail(error, time.monotonic() - began)

    def _begin_anew(self) -> None:
        """Save at least what is written from now on."""
        try:
            if self._is_there():
                self._take(self._path, open_file(self._path, _FLAGS))
                return
            self._folder.claim()
            path = self._free_name()
            self._take(path, open_file(path, _FLAGS | os.O_EXCL))
            self.forgot = True
        except OSError as error:
            self._fail(error, 0.0)

    def _is_there(self) -> bool:
        """Whether the same file can be opened again: a file server that restarts makes descriptors stale."""
        with suppress(OSError):
            return _identity(self._path.stat()) == self._identity
        return False

    def _take(self, path: Path, descriptor: int) -> None:
        with suppress(OSError):
            if self._place != path and os.path.samestat(self._place.stat(), os.fstat(self.descriptor)):
                self._place.unlink()  # our temporary file, whose content is in its proper place now
        with suppress(OSError):
            os.close(self.descriptor)
        self.descriptor, self._place, self.is_lost = descriptor, path, False
        self._identity = _identity(os.fstat(descriptor))
        self._due = time.monotonic() + _LOOK_SECONDS
        self.trouble = ""
        if path != self._path:
            self.trouble = f"another file took the name {self._path.name}: records go to {path.name}"

    def _free_name(self) -> Path:
        path, number = self._path, 2
        while os.path.lexists(path):
            path = self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
            number += 1
        return path

    def _fail(self, error: OSError, took_seconds: float) -> None:
        self._due = time.monotonic() + max(_LOOK_SECONDS, took_seconds / _RETRY_SHARE)
        self.trouble = f"{self._path.name} was deleted or moved and cannot be recreated: {reason(error)}"


class _SourceLostError(Exception):
    """The file's content can no longer be read."""


def _copy(source: int, target: int) -> None:
    done_bytes = 0
    while True:
        try:
            part = os.pread(source, _PART_BYTES, done_bytes)
        except OSError as error:
            raise _SourceLostError from error
        if not part:
            return
        done_bytes += os.write(target, part)


def _rename(file: Path, path: Path) -> None:
    """Rename ``file``, but never over another file."""
    try:
        os.link(file, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise
        file.rename(path)
    else:
        with suppress(OSError):
            file.unlink()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
