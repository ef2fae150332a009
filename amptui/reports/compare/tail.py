"""Reads a journal that may still be growing: each call returns the records that are new."""

import os
from pathlib import Path
from typing import BinaryIO

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_to_read
from amptui.records import codec
from amptui.records.run import Record
from amptui.runs.journal import Losses
from amptui.runs.rundir import reason

PIECE_BYTES = 1 << 20
"""Read at once: some thousand steps."""


class JournalTail(Losses):
    """The records of the journal at ``path``, a piece at a time.

    A journal that was replaced or cut, as a resume does it, is read again from its start. Damaged lines are
    skipped and counted.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.read_bytes = 0
        """How much of the file has been read."""
        self.size_bytes = 0
        """How long the file was when it was last read."""
        self.restarted = False
        """Whether the last call began at the start again: all earlier records are void."""
        self._file: BinaryIO | None = None
        self._rest = b""
        self._skips_line = False

    @property
    def at_end(self) -> bool:
        """Whether everything that was in the file at the last call has been read."""
        return self.read_bytes >= self.size_bytes

    def read(self) -> list[Record]:
        """The next records, at most those of one piece. Raises ``RunFolderError`` for an unreadable file."""
        try:
            self.restarted = self._open_anew()
            assert self._file is not None, "just opened"
            piece = self._file.read(PIECE_BYTES)
        except OSError as error:
            raise RunFolderError(f"cannot read the journal {self.path}: {reason(error)}") from error
        self.read_bytes += len(piece)
        found = self._parsed(piece)
        self.torn = bool(self._rest)
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_anew(self) -> bool:
        """Open the file if need be, and note its size; true if it is not what was read before."""
        now = self.path.stat()
        if self._file is not None:
            opened = os.fstat(self._file.fileno())
            if os.path.samestat(now, opened) and now.st_size >= self.read_bytes:
                self.size_bytes = now.st_size
                return False
        again = self._file is not None
        self.close()
        self._file = open_to_read(self.path)
        self.size_bytes = os.fstat(self._file.fileno()).st_size
        self.damaged_lines = self.unknown_records = self.read_bytes = 0
        self._rest, self._skips_line = b"", False
        return again

    def _parsed(self, piece: bytes) -> list[Record]:
        *lines, rest = (self._rest + piece).split(b"\n")
        found = [record for line in lines if (record := self._record(line)) is not None]
        if len(rest) > strictjson.MAX_LINE_BYTES:
            rest, self._skips_line = b"", True  # its end is passed over with the next line break
        self._rest = rest
        if rest and not self._skips_line and self.at_end:
            # A record that lacks only its line break is whole: its last brace is there.
            try:
                last = codec.loads(rest.decode())
            except ValueError:
                return found
            self._rest = b""
            if last is not None:
                found.append(last)
        return found

    def _record(self, line: bytes) -> Record | None:
        if self._skips_line:
            self._skips_line = False
            self.damaged_lines += 1
            return None
        if not line:
            return None
        try:
            record = codec.loads(line.decode())
        except ValueError:
            self.damaged_lines += 1
            return None
        self.unknown_records += record is None
        return record
