"""The journal of a run, an append-only file of records, one line each: how it is written, read and cut."""

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from amptui.base import strictjson, units
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_file, sync_folder
from amptui.records import codec
from amptui.records.codec import OtherFormError, line_of
from amptui.records.run import Record, RunFailed, RunFinished, RunStarted
from amptui.records.steps import Steps
from amptui.runs.rundir import reason

MAX_WAITING = 100_000
"""Records, about 40 MiB, that wait in memory while they cannot be written; then the oldest are dropped."""

LINES_A_WRITE = 100
"""Lines in one write call at most: it is written as a whole or, on a disk with less room, not at all."""


class Journal:
    """Appends records to ``path``, complete lines only.

    A full or failing disk never raises here: records wait in memory, ``trouble`` says so, and every append
    tries again. If somebody deletes or moves the file, ``trouble`` says so for good. Used by one thread at a
    time. Raises ``RunFolderError`` if ``path`` cannot be opened.
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
        self.append_lines(map(line_of, records))

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
            if not self._path.exists() or not os.path.samestat(os.fstat(file), self._path.stat()):
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
            if not self._write(file, b"".join(lines)):
                return
            for _ in lines:
                self._waiting.popleft()

    def _write(self, file: int, data: bytes) -> bool:
        """Append ``data``; return whether it fits. Otherwise the file keeps no part of it."""
        size_bytes, written_bytes = sys.maxsize, 0
        try:
            size_bytes = os.fstat(file).st_size
            while written_bytes < len(data):
                written_bytes += os.write(file, data[written_bytes:])
        except OSError as error:
            self._reason = reason(error)
        else:
            return True
        try:  # a write that fails may have reached the file all the same, in part
            if os.fstat(file).st_size > size_bytes:
                os.ftruncate(file, size_bytes)
        except OSError:
            self._is_torn = True
        return False


class JournalReader(Iterable[Record]):
    """The records of the journal at ``path``; damaged lines are skipped and counted.

    Iterating reads the file once, up to its end, and raises ``RunFolderError`` if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged_lines = 0
        """Lines so far that are not records."""
        self.torn = False
        """The last line is incomplete: the run died while writing, or is writing now."""

    @property
    def passed_over(self) -> str:
        """``passed over: 3 damaged lines, a last line that was cut off``; empty if all was read so far."""
        damage = units.counted(self.damaged_lines, "damaged line") if self.damaged_lines else ""
        parts = [damage, "a last line that was cut off" if self.torn else ""]
        return f"passed over: {', '.join(filter(None, parts))}" if any(parts) else ""

    def __iter__(self) -> Iterator[Record]:
        self.damaged_lines, self.torn = 0, False
        try:
            with self.path.open("rb") as file:
                for line in _lines(file):
                    self.damaged_lines += self.torn  # more follows: it is a part of one that is too long
                    self.torn = not line.endswith(b"\n")
                    if not self.torn and (record := self._record(line)) is not None:
                        yield record
        except OSError as error:
            raise RunFolderError(f"cannot read the journal {self.path}: {reason(error)}") from error

    def _record(self, line: bytes) -> Record | None:
        try:
            return codec.loads(line)
        except OtherFormError as error:
            raise RunFolderError(f"cannot read the journal {self.path}: {error}") from error
        except ValueError:
            self.damaged_lines += 1
            return None


def records_at_end(path: Path, length_bytes: int, *, leave_out: type[Record] | None = None) -> list[Record]:
    """The records in the last ``length_bytes`` of a journal, but for a kind to leave out. Raises OSError."""
    unwanted = b"" if leave_out is None else f'{{"type":"{leave_out.__name__}"'.encode()
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - length_bytes))
        lines = file.read().splitlines()  # the first may lack its beginning
    records = []
    for line in lines:
        if unwanted and line.startswith(unwanted):
            continue
        with suppress(ValueError):
            records.append(codec.loads(line))
    return records


def cut_after(journal: Path, step: int) -> int:
    """Cut ``journal`` after ``step``; return how many steps were cut off.

    Moves everything from the first later step on to ``journal.after-step-<step>-<k>.jsonl`` in the same
    folder, together with records since the step before it that announce that step or end the run, and an
    incomplete last line. A block of steps is divided. The rest is complete lines without a later step. Steps
    are those of the run's first optimizer: others count their own. Raises ``RunFolderError`` if that file
    cannot be written; the journal is then unchanged.
    """
    try:
        with journal.open("r+b") as file:
            cut = _where_to_cut(file, step)
            size = os.fstat(file.fileno()).st_size
            lost_steps = _move(file, cut, journal, step) if cut.at < size else 0
            os.fsync(file.fileno())
    except FileNotFoundError:
        return 0  # the journal was deleted: there is nothing to cut
    except OSError as error:
        raise RunFolderError(f"cannot cut {journal} after step {step}: {reason(error)}") from error
    return lost_steps


class _Cut(NamedTuple):
    """The first byte to cut off; the file's size if there is none."""

    at: int
    block: Steps | None = None
    """The block of steps that begins there, if some of them stay."""


def _where_to_cut(file: BinaryIO, step: int) -> _Cut:
    cut: int | None = None
    at, line = 0, b""
    for line in _lines(file):
        record = _record(line)
        if not isinstance(record, RunStarted) and getattr(record, "optimizer", False):
            pass  # another optimizer counts its own steps
        elif isinstance(record, Steps):
            if record.first_step > step:
                return _Cut(at if cut is None else cut)
            if record.last_step > step:
                return _Cut(at, record)
            cut = None  # the run continued with a step that stays
        elif cut is None and (
            isinstance(record, RunFinished | RunFailed) or getattr(record, "step", 0) > step
        ):
            cut = at
        at += len(line)
    if cut is None and not line.endswith(b"\n"):
        return _Cut(at - len(line))  # incomplete
    return _Cut(at if cut is None else cut)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines from here on; a line that is too long for a record comes in pieces."""
    return iter(lambda: file.readline(strictjson.MAX_LINE_BYTES), b"")


def _record(line: bytes) -> Record | None:
    """What a line holds; None if it is damaged, or incomplete as for who reads the journal."""
    try:
        return codec.loads(line.rstrip(b"\n")) if line.endswith(b"\n") else None
    except ValueError:
        return None


def _move(file: BinaryIO, cut: _Cut, journal: Path, step: int) -> int:
    """Move everything from ``cut`` on to a new file beside it; return how many later steps it contains."""
    names = (f"{journal.stem}.after-step-{step}-{number}{journal.suffix}" for number in count(1))
    beside = next(path for path in map(journal.with_name, names) if not os.path.lexists(path))
    moved_steps = 0
    try:
        with os.fdopen(open_file(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as out:
            file.seek(cut.at)
            if cut.block is not None:
                file.readline()
                start = step + 1 - cut.block.first_step
                moved_steps += cut.block.count - start
                out.write(line_of(cut.block.part(start, cut.block.count)))
            for line in _lines(file):
                record = _record(line)
                if isinstance(record, Steps) and not record.optimizer:
                    moved_steps += max(0, record.last_step - max(step, record.first_step - 1))
                out.write(line)
            out.flush()
            os.fsync(out.fileno())
        sync_folder(journal.parent)
        if cut.block is not None:
            # Shorter than the line that it replaces: until the file is truncated only that line is damaged.
            file.seek(cut.at)
            file.write(line_of(cut.block.part(0, step + 1 - cut.block.first_step)))
            file.truncate()
        else:
            file.truncate(cut.at)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    return moved_steps
