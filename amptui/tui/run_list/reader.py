"""The runs of the list, and the thread that lists them again and again and reads the rows that are shown."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from amptui.tui.reading_thread import ReadingThread

if TYPE_CHECKING:
    from amptui.runs.find import RunEntry
    from amptui.runs.kept_run import KeptRun


LOOK_SECONDS = 1.0
"""How often the list and the rows of live runs are renewed, at most."""

_LISTING_SHARE = 0.05
"""The fraction of one core that listing may take: with 20,000 runs the list is renewed every few seconds."""


class ListReader(ReadingThread):
    """Publishes entries and rows, at which a screen looks.

    ``list_runs``: of all runs, live ones first, then the newest. Called again and again in this thread.
    Raises AmptuiError.
    """

    def __init__(self, list_runs: Callable[[], Sequence["RunEntry"]]) -> None:
        super().__init__("amptui-runs")
        self._list_runs = list_runs
        self._wanted: Sequence[RunEntry] = ()
        self._reads: dict[str, tuple[RunEntry, KeptRun]] = {}
        """The newest row of each run, with the entry that it was read from."""
        self._listing_due = self._reading_due = 0.0
        self.entries: Sequence[RunEntry] | None = None
        """None until there is a first list."""
        self.rows: Mapping[str, KeptRun] = {}
        """By ``RunEntry.run``, of the runs that were wanted so far."""

    def want(self, entries: Sequence["RunEntry"]) -> None:
        """These are on the screen: read them, in this order."""
        if entries != self._wanted:
            self._wanted = entries
            self._wake.set()

    def _work(self) -> float:
        began = time.monotonic()
        if began >= self._listing_due:
            self.entries = self._list_runs()
            ended = time.monotonic()
            self._listing_due = ended + max(LOOK_SECONDS, (ended - began) / _LISTING_SHARE)
        self._read_wanted()
        return max(0.0, min(self._listing_due, self._reading_due) - time.monotonic())

    def _read_wanted(self) -> None:
        """Read what is new on the screen at once, and live runs again when it is time."""
        began = time.monotonic()
        is_due = began >= self._reading_due
        for entry in self._wanted:
            last, row = self._reads.get(entry.run, (None, None))
            # What could not be read may be readable now.
            is_old = last is None or last.written != entry.written or row is None or row.state == "unreadable"
            may_differ = is_due and (entry.is_live or is_old)
            if last is None or last.is_live != entry.is_live or may_differ:
                self._reads[entry.run] = entry, entry.read()
                self.rows = {run: row for run, (_, row) in self._reads.items()}
            if self._stopping or self._wake.is_set():
                break  # another page is on the screen by now
        if is_due:
            self._reading_due = time.monotonic() + LOOK_SECONDS
