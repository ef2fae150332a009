"""One pass over a journal feeds every format that was asked for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from amptui.errors import RunFolderError
from amptui.export.files import replacing, writing
from amptui.export.page import page
from amptui.export.recording import Recording
from amptui.export.table import StepTable
from amptui.records import Record
from amptui.runs import journal
from amptui.runs.damage import passed_over
from amptui.runs.find import journal_of, name_of
from amptui.telemetry.session import MOST_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export read."""

    steps: int
    """Steps in the journal; one that was done again after a resume counts again."""
    passed_over: str
    """What could not be read, in one line; empty when all was."""


class _Sink(Protocol):
    """What becomes a file: it is given all records in their order, then what they amount to."""

    def add(self, records: Sequence[Record]) -> None: ...
    def finish(self, recording: Recording) -> None: ...
    def close(self) -> None: ...


def export(
    run: Path, *, csv: Path | None = None, tensorboard: Path | None = None, html: Path | None = None
) -> Exported:
    """Write ``run``, a run's folder or its journal, in each format that was given a place.

    ``csv`` and ``html`` are files; ``tensorboard`` is a folder in which the run has one of its own. What is
    there is replaced, whole or not at all. Raises ``RunFolderError`` for a run that cannot be read or holds
    no records, and ``AmptuiError`` where nothing can be written or the package ``tensorboard`` is missing.
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
            with writing(out):
                sink.finish(recording)
    return Exported(steps=recording.steps, passed_over=recording.passed_over)


def export_csv(run: Path, out: Path) -> int:
    """Write the steps as a table, one row a step; how many. See :func:`export`."""
    return export(run, csv=out).steps


def export_tensorboard(run: Path, out: Path) -> int:
    """Write curves and events for TensorBoard into a folder of runs; how many steps. See :func:`export`."""
    return export(run, tensorboard=out).steps


def export_html(run: Path, out: Path) -> None:
    """Write the page that tells the run. See :func:`export`."""
    export(run, html=out)


def _sinks(
    name: str, csv: Path | None, tensorboard: Path | None, html: Path | None
) -> Iterator[tuple[Path, Callable[[Path], _Sink]]]:
    """Where each file comes to lie, and what fills it."""
    if csv is not None:
        yield csv, StepTable
    if tensorboard is not None:
        from amptui.export.tensorboard import FILE_NAME, EventFile

        yield tensorboard / name / FILE_NAME, EventFile
    if html is not None:
        yield html, _PageFile


@contextmanager
def _opened(out: Path, make: Callable[[Path], _Sink]) -> Iterator[_Sink]:
    with replacing(out) as beside:
        with writing(out):
            sink = make(beside)
        try:
            yield sink
        finally:
            with suppress(OSError):  # what could not be written was told by then
                sink.close()


def _read(path: Path, recording: Recording, sinks: Sequence[tuple[Path, _Sink]]) -> None:
    reader, empty = journal.read(path), True
    while batch := list(islice(reader, MOST_AT_ONCE)):
        empty = False
        recording.add(batch)
        for out, sink in sinks:
            with writing(out):
                sink.add(batch)
    recording.passed_over = passed_over(reader)
    if empty:
        raise RunFolderError(f"{path} holds no records", mend=recording.passed_over)


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
