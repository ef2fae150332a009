"""Cuts a journal after the step that a run resumes from; later records are kept in a file beside it."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from amptui import codec, strictjson
from amptui.errors import RunFolderError
from amptui.records import Record, RunFailed, RunFinished, StepRecord
from amptui.runfiles import open_file
from amptui.runs.rundir import reason

_BLOCK_BYTES = 2**22
"""Read in one piece, always whole lines: a longer line makes a longer piece."""

_STEP_RECORD = b'"StepRecord"'
_A_STEP = re.compile(rb'"step": ?(\d{1,18})')
_LAST_WORD = re.compile(rb'"type": ?"Run(?:Finished|Failed)"')


def cut_after(journal: Path, step: int) -> int:
    """Cut ``journal`` after ``step``; return how many steps were cut off.

    Moves everything from the first later step on to ``journal.after-step-<step>-<k>.jsonl`` in the same
    folder, together with records since the step before it that announce that step or end the run, and an
    incomplete last line. The rest is complete lines without a later step. Raises ``RunFolderError`` if that
    file cannot be written; the journal is then unchanged.
    """
    try:
        with os.fdopen(open_file(journal, os.O_RDWR), "r+b") as file:
            at = _where_to_cut(file, step)
            lost_steps = _move(file, at, journal, step) if at < _size(file) else 0
            _end_the_line(file)
            os.fsync(file.fileno())
    except FileNotFoundError:
        return 0  # the journal was deleted: there is nothing to cut
    except OSError as error:
        raise RunFolderError(f"cannot cut {journal} after step {step}: {reason(error)}") from error
    return lost_steps


def _where_to_cut(file: BinaryIO, step: int) -> int:
    """The first byte to cut off; the file's size if there is none."""
    cut, end = None, 0
    for start, block in _blocks(file):
        later, heralds = _later(block, step)
        last_step = _last_step(block[:later])
        if last_step is not None:
            cut = None  # the run continued with a step that stays
            heralds = [position for position in heralds if position > last_step]
        if cut is None and heralds:
            cut = start + heralds[0]
        if later is not None:
            return start + later if cut is None else cut
        end = start + _end_of_whole_lines(block)
    return end if cut is None else cut


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The file in pieces of whole lines (lines too long for a record are split), and where each begins."""
    file.seek(0)
    start = 0
    while block := _read_block(file):
        yield start, block
        start += len(block)


def _read_block(file: BinaryIO) -> bytes:
    block = file.read(_BLOCK_BYTES)
    return block + file.readline(strictjson.MAX_LINE_BYTES) if block else b""


def _later(block: bytes, step: int) -> tuple[int | None, list[int]]:
    """Offsets of the first later step, and of records before it that announce one or end the run."""
    suspects = [match.start() for match in _LAST_WORD.finditer(block)]
    if max(map(int, _A_STEP.findall(block)), default=0) > step:
        suspects += [match.start() for match in _A_STEP.finditer(block) if int(match[1]) > step]
    heralds: list[int] = []
    for start, record in _lines_at(block, sorted(suspects)):
        if isinstance(record, StepRecord) and record.step > step:
            return start, heralds
        if isinstance(record, RunFinished | RunFailed) or getattr(record, "step", 0) > step:
            heralds.append(start)
    return None, heralds


def _last_step(block: bytes) -> int | None:
    """Where the last complete step begins."""
    end = len(block)
    while (found := block.rfind(_STEP_RECORD, 0, end)) >= 0:
        start, record = _line_at(block, found)
        if isinstance(record, StepRecord):
            return start
        end = start
    return None


def _end_of_whole_lines(block: bytes) -> int:
    """The block's length without an incomplete last line."""
    start = block.rfind(b"\n") + 1
    return len(block) if start < len(block) and _record(block[start:]) is not None else start


def _line_at(block: bytes, position: int) -> tuple[int, Record | None]:
    """Where the line around ``position`` begins, and the record in it."""
    start = block.rfind(b"\n", 0, position) + 1
    end = block.find(b"\n", position)
    return start, _record(block[start : end if end >= 0 else len(block)])


def _lines_at(block: bytes, positions: Iterable[int]) -> Iterator[tuple[int, Record | None]]:
    """As :func:`_line_at` for ascending ``positions``; each line once, however many positions it contains."""
    end = 0
    for position in positions:
        if position >= end:
            yield _line_at(block, position)
            end = block.find(b"\n", position) + 1 or len(block)


def _record(line: bytes) -> Record | None:
    try:
        return codec.loads(line.decode())
    except ValueError:
        return None


def _move(file: BinaryIO, at: int, journal: Path, step: int) -> int:
    """Move everything from ``at`` on to a new file beside it; return how many later steps it contains."""
    beside, to = _new_file_beside(journal, step)
    moved_steps = 0
    try:
        with os.fdopen(to, "wb") as out:
            file.seek(at)
            while block := _read_block(file):
                moved_steps += _later_steps(block, step)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        _sync_folder(journal.parent)
        file.truncate(at)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    return moved_steps


def _new_file_beside(journal: Path, step: int) -> tuple[Path, int]:
    for number in count(1):
        path = journal.with_name(f"{journal.stem}.after-step-{step}-{number}{journal.suffix}")
        with suppress(FileExistsError):
            return path, open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    raise AssertionError("there is always another number")


def _later_steps(block: bytes, step: int) -> int:
    found = _lines_at(block, (match.start() for match in re.finditer(_STEP_RECORD, block)))
    return sum(isinstance(record, StepRecord) and record.step > step for _, record in found)


def _end_the_line(file: BinaryIO) -> None:
    """Add the line break that a complete last record may lack."""
    size = _size(file)
    file.seek(max(0, size - 1))
    if size and file.read(1) != b"\n":
        file.write(b"\n")
        file.flush()


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _sync_folder(folder: Path) -> None:
    """Sync the folder: some file systems otherwise lose a new file's name in a crash; some refuse to."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
