"""The run's append-only file of records, one line each, which survives a full disk."""

import os
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import accumulate, islice
from pathlib import Path

from amptui.base import units
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import OwnFolder
from amptui.records import codec
from amptui.records.run import Record
from amptui.runs.lasting import LastingFile
from amptui.runs.rundir import reason

MAX_WAITING = 100_000
"""Records, about 40 MiB, that wait in memory while they cannot be written; then the oldest are dropped."""

_PIECE_BYTES = 2**20
"""Read at once to count lines."""

LINES_A_WRITE = 1000
"""Lines in one write call at most: a batch fits, and a backlog is written in small parts."""

TRUNCATED = "the journal was truncated or overwritten"
"""The reason where somebody else changed what is in its file."""

_END_BYTES = 64

_FIRST_BYTES, _LAST_BYTES = 2**16, 2**20
"""Of the written lines so many bytes, from either end, are kept in memory for a file that is truncated."""


class Journal:
    """Appends records to ``path``, complete lines only.

    A full or failing disk never raises here: records wait in memory, ``trouble`` says so, and every append
    tries again. A journal that was deleted or moved is recreated with its content; in one that was truncated
    what is still in memory is written again. Used by one thread at a time. Raises ``RunFolderError`` if
    ``path`` cannot be opened.
    """

    def __init__(
        self, path: Path, *, folder: OwnFolder | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        self._waiting: deque[bytes] = deque()
        self._max_waiting = max_waiting
        self._reason = ""
        self._written = _Written()
        self._dropped = 0
        self._was_truncated = False
        self._torn: bool | None = None
        """The file ends in the middle of a line; None until checked, since its end may still be cut."""
        try:
            self._file: LastingFile | None = LastingFile(path, folder or OwnFolder(path.parent))
        except OSError as error:
            raise RunFolderError(
                f"cannot write the journal {path}: {reason(error)}",
                hint="choose another folder with --run-dir",
            ) from error
        self._name_trouble = ""

    @property
    def trouble(self) -> str:
        """What the file lacks and why, in one line; empty if it lacks nothing."""
        lost = f"{units.count(self._dropped)} are lost" if self._dropped else ""
        if self._waiting:
            waiting = f"{self._reason}: {units.count(len(self._waiting))} records wait in memory"
            return f"{waiting}, {lost}" if lost else waiting
        if self._name_trouble:
            return self._name_trouble
        if self._was_truncated and not lost:
            return f"{TRUNCATED}, and all of it is written again"
        return f"{self._reason}: {units.count(self._dropped)} records are lost" if lost else ""

    @property
    def cause(self) -> str:
        """Why the file lacks something, without the counts of :attr:`trouble`; empty if it lacks nothing."""
        if self._waiting or (self._dropped and not self._name_trouble):
            return self._reason
        return self._name_trouble or (TRUNCATED if self._was_truncated else "")

    @property
    def unsaved(self) -> int:
        """How many records the file lacks, or would if the run ended now."""
        has_no_name = self._file is not None and self._file.is_lost
        return self._dropped + len(self._waiting) + (self._written.lines if has_no_name else 0)

    @property
    def is_behind(self) -> bool:
        """Whether some records are not in the file yet, or the file has no name at the moment."""
        return bool(self._waiting) or (self._file is not None and self._file.is_lost)

    def append(self, records: Iterable[Record]) -> None:
        """Write those that still wait, then ``records``."""
        self.append_lines([f"{codec.dumps(record)}\n".encode() for record in records])

    def append_lines(self, lines: Iterable[bytes]) -> None:
        """Write those that still wait, then ``lines``, each a record with its line break."""
        if self._file is None:
            raise ValueError("the journal is closed")
        self._waiting.extend(lines)
        self._file.look()
        self._heed(self._file)
        self._find_truncation(self._file)
        self._flush(self._file)
        while len(self._waiting) > self._max_waiting:
            dropped = self._waiting.popleft()
            self._torn = self._torn or dropped.startswith(b"\n")
            self._dropped += 1

    def close(self) -> None:
        """Write what still waits, if possible, and sync the file; a failing disk raises nothing."""
        if self._file is None:
            return
        self._file.look()
        self._find_truncation(self._file)
        self._flush(self._file)
        self._file.close()
        self._heed(self._file)
        self._dropped = self.unsaved
        self._waiting.clear()  # there will be no other attempt
        self._file = None

    def _heed(self, file: LastingFile) -> None:
        """Note what happened to the file's name."""
        self._name_trouble = file.trouble
        if file.forgot:
            file.forgot, self._torn = False, False
            self._reason = "the old journal could not be read"
            self._dropped, self._written = self._dropped + self._written.lines, _Written()

    def _find_truncation(self, file: LastingFile) -> None:
        """Let what a truncated file lacks wait again, as far as it is in memory; the rest is lost."""
        self._was_truncated = False
        try:
            if not self._written.is_truncated(file.descriptor):
                return
            missing, again = self._written.cut_to(file.descriptor)
        except OSError:
            return
        self._was_truncated, self._torn = True, None
        self._waiting.extendleft(reversed(again))
        if missing > len(again):
            self._dropped += missing - len(again)
            self._reason = TRUNCATED

    def _flush(self, file: LastingFile) -> None:
        if self._torn is None and self._waiting:
            self._torn = _ends_in_mid_line(file.descriptor)
        while self._waiting:
            if self._torn:
                # End the incomplete line in the file, so that it does not spoil the next one.
                self._waiting[0] = b"\n" + self._waiting[0]
                self._torn = False
            lines = list(islice(self._waiting, LINES_A_WRITE))
            whole_lines = self._write(file.descriptor, lines)
            self._written.add(b"".join(lines[:whole_lines]), whole_lines)
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
            return len(lines)
        ends = list(accumulate(map(len, lines), initial=0))
        whole_lines = bisect_right(ends, written_bytes) - 1
        # A write that fails may have reached the file all the same, in part.
        whole_bytes = size_bytes + ends[whole_lines]
        try:
            if os.fstat(file).st_size > whole_bytes:
                os.ftruncate(file, whole_bytes)
        except OSError:
            self._torn = True
        return whole_lines


class _Written:
    """How much is in the journal's file, and the first and the newest lines that were written to it."""

    def __init__(self) -> None:
        self.lines = 0
        """In the file, those of earlier processes among them."""
        self._size_bytes: int | None = None
        """None until the first look: before it, a resumed run's journal may still be cut."""
        self._first_at = self._first_bytes = self._last_bytes = 0
        self._end = b""
        """The last bytes that were written."""
        self._first: list[bytes] = []
        self._last: deque[bytes] = deque()

    def add(self, data: bytes, lines: int) -> None:
        """So many whole ``lines`` were written."""
        self.lines += lines
        self._size_bytes = (self._size_bytes or 0) + len(data)
        self._end = data[-_END_BYTES:]
        if self._first_bytes < _FIRST_BYTES:
            self._first.append(data)
            self._first_bytes += len(data)
            return
        self._last.append(data)
        self._last_bytes += len(data)
        while self._last_bytes - len(self._last[0]) >= _LAST_BYTES:
            self._last_bytes -= len(self._last.popleft())

    def is_truncated(self, file: int) -> bool:
        """Whether ``file`` is shorter than what was written to it, or ends otherwise. Raises OSError."""
        size_bytes = os.fstat(file).st_size
        if self._size_bytes is None:
            self._first_at, self.lines = size_bytes, _count_lines(file)
        elif size_bytes < self._size_bytes or self._is_overwritten(file, self._size_bytes):
            return True
        if size_bytes != self._size_bytes:
            self._size_bytes, self._end = size_bytes, b""  # somebody else appends as well
        return False

    def _is_overwritten(self, file: int, size_bytes: int) -> bool:
        return os.pread(file, len(self._end), size_bytes - len(self._end)) != self._end

    def cut_to(self, file: int) -> tuple[int, list[bytes]]:
        """How many lines ``file`` lacks, and those of them that are still in memory. Raises OSError."""
        size_bytes = os.fstat(file).st_size
        # Of lines that took the place of ours nobody knows how many are ours.
        lines = _count_lines(file) if size_bytes < (self._size_bytes or 0) else 0
        # Lines that were written after the truncation, and before it was found, are there.
        last_at = max(0, size_bytes - 2 * self._last_bytes)
        there = {
            *os.pread(file, 2 * self._first_bytes, self._first_at).splitlines(keepends=True),
            *os.pread(file, size_bytes - last_at, last_at).splitlines(keepends=True),
        }
        in_memory = b"".join((*self._first, *self._last)).splitlines(keepends=True)
        missing = max(0, self.lines - lines)
        self.lines, self._size_bytes, self._end = lines, size_bytes, b""
        self._first_at = min(self._first_at, size_bytes)
        return missing, [line for line in dict.fromkeys(in_memory) if line.strip() and line not in there]


def _count_lines(file: int) -> int:
    lines = at_bytes = 0
    while piece := os.pread(file, _PIECE_BYTES, at_bytes):
        lines += piece.count(b"\n")
        at_bytes += len(piece)
    return lines


def _ends_in_mid_line(file: int) -> bool:
    try:
        size = os.fstat(file).st_size
        return size > 0 and os.pread(file, 1, size - 1) != b"\n"
    except OSError:
        return False
