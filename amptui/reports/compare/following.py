"""Reads several runs, and follows those that still grow."""

import time
from collections.abc import Sequence
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.trace import RunFigures, Trace
from amptui.runs.find import name_of
from amptui.runs.journal import JournalReader
from amptui.runs.lock import holder
from amptui.runs.rundir import RunDir
from amptui.tui.reading_thread import ReadingThread

LOOK_SECONDS = 1.0
"""How often journals are looked at for new records, and at least how often a reader publishes what it has."""


class FollowedRun:
    """One run's journal, folded up to where it has been read."""

    def __init__(self, journal: Path, name: str) -> None:
        self.name = name
        self._tail = JournalReader(journal)
        self._trace = Trace(str(journal.parent))
        self._figures: RunFigures | None = None

    def advance(self) -> bool:
        """Read the next piece; false if there was nothing new. Raises ``RunFolderError``."""
        before = self._tail.read_bytes
        records = self._tail.read()
        if self._tail.restarted:
            self._trace = Trace(str(self._tail.path.parent))
        has_read = self._tail.restarted or self._tail.read_bytes > before
        if has_read:
            self._trace.add(records)
            self._figures = None
        return has_read or not self._tail.at_end

    @property
    def at_end(self) -> bool:
        """Whether all of the journal has been read."""
        return self._tail.at_end

    def figures(self) -> RunFigures:
        """What is known so far. Raises ``RunFolderError`` for a journal without any record."""
        journal = self._tail.path
        # A journal under a name of its own is a copy: the folder's lock is not its.
        live = journal == RunDir(journal.parent).journal_path and holder(journal.parent) is not None
        if self._figures is None or self._figures.is_live != live:
            passed_over = self._tail.passed_over if self.at_end and not live else ""
            share = self._tail.read_bytes / self._tail.size_bytes if self._tail.size_bytes else 1.0
            self._figures = self._trace.figures(
                self.name,
                is_live=live,
                passed_over=passed_over,
                read_share=min(1.0, share),
            )
            if self.at_end and self._figures.last_time is None and not live:
                raise RunFolderError(f"{self._tail.path} holds no records", hint=passed_over)
        return self._figures

    def close(self) -> None:
        """Close the journal."""
        self._tail.close()


def follow(journals: Sequence[Path]) -> list[FollowedRun]:
    """A reader for each of ``journals``, with unique names."""
    names = [name_of(journal) for journal in journals]
    return [
        FollowedRun(journal, name if names.count(name) == 1 else f"{journal.parent.name}/{name}")
        for journal, name in zip(journals, names, strict=True)
    ]


def read_all(journals: Sequence[Path], *, target: float | None) -> Compared:
    """The comparison of the runs as they are now. Raises ``RunFolderError``."""
    runs = follow(journals)
    try:
        for run in runs:
            while run.advance():
                pass
        return compared([run.figures() for run in runs], target=target)
    finally:
        for run in runs:
            run.close()


class Following(ReadingThread):
    """Reads the journals and publishes each comparison, at which a screen looks."""

    def __init__(self, journals: Sequence[Path], *, target: float | None) -> None:
        super().__init__("amptui-compare")
        self._runs = follow(journals)
        self._target = target
        self.newest: Compared | None = None
        """The newest comparison; None until there is a first."""

    def stop(self) -> None:
        """Stop reading and close the journals, unless one of them never answers."""
        super().stop()
        if not self._thread.is_alive():
            for run in self._runs:
                run.close()

    def _work(self) -> float:
        """Read on in all runs in turn, until there is nothing new or a second has passed, and publish."""
        until = time.monotonic() + LOOK_SECONDS
        while sum(run.advance() for run in self._runs if not self._stopping):
            if time.monotonic() > until:
                break
        if not self._stopping:
            figures = [run.figures() for run in self._runs]
            newest = self.newest
            if newest is None or any(new is not old for new, old in zip(figures, newest.runs, strict=True)):
                self.newest = compared(figures, target=self._target)
        return LOOK_SECONDS if all(run.at_end for run in self._runs) else 0.0
