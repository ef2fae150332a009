"""The screen of a comparison and its keys: one timer draws what the readers of the journals have found."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from amptui.compare import sentences
from amptui.compare.compare_frame import KEYS, Choice, CompareFrame
from amptui.compare.following import Following
from amptui.terminal import HeldTerminal, terminal_speaks_utf8
from amptui.tui import screen as screens
from amptui.tui.canvas import Canvas
from amptui.tui.dashboard import Dashboard
from amptui.tui.screen import MAX_WAITING_WRITES
from amptui.tui.terminal_driver import PatientDriver

if TYPE_CHECKING:
    from amptui.compare.contrasts import Compared

FRAME_SECONDS = 0.5
"""From one frame to the next: journals are looked at once a second."""

MAX_TOP = 1000
"""Lines that somebody can scroll: more than any verdict has."""

_ACTIONS = {press: key.action for key in KEYS for press in key.presses}

CompareLeft = Literal["", "hung up", "interrupted"]


class CompareApp(App[None]):
    """Shows what ``following`` reads; keys choose what to look at, and nothing reaches a run."""

    CSS_PATH = str(Path(screens.__file__).with_name("dashboard.tcss"))
    ENABLE_COMMAND_PALETTE = False
    TITLE = "amptui compare"
    BINDINGS: ClassVar[list[BindingType]] = [
        # Textual binds these two itself; here they are handled like every other key.
        Binding("ctrl+c", "press('ctrl+c')", show=False, priority=True),
        Binding("ctrl+q", "press('ctrl+q')", show=False, priority=True),
    ]

    def __init__(self, following: Following, terminal: HeldTerminal | None = None) -> None:
        self.terminal = terminal
        super().__init__(driver_class=PatientDriver, ansi_color=True)
        self._following = following
        self._frame = CompareFrame()
        self._choice = Choice()
        self._drawn: Compared | None = None
        self._dashboard = Dashboard(
            self._paint, self._write, ascii_only=not terminal_speaks_utf8(), no_color=self.no_color
        )
        self.left: CompareLeft | None = None
        """How the screen was left; None while it is open, and if an error ended it."""

    @property
    def choice(self) -> Choice:
        """What somebody chose to look at."""
        return self._choice

    def compose(self) -> ComposeResult:
        """Add the one widget."""
        yield self._dashboard

    def on_mount(self) -> None:
        """Paint first, then start to read."""
        if self.left is not None:
            self.leave_soon(self.left)  # asked for before the screen was up
        self.app_resume_signal.subscribe(self, lambda _: self._dashboard.refresh())
        self._dashboard.repaint()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._following.start()
        self._tick()

    def _tick(self) -> None:
        driver = self._driver
        if isinstance(driver, PatientDriver) and driver.terminal_is_gone:
            self._leave("hung up")
            return
        if self._following.failure is not None:
            self._leave("")
            return
        newest = self._following.newest
        behind = isinstance(driver, PatientDriver) and driver.waiting_writes > MAX_WAITING_WRITES
        if newest is not self._drawn and not behind:
            self._drawn = newest
            self._dashboard.repaint()
        self.set_timer(FRAME_SECONDS, self._tick)

    def _paint(self, canvas: Canvas) -> None:
        self._frame.draw(canvas, self._following.newest, self._choice)

    def _write(self, data: str) -> None:
        if self._driver is not None:
            self._driver.write(data)

    # --------------------------------------------------------------------------------- keys

    async def on_key(self, event: events.Key) -> None:
        """Every key but the two that Textual binds itself."""
        event.stop()
        event.prevent_default()
        await self.action_press(event.key)

    async def action_press(self, key: str) -> None:
        """An open help is closed by any key; otherwise the table of keys decides."""
        if key == "ctrl+c":
            self._leave("interrupted")
            return
        if self._choice.shows_help:
            self._choice = replace(self._choice, shows_help=False)
        elif key in _ACTIONS:
            self._choice = replace(self._choice, message="")
            await self.run_action(_ACTIONS[key])
        self._dashboard.repaint()

    def action_next_axis(self) -> None:
        """By step, by samples, by training time, and again."""
        axes = [*sentences.AXES]
        at = axes.index(self._choice.axis)
        self._choice = replace(self._choice, axis=axes[(at + 1) % len(axes)])

    def action_toggle_validation(self) -> None:
        """Losses of validations, if there are any, or of training."""
        newest = self._following.newest
        if newest is None or not any(run.validations for run in newest.runs):
            self._choice = replace(self._choice, message=sentences.NO_VALIDATION)
        else:
            self._choice = replace(self._choice, validation=not self._choice.validation)

    def action_toggle_log(self) -> None:
        """A logarithmic loss axis, or a linear one."""
        self._choice = replace(self._choice, log_y=not self._choice.log_y)

    def action_toggle_runs(self) -> None:
        """A row for each run, or for each group."""
        self._choice = replace(self._choice, by_run=not self._choice.by_run)

    def action_scroll_down(self) -> None:
        """On by a line of the verdict."""
        self._choice = replace(self._choice, top=min(self._choice.top + 1, MAX_TOP))

    def action_scroll_up(self) -> None:
        """Back by a line."""
        self._choice = replace(self._choice, top=max(0, self._choice.top - 1))

    def action_show_help(self) -> None:
        """Open the help."""
        self._choice = replace(self._choice, shows_help=True)

    def action_leave(self) -> None:
        """Quit."""
        self._leave("")

    # ------------------------------------------------------------------------------ leaving

    def leave_soon(self, how: CompareLeft = "hung up") -> None:
        """Leave soon. For any thread and for a signal handler, before and while the screen is open."""
        self.left = how
        if how == "hung up" and isinstance(self._driver, PatientDriver):
            self._driver.hurry()
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the screen has ended
                loop.call_soon_threadsafe(self.exit)

    def _leave(self, how: CompareLeft) -> None:
        self.left = how if self.left is None else self.left
        if how == "hung up" and isinstance(self._driver, PatientDriver):
            self._driver.hurry()
        self._write(f"\x1b[{self.size.height};1H")
        self.exit()
