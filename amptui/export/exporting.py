"""Writes all requested formats in one pass over a journal."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from amptui.errors import AmptuiError, RunFolderError
from amptui.export.page import page
from amptui.export.recording import Recording
from amptui.export.table import StepTable
from amptui.records import Record
from amptui.runs import journal
from amptui.runs.damage import passed_over
from amptui.runs.find import journal_of, name_of
from amptui.runs.rundir import reason
from amptui.telemetry.session import MAX_AT_ONCE

_HINT = "choose another path, or free some space"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export read."""

    steps: int
    """Steps in the journal; one that was repeated after a resume counts twice."""
    passed_over: str
    """What could not be read, in one line; empty if everything was."""


class _Sink(Protocol):
    """Writes one file: it gets all records in order, then the whole recording."""

    def add(self, records: Sequence[Record]) -> None: ...
    def finish(self, recording: Recording) -> None: ...
    def close(self) -> None: ...


def export(
    run: Path, *, csv: Path | None = None, tensorboard: Path | None = None, html: Path | None = None
) -> Exported:
    """Export ``run``, a run's folder or its journal, to each path that was given.

    ``csv`` and ``html`` are files; ``tensorboard`` is a folder in which the run gets one of its own. Existing
    files are replaced atomically. Raises ``RunFolderError`` for a run that cannot be read or has no records,
    and ``AmptuiError`` if a file cannot be written or the package ``tensorboard`` is missing.
    """
    path = journal_of(run)
    recording = Recording(name_of(path), str(path.parent))
    with ExitStack() as stack:
        sinks = [
            (out, stack.enter_context(_opened(out, make)))
            for out, make in _sinks(recording.name, csv, tensorboard, html)
        ]
        _read(path, recording, sinks)
        for out, sink in sinks:
            with _writing(out):
                sink.finish(recording)
    return Exported(steps=recording.steps, passed_over=recording.passed_over)


def _sinks(
    name: str, csv: Path | None, tensorboard: Path | None, html: Path | None
) -> Iterator[tuple[Path, Callable[[Path], _Sink]]]:
    """The path of each file, and what writes it."""
    if csv is not None:
        yield csv, StepTable
    if tensorboard is not None:
        from amptui.export.tensorboard import FILE_NAME, EventFile

        yield tensorboard / name / FILE_NAME, EventFile
    if html is not None:
        yield html, _PageFile


@contextmanager
def _opened(out: Path, make: Callable[[Path], _Sink]) -> Iterator[_Sink]:
    with _replacing(out) as beside:
        with _writing(out):
            sink = make(beside)
        try:
            yield sink
        finally:
            with suppress(OSError):  # errors were reported before
                sink.close()


def _read(path: Path, recording: Recording, sinks: Sequence[tuple[Path, _Sink]]) -> None:
    reader, empty = journal.read(path), True
    while batch := list(islice(reader, MAX_AT_ONCE)):
        empty = False
        recording.add(batch)
        for out, sink in sinks:
            with _writing(out):
                sink.add(batch)
    recording.passed_over = passed_over(reader)
    if empty:
        raise RunFolderError(f"{path} holds no records", hint=recording.passed_over)


class _PageFile:
    """The page, written at the end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", errors="replace")

    def add(self, records: Sequence[Record]) -> None:
        pass

    def finish(self, recording: Recording) -> None:
        self._file.write(page(recording))
        self._file.close()

    def close(self) -> None:
        self._file.close()


# ------------------------------------------------------------------------------- atomic files


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A temporary path beside ``out``, which replaces it at the end and is removed after an error.

    Creates missing folders. Raises ``AmptuiError`` if ``out`` cannot be written or is not a file.
    """
    with _writing(out):
        place = out.resolve()
        if place.exists() and not place.is_file():
            raise AmptuiError(f"cannot write {out}: it is not a file", hint=_HINT)
        place.parent.mkdir(parents=True, exist_ok=True)
    # Without the name: TensorBoard reads every file with "tfevents" in its name.
    beside = place.with_name(f".amptui-{os.getpid()}-{hash(place.name)}.tmp")
    with _writing(out):
        _make(beside)
    try:
        yield beside
        with _writing(out):
            beside.replace(place)
    finally:
        with suppress(OSError):
            beside.unlink()


def _make(path: Path) -> None:
    """Create an empty file: in a shared folder such as /tmp, somebody's link could be there already."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Turns an ``OSError`` into an ``AmptuiError`` that names ``out``."""
    try:
        yield
    except OSError as error:
        raise AmptuiError(f"cannot write {out}: {reason(error)}", hint=_HINT) from error
