"""Reads several runs, and follows those that still grow."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from amptui.base.errors import AmptuiError, RunFolderError
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.trace import RunFigures, Trace
from amptui.runs.find import name_of
from amptui.runs.lock import holder
from amptui.runs.reader import JournalReader
from amptui.runs.rundir import RunDir

LOOK_SECONDS = 1.0
"""How often journals are looked at for new records, and at least how often a reader publishes what it has."""

_PATIENCE_SECONDS = 1.0


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


class Following:
    """Reads the journals in a thread of its own and publishes each comparison, at which a screen looks."""

    def __init__(
        self, journals: Sequence[Path], *, target: float | None, changed: Callable[[], object] = lambda: None
    ) -> None:
        self._runs = follow(journals)
        self._target = target
        self._changed = changed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amptui-compare", daemon=True)
        self.newest: Compared | None = None
        """The newest comparison; None until there is a first."""
        self.failure: AmptuiError | None = None
        """Why nothing more is read."""

    def start(self) -> None:
        """Start to read; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; a thread that does not stop in time is abandoned."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_SECONDS)
        else:
            self._close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._read_for_a_while()
                if not self._stopping.is_set():
                    self._publish()
                if all(run.at_end for run in self._runs):
                    self._stopping.wait(LOOK_SECONDS)
        except AmptuiError as error:
            self.failure = error
            self._changed()
        finally:
            self._close()

    def _close(self) -> None:
        for run in self._runs:
            run.close()

    def _read_for_a_while(self) -> None:
        """Read on in all runs in turn, until there is nothing new or a second has passed."""
        until = time.monotonic() + LOOK_SECONDS
        while sum(run.advance() for run in self._runs if not self._stopping.is_set()):
            if time.monotonic() > until or self._stopping.is_set():
                return

    def _publish(self) -> None:
        figures = [run.figures() for run in self._runs]
        newest = self.newest
        if newest is None or any(new is not old for new, old in zip(figures, newest.runs, strict=True)):
            self.newest = compared(figures, target=self._target)
            self._changed()
