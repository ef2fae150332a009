"""The screen of the list of runs, its keys and what reads the runs: it ends with what the user chose."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from amptui.tui.canvas import Canvas
from amptui.tui.opening import Opening
from amptui.tui.overlays.overlay import Search, line_after
from amptui.tui.reading_thread import ReadingThread
from amptui.tui.run_list.frame import KEYS, ListState, draw, page_rows
from amptui.tui.screen import Screen

if TYPE_CHECKING:
    from amptui.runs.find import RunEntry
    from amptui.runs.kept_run import KeptRun

ERROR_SECONDS = 60.0
"""How long it is said what became of the choice before: longer than it takes to read a line."""

LOOK_SECONDS = 1.0
"""How often the list and the rows of live runs are renewed, at most."""

_SHARE = 0.05
"""The fraction of one core that this may take: with 20,000 runs the list is renewed every few seconds."""


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
        self._due = 0.0
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
        """List the runs if that is due; read what is new on the screen, and what may differ if that is."""
        began = time.monotonic()
        is_due = began >= self._due
        if is_due:
            self.entries = self._list_runs()
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
        now = time.monotonic()
        if is_due:
            self._due = now + max(LOOK_SECONDS, (now - began) / _SHARE)
        return max(0.0, self._due - now)


class RunListScreen(Screen):
    """Shows what ``list_runs`` returns. Nothing here attaches to a run: ``chosen`` says what to do next.

    The list opens again after each run that was looked at: ``before`` is its state then, ``message`` is what
    came of the choice.
    """

    TITLE = "amptui runs"
    KEYS = KEYS

    def __init__(
        self,
        list_runs: Callable[[], Sequence["RunEntry"]],
        opening: Opening | None = None,
        *,
        before: ListState | None = None,
        message: str = "",
    ) -> None:
        self._list_reader = ListReader(list_runs)
        super().__init__(opening, reader=self._list_reader)
        before = before or ListState(entries=None)
        self._run_under_cursor = before.entries[before.cursor].run if before.entries else ""
        self.list_state = replace(before, entries=None)
        """What is shown, and where in it the user is."""
        self._search = Search()
        self._search.text = before.pattern
        if message:
            self._say(message, seconds=ERROR_SECONDS)
        self.chosen: Sequence[str] = ()
        """The command line of what the user wants; empty if they quit."""

    def _draw(self, canvas: Canvas) -> None:
        self.list_state = replace(
            self.list_state, pattern=self._search.text, is_typing=self._search.is_typing
        )
        if self._list_reader.entries is not None:
            self._refresh_entries(self._list_reader.entries, page_rows(canvas.height))
        draw(canvas, self.list_state, self._state)

    def _refresh_entries(self, entries: Sequence["RunEntry"], page: int) -> None:
        """Take in what was read; the cursor stays on its run wherever that is now."""
        before, pattern = self.list_state, self._search.text
        live = sum(entry.is_live for entry in entries)
        runs = {entry.run for entry in entries} if before.selected else set()
        matching = pattern.casefold()
        shown = [entry for entry in entries if matching in entry.name.casefold()] if pattern else entries
        cursor = next(
            (place for place, entry in enumerate(shown) if entry.run == self._run_under_cursor),
            min(before.cursor, max(0, len(shown) - 1)),
        )
        top = max(0, min(before.top, cursor, len(shown) - page))
        top = max(top, cursor - page + 1)
        self.list_state = replace(
            self.list_state,
            entries=shown,
            live=live,
            ended=len(entries) - live,
            rows=self._list_reader.rows,
            cursor=cursor,
            top=top,
            selected=tuple(run for run in before.selected if run in runs),
        )
        self._run_under_cursor = shown[cursor].run if shown else self._run_under_cursor
        self._list_reader.want(shown[top : top + page])

    # --------------------------------------------------------------------------------- keys

    def _takes(self, key: str) -> bool:
        return self._search.press(key)

    @property
    def _entry(self) -> "RunEntry | None":
        """The run under the cursor."""
        return self.list_state.entries[self.list_state.cursor] if self.list_state.entries else None

    def action_move(self, key: str) -> None:
        """To another run."""
        entries = self.list_state.entries
        if entries:
            page = page_rows(self.size.height)
            place = line_after(self.list_state.cursor, key, page=page, last=len(entries) - 1)
            self._run_under_cursor = entries[place].run

    def action_open(self) -> None:
        """Attach the run under the cursor if it is live, else replay it."""
        entry = self._entry
        if entry is not None:
            self._choose("attach" if entry.is_live else "replay", entry.run)

    def action_select(self) -> None:
        """Select the run under the cursor, or no longer, and go to the next."""
        entry = self._entry
        if entry is None:
            return
        selected = self.list_state.selected
        if entry.run in selected:
            selected = tuple(run for run in selected if run != entry.run)
        else:
            selected = (*selected, entry.run)
        self.list_state = replace(self.list_state, selected=selected)
        self.action_move("down")

    def action_compare(self) -> None:
        """Compare the selected runs."""
        if len(self.list_state.selected) < 2:
            self._say("select two runs or more with a, then press c", severity="info")
        else:
            self._choose("compare", *self.list_state.selected)

    def _choose(self, *chosen: str) -> None:
        self.chosen = chosen
        self._leave("")
