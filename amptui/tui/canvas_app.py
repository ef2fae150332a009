"""A Textual application with one widget, the canvas: paints first, then ticks; writes and leaves safely."""

from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from amptui.base.terminal import HeldTerminal
from amptui.base.text import terminal_speaks_utf8
from amptui.tui.canvas import Canvas
from amptui.tui.dashboard import Dashboard
from amptui.tui.terminal_driver import PatientDriver

MAX_WAITING_WRITES = 2
"""Frames are skipped while more writes than this wait for a slow link."""

Left = Literal["", "detached", "hung up", "interrupted", "stopped"]
"""How a screen ended: "" if there was nothing more to show, otherwise why it closed before that."""


class CanvasApp(App[None]):
    """Draws on a canvas. A subclass begins, paints and decides when to leave."""

    CSS_PATH = str(Path(__file__).with_name("dashboard.tcss"))
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # Textual binds these two itself; here they are handled like every other key.
        Binding("ctrl+c", "press('ctrl+c')", show=False, priority=True),
        Binding("ctrl+q", "press('ctrl+q')", show=False, priority=True),
    ]

    def __init__(self, terminal: HeldTerminal | None) -> None:
        self.terminal = terminal
        super().__init__(driver_class=PatientDriver, ansi_color=True)
        self._dashboard = Dashboard(
            self._paint, self._write, ascii_only=not terminal_speaks_utf8(), no_color=self.no_color
        )
        self.left: Left | None = None
        """How the screen was left; None while it is open, and if an error ended it."""

    def compose(self) -> ComposeResult:
        """Add the only widget."""
        yield self._dashboard

    def on_mount(self) -> None:
        """Paint first, then begin."""
        if self.left is not None:
            self.hang_up(self.left)  # asked for before the screen was up
        self.app_resume_signal.subscribe(self, lambda _: self._dashboard.refresh())
        self._dashboard.repaint()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """Start what the screen shows, and draw the first frame of it."""
        raise NotImplementedError

    def _paint(self, canvas: Canvas) -> None:
        raise NotImplementedError

    async def on_key(self, event: events.Key) -> None:
        """Handle every key except the two that Textual binds."""
        event.stop()
        event.prevent_default()
        await self.action_press(event.key)

    async def action_press(self, key: str) -> None:
        """Handle a key."""

    def _write(self, data: str) -> None:
        if self._driver is not None:
            self._driver.write(data)

    def _link_is_behind(self) -> bool:
        driver = self._driver
        return isinstance(driver, PatientDriver) and driver.waiting_writes > MAX_WAITING_WRITES

    def _terminal_is_gone(self) -> bool:
        return isinstance(self._driver, PatientDriver) and self._driver.terminal_is_gone

    def hang_up(self, how: Left = "hung up") -> None:
        """Leave soon, even if the terminal accepts no more output. Does not stop a run.

        May be called from any thread and from a signal handler, before and while the screen is open.
        """
        self.left = how
        if how != "interrupted" and isinstance(self._driver, PatientDriver):
            self._driver.hurry()
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the screen has ended
                loop.call_soon_threadsafe(self.exit)

    def _leave(self, how: Left) -> None:
        """End the screen; without an alternate screen, later output appears below it."""
        self.left = how if self.left is None else self.left
        if how == "hung up" and isinstance(self._driver, PatientDriver):
            self._driver.hurry()
        self._write(f"\x1b[{self.size.height};1H")
        self.exit()
