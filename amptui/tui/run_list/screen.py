"""The screen of the list of runs and its keys: it ends with what the user chose to do with which runs."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from textual import events

from amptui.base.errors import AmptuiError
from amptui.base.runfiles import Removal
from amptui.records.run import Severity
from amptui.tui.canvas import Canvas
from amptui.tui.canvas_app import CanvasApp
from amptui.tui.opening import Opening
from amptui.tui.overlays.overlay import line_after
from amptui.tui.run_list.entry import Chosen, RunEntry, RunSource
from amptui.tui.run_list.frame import KEYS, MOVE, ListState, draw, page_rows
from amptui.tui.run_list.reader import ListReader

FRAME_SECONDS = 0.25
"""From one look at what was read to the next."""

READING_SECONDS = 0.4
"""How long the question stands before it takes a yes. Nobody reads it sooner, but whoever forgets the slash
before a name with these letters types them."""

MAX_COMPARED = 26
"""As many as there are letters for their groups."""

Outcome = Removal | AmptuiError
"""Of a removal: its plan, what was removed, or why it cannot be."""

_ACTIONS = {press: key.action for key in KEYS for press in key.presses}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the user was in the list, to come back to."""

    run: str = ""
    """The one under the cursor."""
    selected: Sequence[str] = ()
    pattern: str = ""


class RunListApp(CanvasApp):
    """Shows the runs of ``source``. Nothing here attaches to a run: ``chosen`` says what to do next.

    ``place`` and ``message`` are those of before: the list opens again after each run that was looked at.
    """

    TITLE = "amptui runs"

    def __init__(
        self,
        source: RunSource,
        opening: Opening | None = None,
        *,
        place: Place | None = None,
        message: str = "",
    ) -> None:
        super().__init__(opening)
        self._source = source
        self._reader = ListReader(source)
        self._planned = ""
        """The run whose removal is being looked up."""
        self._removing: dict[str, RunEntry] = {}
        """The runs that are being deleted. A removal that is cut off leaves a run that can be removed."""
        place = place or Place()
        self._state = ListState(
            entries=None,
            selected=place.selected,
            pattern=place.pattern,
            message=message,
            severity="warning",
            host=source.host,
        )
        self._run_under_cursor = place.run
        self._version = -1
        self._drawn_second = 0
        self._typed = ""
        self._asked_of: RunEntry | None = None
        self._asked_at = 0.0
        """When the question was asked, on the monotonic clock."""
        self._is_leaving = self._leaves_now = False
        """Whether the screen closes once nothing is being removed, and whether this key closes it before."""
        self.chosen: Chosen | None = None
        """What the user wants; None if they quit."""

    @property
    def state(self) -> ListState:
        """What the newest frame showed."""
        return self._state

    @property
    def place(self) -> Place:
        """Where the user is."""
        return Place(run=self._run_under_cursor, selected=self._state.selected, pattern=self._state.pattern)

    @property
    def failure(self) -> AmptuiError | None:
        """Why the list could not be read."""
        return self._reader.failure

    def _begin(self) -> None:
        self._reader.start()
        self._tick()

    async def on_unmount(self) -> None:
        """Stop the reader with the screen."""
        self._reader.stop()

    def _tick(self) -> None:
        if self._terminal_is_gone():
            self._leave("hung up")
            return
        if self._reader.failure is not None:
            self._leave("")
            return
        # Ages count on once a second, whatever is read.
        second = int(time.time())
        if (self._version, self._drawn_second) != (
            self._reader.version,
            second,
        ) and not self._link_is_behind():
            self._version, self._drawn_second = self._reader.version, second
            self._dashboard.repaint()
        self.set_timer(FRAME_SECONDS, self._tick)

    def _paint(self, canvas: Canvas) -> None:
        self._refresh(canvas.height)
        draw(canvas, self._state)

    def _refresh(self, height: int) -> None:
        """Take in what was read; the cursor stays on its run wherever that is now."""
        entries = self._reader.entries
        if entries is None:
            return
        if self._removing:
            entries = _in_their_places(entries, self._removing)
        state = self._state
        live = sum(entry.is_live for entry in entries)
        runs = {entry.run for entry in entries} if state.selected else set()
        pattern = state.pattern.casefold()
        shown = [entry for entry in entries if pattern in entry.name.casefold()] if pattern else entries
        cursor = next(
            (place for place, entry in enumerate(shown) if entry.run == self._run_under_cursor),
            min(state.cursor, max(0, len(shown) - 1)),
        )
        page = page_rows(height)
        top = max(0, min(state.top, cursor, len(shown) - page))
        top = max(top, cursor - page + 1)
        self._state = replace(
            state,
            entries=shown,
            live=live,
            ended=len(entries) - live,
            rows=self._reader.rows,
            removing=tuple(self._removing),
            cursor=cursor,
            top=top,
            selected=tuple(run for run in state.selected if run in runs),
            now=time.time(),
        )
        self._run_under_cursor = shown[cursor].run if shown else self._run_under_cursor
        self._reader.want(shown[top : top + page])

    # --------------------------------------------------------------------------------- keys

    async def on_key(self, event: events.Key) -> None:
        """Note the character beside the key: names of keys are no text."""
        self._typed = event.character or "" if event.is_printable else ""
        await super().on_key(event)

    async def action_press(self, key: str) -> None:
        """A question or the help takes the key, then the filter; otherwise the table of keys decides."""
        if key == "ctrl+c":
            self._leave("interrupted")
            return
        self._leaves_now, self._is_leaving = self._is_leaving, False
        if self._state.removal is not None:
            self._answer(key, self._state.removal)
        elif self._state.shows_help:
            self._state = replace(self._state, shows_help=False)
        elif self._state.is_typing:
            self._type(key)
        elif key in _ACTIONS:
            self._state = replace(self._state, message="")
            action = _ACTIONS[key]
            if action != "remove":
                self._planned = ""
            await self.run_action(f"{action}('{key}')" if action == MOVE else action)
        elif key == "escape":
            self._planned = ""
            self._state = replace(self._state, pattern="", message="")
        self._dashboard.repaint()

    @property
    def _usable(self) -> RunEntry | None:
        """The run under the cursor; None, and a word of it, if nothing can be done with it."""
        entries = self._state.entries
        entry = entries[self._state.cursor] if entries else None
        if entry is not None and entry.run in self._removing:
            self._say("this run is being removed")
            return None
        return entry

    def _say(self, message: str, severity: Severity = "info") -> None:
        self._state = replace(self._state, message=message, severity=severity)

    def action_move(self, key: str) -> None:
        """To another run."""
        entries = self._state.entries
        if entries:
            page = page_rows(self.size.height)
            place = line_after(self._state.cursor, key, page=page, last=len(entries) - 1)
            self._run_under_cursor = entries[place].run
            self._state = replace(self._state, cursor=place)

    def action_open(self) -> None:
        """Attach the run under the cursor if it is live, else replay it."""
        entry = self._usable
        if entry is None:
            return
        if self._source.host and not entry.is_live:
            self._say(f"this run has ended; `amptui replay` on {self._source.host} shows it")
        else:
            self._choose(Chosen("attach" if entry.is_live else "replay", (entry.run,)))

    def action_select(self) -> None:
        """Select the run under the cursor, or no longer, and go to the next."""
        entry = self._usable
        if entry is None:
            return
        selected = self._state.selected
        if entry.run in selected:
            selected = tuple(run for run in selected if run != entry.run)
        elif len(selected) == MAX_COMPARED:
            self._say(f"at most {MAX_COMPARED} runs can be compared")
        else:
            selected = (*selected, entry.run)
        self._state = replace(self._state, selected=selected)
        self.action_move("down")

    def action_compare(self) -> None:
        """Compare the selected runs."""
        if self._source.host:
            self._say(f"`amptui compare` on {self._source.host} compares them")
        elif len(self._state.selected) < 2:
            self._say("select two runs or more with space, then press c")
        else:
            self._choose(Chosen("compare", tuple(self._state.selected)))

    def action_remove(self) -> None:
        """Ask whether to remove the run under the cursor."""
        entry = self._usable
        if entry is None:
            return
        if entry.is_live:
            self._say("this run is live: stop it before you remove it", "warning")
            return
        self._say(f"looking up what is in {entry.name}")
        if self._planned != entry.run:
            self._planned = entry.run
            _in_thread(partial(self._source.plan_removal, entry.run), partial(self._ask, entry))

    def _ask(self, entry: RunEntry, plan: Outcome) -> None:
        if self._planned != entry.run:
            return  # the user went on to something else
        self._planned = ""
        self._say("")
        if isinstance(plan, AmptuiError):
            self._say(str(plan), "error")
        else:
            self._asked_of, self._asked_at = entry, time.monotonic()
            self._state = replace(self._state, removal=plan)
        self._dashboard.repaint()

    def _answer(self, key: str, plan: Removal) -> None:
        """Only a clear yes removes the run; one that comes at once is no answer."""
        if key == "y" and time.monotonic() - self._asked_at < READING_SECONDS:
            self._say("too soon to be a yes: press y again")
            return
        self._say("")
        self._state = replace(self._state, removal=None)
        if key == "y" and self._asked_of is not None:
            self._removing[self._asked_of.run] = self._asked_of
            _in_thread(partial(self._source.remove, plan), partial(self._tell_removed, self._asked_of.run))

    def _tell_removed(self, run: str, removed: Outcome) -> None:
        del self._removing[run]
        if isinstance(removed, AmptuiError):
            self._say(str(removed), "error")
            self._is_leaving = False  # so that it can be read
        else:
            stays = f"; {len(removed.left)} that are not the run's are kept" if removed.left else ""
            self._say(f"removed {removed.folder}{stays}")
        self._reader.list_again()
        if self._is_leaving and not self._removing:
            self._leave("")
        self._dashboard.repaint()

    def action_filter(self) -> None:
        self._state = replace(self._state, is_typing=True)

    def _type(self, key: str) -> None:
        pattern = self._state.pattern
        if key in ("enter", "escape", "ctrl+q"):
            self._state = replace(self._state, is_typing=False, pattern="" if key == "escape" else pattern)
            return
        if key == "backspace":
            pattern = pattern[:-1]
        elif key == "ctrl+u":
            pattern = ""
        else:
            pattern += self._typed
        self._state = replace(self._state, pattern=pattern, top=0)

    def action_show_help(self) -> None:
        self._state = replace(self._state, shows_help=True)

    def action_leave(self) -> None:
        """Quit, once nothing is being removed; the second time at once."""
        removing = len(self._removing)
        if not removing or self._leaves_now:
            self._leave("")
            return
        self._is_leaving = True
        runs = "1 run is" if removing == 1 else f"{removing} runs are"
        self._say(f"quits once {runs} removed; q again: at once, with the rest of the files kept")

    def _choose(self, chosen: Chosen) -> None:
        if self._removing:
            self._say("a run is being removed: open another when that is done")
            return
        self.chosen = chosen
        self._leave("")


def _in_their_places(entries: Sequence[RunEntry], removing: Mapping[str, RunEntry]) -> Sequence[RunEntry]:
    """``entries``, in which the runs that are being deleted stand as and where they did before.

    A removal holds a run's lock, changes its folder and deletes its journal: it would jump about.
    """
    others = [entry for entry in entries if entry.run not in removing]
    live = [entry for entry in others if entry.is_live]
    ended = [*(entry for entry in others if not entry.is_live), *removing.values()]
    return [*live, *sorted(ended, key=lambda entry: -entry.written)]


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
