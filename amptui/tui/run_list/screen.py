"""The screen of the list of runs and its keys: it ends with what the user chose to do with which runs."""

import asyncio
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from amptui.base import units
from amptui.base.errors import AmptuiError
from amptui.base.runfiles import Removal
from amptui.base.text import printable
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.opening import Opening
from amptui.tui.overlays.overlay import CLOSE, Answer, Search, line_after
from amptui.tui.overlays.questions import Choice, Question
from amptui.tui.panels.phrases import Line, phrase, wrapped
from amptui.tui.run_list.frame import KEYS, ListState, draw, page_rows
from amptui.tui.run_list.reader import Chosen, ListReader, RunEntry, RunSource
from amptui.tui.screen import Screen

MAX_COMPARED = 26
"""As many as there are letters for their groups."""

Outcome = Removal | AmptuiError
"""Of a removal: its plan, what was removed, or why it cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the user was in the list, to come back to."""

    run: str = ""
    """The one under the cursor."""
    selected: Sequence[str] = ()
    pattern: str = ""


class RunListScreen(Screen):
    """Shows the runs of ``source``. Nothing here attaches to a run: ``chosen`` says what to do next.

    ``place`` and ``message`` are those of before: the list opens again after each run that was looked at.
    """

    TITLE = "amptui runs"
    KEYS = KEYS

    def __init__(
        self,
        source: RunSource,
        opening: Opening | None = None,
        *,
        place: Place | None = None,
        message: str = "",
    ) -> None:
        self._list_reader = ListReader(source)
        super().__init__(opening, reader=self._list_reader)
        self._source = source
        self._planned = ""
        """The run whose removal is being looked up."""
        self._removing: set[str] = set()
        """The runs that are being deleted. A removal that is cut off leaves a run that can be removed."""
        self._hidden: set[str] = set()
        """These and those that were."""
        place = place or Place()
        self._search = Search()
        self._search.text = place.pattern
        self._list = ListState(entries=None, selected=place.selected)
        if message:
            self._say(message)
        self._run_under_cursor = place.run
        self._drawn: tuple[int, int] | None = None
        """The version of what was read, and the second, of the newest frame: ages count on."""
        self.chosen: Chosen | None = None
        """What the user wants; None if they quit."""

    @property
    def place(self) -> Place:
        """Where the user is."""
        return Place(run=self._run_under_cursor, selected=self._list.selected, pattern=self._search.text)

    def _has_news(self) -> bool:
        now = self._list_reader.version, int(time.time())
        before, self._drawn = self._drawn, now
        return now != before

    def _draw(self, canvas: Canvas) -> None:
        self._list = replace(self._list, pattern=self._search.text, is_typing=self._search.is_typing)
        if self._list_reader.entries is not None:
            self._refresh_entries(self._list_reader.entries, page_rows(canvas.height))
        draw(canvas, self._list, self._state)

    def _refresh_entries(self, entries: Sequence[RunEntry], page: int) -> None:
        """Take in what was read; the cursor stays on its run wherever that is now."""
        before, pattern = self._list, self._search.text
        entries = [entry for entry in entries if entry.run not in self._hidden]
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
        self._list = replace(
            self._list,
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

    async def action_press(self, key: str) -> None:
        """Any other key takes back to have asked to remove a run."""
        if self._actions.get(key) != "remove":
            self._planned = ""
        await super().action_press(key)

    def _takes(self, key: str) -> bool:
        return self._search.press(key)

    @property
    def _entry(self) -> RunEntry | None:
        """The run under the cursor."""
        return self._list.entries[self._list.cursor] if self._list.entries else None

    def action_move(self, key: str) -> None:
        """To another run."""
        entries = self._list.entries
        if entries:
            page = page_rows(self.size.height)
            place = line_after(self._list.cursor, key, page=page, last=len(entries) - 1)
            self._run_under_cursor = entries[place].run

    def action_open(self) -> None:
        """Attach the run under the cursor if it is live, else replay it."""
        entry = self._entry
        if entry is not None:
            self._choose(Chosen("attach" if entry.is_live else "replay", (entry.run,)))

    def action_select(self) -> None:
        """Select the run under the cursor, or no longer, and go to the next."""
        entry = self._entry
        if entry is None:
            return
        selected = self._list.selected
        if entry.run in selected:
            selected = tuple(run for run in selected if run != entry.run)
        elif len(selected) == MAX_COMPARED:
            self._say(f"at most {MAX_COMPARED} runs can be compared", severity="info")
        else:
            selected = (*selected, entry.run)
        self._list = replace(self._list, selected=selected)
        self.action_move("down")

    def action_compare(self) -> None:
        """Compare the selected runs."""
        if len(self._list.selected) < 2:
            self._say("select two runs or more with a, then press c", severity="info")
        else:
            self._choose(Chosen("compare", tuple(self._list.selected)))

    def _choose(self, chosen: Chosen) -> None:
        if self._removing:
            self._say("a run is being removed: open another when that is done", severity="info")
            return
        self.chosen = chosen
        self._leave("")

    # ------------------------------------------------------------------------------ removals

    def action_remove(self) -> None:
        """Ask whether to remove the run under the cursor."""
        entry = self._entry
        if entry is None:
            return
        if entry.is_live:
            self._say("this run is live: stop it before you remove it")
            return
        self._say(f"looking up what is in {entry.name}", severity="info")
        if self._planned != entry.run:
            self._planned = entry.run
            _in_thread(partial(self._source.plan_removal, entry.run), partial(self._ask, entry))

    def _ask(self, entry: RunEntry, plan: Outcome) -> None:
        if self._planned != entry.run:
            return  # the user went on to something else
        self._planned = ""
        if isinstance(plan, AmptuiError):
            self._say(str(plan), severity="error")
        else:
            self._message_until = 0.0
            self._overlay = RemovalQuestion(plan, partial(self._remove, entry, plan))
        self._redraw()

    def action_doubt(self) -> None:
        """A yes that nobody can have meant."""
        self._say("too soon to be a yes: press y again", severity="info")

    def _remove(self, entry: RunEntry, plan: Removal) -> None:
        self._removing.add(entry.run)
        self._hidden.add(entry.run)
        self._say(f"removing {entry.name}", severity="info")
        _in_thread(partial(self._source.remove, plan), partial(self._tell_removed, entry.run))

    def _tell_removed(self, run: str, removed: Outcome) -> None:
        self._removing.discard(run)
        if isinstance(removed, AmptuiError):
            self._hidden.discard(run)
            self._say(str(removed), severity="error")
        else:
            stays = f"; {len(removed.left)} that are not the run's are kept" if removed.left else ""
            self._say(f"removed {removed.folder}{stays}", severity="info")
        self._list_reader.list_again()
        self._redraw()


def _in_thread(work: Callable[[], Removal], take: Callable[[Outcome], object]) -> None:
    """Have ``take`` called with what ``work`` returns: on a slow file system keys keep working."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            outcome: Outcome = work()
        except AmptuiError as error:
            outcome = error
        with suppress(RuntimeError):  # the screen has closed
            loop.call_soon_threadsafe(take, outcome)

    # A daemon: a file system that never answers must not keep the process.
    threading.Thread(target=run, name="amptui-removal", daemon=True).start()


READING_SECONDS = 0.4
"""How long the question stands before it takes a yes. Nobody reads it sooner, but whoever forgets the slash
before a name with these letters types them."""


class RemovalQuestion(Question):
    """Whether ``remove`` is to do what was planned."""

    name: ClassVar[str] = "removal"
    title: ClassVar[str] = "remove this run?"

    def __init__(self, plan: Removal, remove: Callable[[], object]) -> None:
        self._plan = plan
        self._remove = remove
        self._opened_at = time.monotonic()

    def lines(self, _view: SessionView, width: int) -> list[Line]:
        return [[phrase(line)] for line in _lines(self._plan, width)]

    def choices(self, _view: SessionView) -> Sequence[Choice]:
        return Choice(("y",), "remove", CLOSE), Choice(("escape",), "go back", CLOSE)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Only a clear yes removes the run; one that comes at once is no answer."""
        if key == "y" and time.monotonic() - self._opened_at < READING_SECONDS:
            return Answer(action="doubt")
        if key == "y":
            self._remove()
        return CLOSE


def _lines(plan: Removal, width: int) -> list[str]:
    """What would be deleted and what would stay, in lines of ``width`` cells."""
    parts = [
        units.counted(number, noun)
        for number, noun in (
            (plan.journals, "journal"),
            (plan.checkpoints, "checkpoint"),
            (plan.other_files, "other file"),
        )
        if number
    ]
    contents = f"{', '.join(parts) or 'no files'}: {units.number_of_bytes(plan.size_bytes)}"
    lines = [*textwrap.wrap(printable(str(plan.folder)), width), *wrapped(contents, width, lines=2)]
    if plan.left:
        names = ", ".join(map(printable, plan.left[:3])) + (", …" if len(plan.left) > 3 else "")
        lines += wrapped(f"not the run's, and kept with the folder: {names}", width, lines=2)
    return lines
