"""The run's append-only file of records, one line each, which survives a full disk."""

import os
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path

from amptui.base import units
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_file
from amptui.records import codec
from amptui.records.run import Record
from amptui.runs.rundir import reason

MAX_WAITING = 100_000
"""Records, about 40 MiB, that wait in memory while they cannot be written; then the oldest are dropped."""

LINES_A_WRITE = 1000
"""Lines in one write call at most: a batch fits, and a backlog is written in small parts."""


class Journal:
    """Appends records to ``path``, complete lines only.

    A full or failing disk never raises here: records wait in memory, ``trouble`` says so, and every append
    tries again. If somebody deletes, moves or truncates the file, ``trouble`` says so for good, and records
    are appended to what is left of it. Used by one thread at a time. Raises ``RunFolderError`` if ``path``
    cannot be opened.
    """

    def __init__(self, path: Path, *, max_waiting: int = MAX_WAITING) -> None:
        self._path = path
        self._waiting: deque[bytes] = deque()
        self._max_waiting = max_waiting
        self._reason = ""
        """Why the last write failed."""
        self._damage = ""
        """What somebody else did to the file."""
        self._dropped = 0
        self._is_torn: bool | None = None
        """The file ends in the middle of a line; None until checked, since its end may still be cut."""
        self._size_bytes = 0
        """After the last write."""
        try:
            self._file: int | None = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the journal {path}: {reason(error)}",
                hint="choose another folder with --run-dir",
            ) from error

    @property
    def trouble(self) -> str:
        """What the file lacks and why, in one line; empty if it lacks nothing."""
        waiting = f"{units.count(len(self._waiting))} records wait in memory" if self._waiting else ""
        lost = f"{units.count(self._dropped)} are lost" if self._dropped else ""
        if waiting:
            return f"{self._reason}: {waiting}, {lost}" if lost else f"{self._reason}: {waiting}"
        return f"{self._reason}: {units.count(self._dropped)} records are lost" if lost else self._damage

    @property
    def cause(self) -> str:
        """Why the file lacks something, without the counts of :attr:`trouble`; empty if it lacks nothing."""
        return self._reason if self._waiting or self._dropped else self._damage

    @property
    def unsaved(self) -> int | None:
        """How many records the file lacks, or would if the run ended now; None if nobody can count them."""
        return None if self._damage else self._dropped + len(self._waiting)

    @property
    def is_behind(self) -> bool:
        """Whether some records are not in the file yet."""
        return bool(self._waiting)

    def append(self, records: Iterable[Record]) -> None:
        """Write those that still wait, then ``records``."""
        self.append_lines([f"{codec.dumps(record)}\n".encode() for record in records])

    def append_lines(self, lines: Iterable[bytes]) -> None:
        """Write those that still wait, then ``lines``, each a record with its line break."""
        if self._file is None:
            raise ValueError("the journal is closed")
        self._waiting.extend(lines)
        self._find_damage(self._file)
        self._flush(self._file)
        while len(self._waiting) > self._max_waiting:
            dropped = self._waiting.popleft()
            self._is_torn = self._is_torn or dropped.startswith(b"\n")
            self._dropped += 1

    def close(self) -> None:
        """Write what still waits, if possible, and sync the file; a failing disk raises nothing."""
        if self._file is None:
            return
        self._find_damage(self._file)
        self._flush(self._file)
        with suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)
        self._dropped += len(self._waiting)
        self._waiting.clear()  # there will be no other attempt
        self._file = None

    def _find_damage(self, file: int) -> None:
        """Note what somebody else did to the file."""
        with suppress(OSError):  # a file system that does not answer now
            now = os.fstat(file)
            if now.st_size < self._size_bytes:
                self._damage, self._is_torn = f"{self._path.name} was truncated: records are lost", None
            self._size_bytes = now.st_size
            if not self._path.exists() or not os.path.samestat(now, self._path.stat()):
                self._damage = f"{self._path.name} was deleted or moved"

    def _flush(self, file: int) -> None:
        if self._is_torn is None and self._waiting:
            with suppress(OSError):
                size = os.fstat(file).st_size
                self._is_torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        while self._waiting:
            if self._is_torn:
                # End the incomplete line in the file, so that it does not spoil the next one.
                self._waiting[0] = b"\n" + self._waiting[0]
                self._is_torn = False
            lines = list(islice(self._waiting, LINES_A_WRITE))
            whole_lines = self._write(file, lines)
            for _ in range(whole_lines):
                self._waiting.popleft()
            if whole_lines < len(lines):
                return

    def _write(self, file: int, lines: list[bytes]) -> int:
        """Append ``lines``; return how many fit completely. The file keeps no part of a line."""
        data = b"".join(lines)
        written_bytes, size_bytes = 0, sys.maxsize
        try:
            size_bytes = os.fstat(file).st_size
            while written_bytes < len(data):
                written_bytes += os.write(file, data[written_bytes:])
        except OSError as error:
            self._reason = reason(error)
        else:
            self._size_bytes = size_bytes + len(data)
            return len(lines)
        ends = list(accumulate(map(len, lines), initial=0))
        whole_lines = bisect_right(ends, written_bytes) - 1
        # A write that fails may have reached the file all the same, in part.
        whole_bytes = size_bytes + ends[whole_lines]
        try:
            if os.fstat(file).st_size > whole_bytes:
                os.ftruncate(file, whole_bytes)
        except OSError:
            self._is_torn = True
        self._size_bytes = min(self._size_bytes, whole_bytes)
        return whole_lines
