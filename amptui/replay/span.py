"""From when to when a journal tells, found without reading all of it."""

import os
from dataclasses import dataclass
from pathlib import Path

from amptui import wire
from amptui.errors import RunFolderError
from amptui.runfiles import open_to_read
from amptui.runs import journal

_TAIL_BYTES = 1 << 18
"""Of the file's end: some hundred records, among which is the newest one's time."""


@dataclass(frozen=True, slots=True)
class Span:
    """A journal's first record, and how long after it the last one came."""

    first_time: float
    """Unix seconds."""
    seconds: float


def span_of(path: Path) -> Span:
    """The journal's span. Raises ``RunFolderError`` where it cannot be read or has no record."""
    first = next((record.time for record in journal.read(path)), None)
    if first is None:
        raise RunFolderError(f"{path} holds no records")
    return Span(first, max(0.0, max(_last_times(path), default=first) - first))


def _last_times(path: Path) -> list[float]:
    """The times in the last part of the file, which begins in the middle of some line."""
    with open_to_read(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().splitlines()
    times = []
    for line in lines:
        try:
            record = wire.loads(line.decode())
        except ValueError:
            continue
        if record is not None:
            times.append(record.time)
    return times
