"""Reads journals: their records in order, once or while the file still grows, and those at its end."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from amptui.base import strictjson, units
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_to_read
from amptui.records import codec
from amptui.records.codec import OtherFormError
from amptui.records.run import Record
from amptui.runs.rundir import reason

PIECE_BYTES = 1 << 20
"""Read at once: some thousand steps."""


class JournalReader(Iterable[Record]):
    """The records of the journal at ``path``; damaged lines are skipped and counted.

    Iterating reads the file once, up to its end. :meth:`read` returns what is new since the last call; a
    journal that was replaced or cut, as a resume does it, is then read again from its start. Both raise
    ``RunFolderError`` for a file that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged_lines = 0
        """Lines so far that are not records."""
        self.torn = False
        """The last line is incomplete: the run died while writing, or is writing now."""
        self.read_bytes = 0
        """How much of the file has been read."""
        self.size_bytes = 0
        """How long the file was when it was last looked at."""
        self.restarted = False
        """Whether the last :meth:`read` began at the start again: all earlier records are void."""
        self._file: BinaryIO | None = None
        self._rest = b""
        """The beginning of a line whose end has not been read."""
        self._skips_line = False
        """The line that is being read is too long for a record."""

    @property
    def at_end(self) -> bool:
        """Whether everything that was in the file at the last look has been read."""
        return self.read_bytes >= self.size_bytes

    @property
    def passed_over(self) -> str:
        """``passed over: 3 damaged lines, a last line that was cut off``; empty if all was read so far."""
        damage = units.counted(self.damaged_lines, "damaged line") if self.damaged_lines else ""
        parts = [damage, "a last line that was cut off" if self.torn else ""]
        return f"passed over: {', '.join(filter(None, parts))}" if any(parts) else ""

    def __iter__(self) -> Iterator[Record]:
        try:
            self._open()
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            while piece := self._next_piece():
                yield from self._parsed(piece)
        finally:
            self.close()

    def read(self) -> list[Record]:
        """The next records, at most those of one piece."""
        try:
            self.restarted = self._file is not None and self._has_changed()
            if self._file is None or self.restarted:
                self._open()
        except OSError as error:
            raise self._unreadable(error) from error
        return list(self._parsed(self._next_piece()))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _has_changed(self) -> bool:
        """Note the file's size; true if it is not the one that was read before, or was cut."""
        assert self._file is not None, "asked only of an open file"
        now = self.path.stat()
        self.size_bytes = now.st_size
        return now.st_size < self.read_bytes or not os.path.samestat(now, os.fstat(self._file.fileno()))

    def _open(self) -> None:
        self.close()
        self._file = open_to_read(self.path)
        self.size_bytes = os.fstat(self._file.fileno()).st_size
        self.damaged_lines = self.read_bytes = 0
        self._rest, self._skips_line = b"", False

    def _next_piece(self) -> bytes:
        assert self._file is not None, "opened before"
        try:
            piece = self._file.read(PIECE_BYTES)
        except OSError as error:
            raise self._unreadable(error) from error
        self.read_bytes += len(piece)
        return piece

    def _unreadable(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"cannot read the journal {self.path}: {reason(error)}")

    def _parsed(self, piece: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            record = self._record(line)
            if record is not None:
                yield record
        if len(self._rest) > strictjson.MAX_LINE_BYTES:
            self._rest, self._skips_line = b"", True  # its end is passed over with the next line break
        self.torn = bool(self._rest) or self._skips_line

    def _record(self, line: bytes) -> Record | None:
        if self._skips_line or len(line) >= strictjson.MAX_LINE_BYTES:  # with its line break
            self._skips_line = False
            self.damaged_lines += 1
            return None
        try:
            return codec.loads(line)
        except OtherFormError as error:
            raise RunFolderError(f"cannot read the journal {self.path}: {error}") from error
        except ValueError:
            self.damaged_lines += 1
            return None


def records_at_end(path: Path, length_bytes: int) -> list[Record]:
    """The records in the last ``length_bytes`` of a journal. Raises OSError."""
    with open_to_read(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - length_bytes))
        lines = file.read().splitlines()  # the first may lack its beginning
    records = []
    for line in lines:
        with suppress(ValueError):
            records.append(codec.loads(line))
    return records
