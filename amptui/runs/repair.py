"""Cuts a journal after the step that a run resumes from; later records are kept in a file beside it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_file, opened_folder
from amptui.records import codec
from amptui.records.run import Record, RunFailed, RunFinished, RunStarted
from amptui.records.steps import Steps
from amptui.runs.reader import records_at_end
from amptui.runs.rundir import reason


def cut_after(journal: Path, step: int) -> int:
    """Cut ``journal`` after ``step``; return how many steps were cut off.

    Moves everything from the first later step on to ``journal.after-step-<step>-<k>.jsonl`` in the same
    folder, together with records since the step before it that announce that step or end the run, and an
    incomplete last line. A block of steps is divided. The rest is complete lines without a later step. Steps
    are those of the run's first optimizer: others count their own. Raises ``RunFolderError`` if that file
    cannot be written; the journal is then unchanged.
    """
    try:
        with os.fdopen(open_file(journal, os.O_RDWR), "r+b") as file:
            cut = _where_to_cut(file, step)
            size = os.fstat(file.fileno()).st_size
            lost_steps = _move(file, cut, journal, step) if cut.at < size else 0
            os.fsync(file.fileno())
    except FileNotFoundError:
        return 0  # the journal was deleted: there is nothing to cut
    except OSError as error:
        raise RunFolderError(f"cannot cut {journal} after step {step}: {reason(error)}") from error
    return lost_steps


def refuse_newer_checkpoint(journal: Path, step: int) -> None:
    """Raise ``RunFolderError`` if ``journal`` ends before ``step``: the checkpoint is of another run.

    One that was deleted, or whose last megabyte has no steps, refuses nothing.
    """
    with suppress(OSError):
        records = records_at_end(journal, 2**20)
        last = max((r.last_step for r in records if isinstance(r, Steps) and not r.optimizer), default=step)
        if last < step:
            what = f"{journal} ends at step {last:,}, before the checkpoint of step {step:,}"
            hint = "if it is of this run, move the journal away and resume again"
            raise RunFolderError(f"{what}, which may be of another run", hint=hint)


class StepRanges:
    """Which steps of the run's first optimizer a journal has."""

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []
        """First and last step of each, in the order of the journal."""

    def seen(self, records: Iterable[Record]) -> Iterator[Record]:
        """``records``, whose steps are noted."""
        for record in records:
            if isinstance(record, Steps) and not record.optimizer:
                if self._ranges and record.first_step == self._ranges[-1][1] + 1:
                    self._ranges[-1][1] = record.last_step
                else:
                    self._ranges.append([record.first_step, record.last_step])
            yield record

    def missing(self, last_step: int, *, starts_at_one: bool) -> list[tuple[int, int]]:
        """First and last step of each range that is missing up to ``last_step``, from the first one on."""
        ranges = sorted(self._ranges)
        expected = 1 if starts_at_one or not ranges else ranges[0][0]
        missing = []
        for first, last in [*ranges, [last_step + 1, last_step + 1]]:
            if expected < first <= last_step + 1:
                missing.append((expected, first - 1))
            expected = max(expected, last + 1)
        return missing


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
                out.write(_line(cut.block.part(start, cut.block.count)))
            for line in _lines(file):
                record = _record(line)
                if isinstance(record, Steps) and not record.optimizer:
                    moved_steps += max(0, record.last_step - max(step, record.first_step - 1))
                out.write(line)
            out.flush()
            os.fsync(out.fileno())
        # Some file systems otherwise lose a new file's name in a crash; some refuse to sync a folder.
        with opened_folder(journal.parent) as folder, suppress(OSError):
            os.fsync(folder)
        if cut.block is not None:
            # Shorter than the line that it replaces: until the file is truncated only that line is damaged.
            file.seek(cut.at)
            file.write(_line(cut.block.part(0, step + 1 - cut.block.first_step)))
            file.truncate()
        else:
            file.truncate(cut.at)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    return moved_steps


def _line(steps: Steps) -> bytes:
    return f"{codec.dumps(steps)}\n".encode()
