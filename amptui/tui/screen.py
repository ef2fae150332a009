"""One screen: a canvas, the keys of a table, a footer, a message, at most one overlay, and one way out."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from amptui.base.errors import AmptuiError
from amptui.base.text import terminal_speaks_utf8
from amptui.records.run import Severity
from amptui.telemetry.view import EMPTY_VIEW
from amptui.tui.canvas import Canvas, Painter
from amptui.tui.keys import Key
from amptui.tui.opening import Opening
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.reading_thread import ReadingThread
from amptui.tui.style import STYLES, Background, assumed_background, has_256_colours, styles_on
from amptui.tui.terminal_driver import BackgroundReported, PatientDriver

if TYPE_CHECKING:
    from amptui.tui.overlays.overlay import Answer, Overlay

MAX_WAITING_WRITES = 2
"""Frames are skipped while more writes than this wait for a slow link."""

Left = Literal["", "detached", "hung up", "interrupted", "stopped"]
"""How a screen ended: "" if there was nothing more to show, otherwise why it closed before that."""


class Dashboard(Widget):
    """Shows what ``paint`` draws on a canvas of the widget's size: the whole terminal.

    Textual draws it at the start and after a resize; otherwise ``write`` gets the changes. No other widget
    may be on the screen, because the changes bypass Textual's compositor.
    """

    def __init__(
        self,
        paint: Callable[[Canvas], None],
        write: Callable[[str], None],
        *,
        ascii_only: bool,
        no_color: bool,
        styles: Mapping[int, Style] = STYLES,
    ) -> None:
        super().__init__()
        self._paint = paint
        self._write = write
        self._no_color = no_color
        self._styles = styles
        self._painter = Painter(styles, no_color=no_color)
        self._ascii_only = ascii_only
        self._frame = Canvas(0, 0)
        self._strips: dict[int, Strip] = {}

    def repaint(self) -> None:
        """Draw a frame and write the cells that changed."""
        canvas = self._draw()
        if canvas.chars.shape != self._frame.chars.shape:
            self._keep(canvas)
            self.refresh()
            return
        spans = canvas.changes_since(self._frame)
        if spans:
            self._keep(canvas)
            self._write(self._painter.paint(canvas, spans))

    def restyle(self, styles: Mapping[int, Style]) -> None:
        """Draw everything again in other colours, if they are others."""
        if styles != self._styles:
            self._styles = styles
            self._painter = Painter(styles, no_color=self._no_color)
            self._strips.clear()
            self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The newest frame: Textual's cache has lines from before the changes that were written past it."""
        self._styles_cache.clear()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Line ``y`` of the newest frame, for Textual."""
        if self.size != Size(self._frame.width, self._frame.height):
            self._keep(self._draw())  # a resize asks for lines before the next frame
        if y not in self._strips:
            segments = [Segment(text, self._styles[style]) for text, style in self._frame.runs(y)]
            self._strips[y] = Strip(segments, self._frame.width)
        return self._strips[y]

    def _draw(self) -> Canvas:
        canvas = Canvas(self.size.width, self.size.height)
        self._paint(canvas)
        if self._ascii_only:
            canvas.make_ascii()
        return canvas

    def _keep(self, canvas: Canvas) -> None:
        self._frame = canvas
        self._strips.clear()


class Screen(App[None]):
    """A Textual application with one widget, the canvas: paints first, then ticks; writes and leaves safely.

    A subclass has a table of keys and a method for each of their actions, and says what to draw. ``opening``
    has shown the first frame, and entered the alternate screen on which the app continues. ``reader`` reads
    what the screen shows, from the first frame on; the screen leaves if that fails.
    """

    CSS_PATH = str(Path(__file__).with_name("dashboard.tcss"))
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # Textual binds these two itself; here they are handled like every other key.
        Binding("ctrl+c", "press('ctrl+c')", show=False, priority=True),
        Binding("ctrl+q", "press('ctrl+q')", show=False, priority=True),
    ]

    FRAME_SECONDS: ClassVar[float] = 0.5
    """Between two: training needs the cores to load batches and launch kernels. A key is drawn at once."""
    KEYS: ClassVar[Sequence[Key]] = ()
    """What can be pressed. Ctrl+C and Ctrl+Z always work."""
    HELP_TITLE: ClassVar[str] = "keys"
    HAS_GLOSSARY: ClassVar[bool] = False
    """Whether the help goes on with one."""
    MESSAGE_SECONDS: ClassVar[float] = 4.0
    """How long a message is shown."""

    def __init__(self, opening: Opening | None, reader: ReadingThread | None = None) -> None:
        self.opening = opening
        super().__init__(driver_class=PatientDriver, ansi_color=True)
        self._has_256_colours = has_256_colours(os.environ)
        self._dashboard = Dashboard(
            self._paint,
            self._write,
            ascii_only=not terminal_speaks_utf8(),
            no_color=self.no_color,
            styles=self._styles_on(assumed_background(os.environ)),
        )
        self._reader = reader
        self._actions = {press: key.action.format(press=press) for key in self.KEYS for press in key.presses}
        self._pages = {press for key in self.KEYS if key.is_page for press in key.presses}
        self._view = EMPTY_VIEW
        self._state = ScreenState()
        self._overlay: Overlay | None = None
        self._message_until = 0.0
        self.left: Left | None = None
        """How the screen was left; None while it is open, and if an error ended it."""

    def compose(self) -> ComposeResult:
        """Add the only widget."""
        yield self._dashboard

    def on_load(self) -> None:
        """Take over the terminal from the opening."""
        if self.opening is not None:
            self.opening.hand_over()

    def on_mount(self) -> None:
        """Paint first, then begin."""
        if self.left is not None:
            self.hang_up(self.left)  # asked for before the screen was up
        self.app_resume_signal.subscribe(self, lambda _: self._dashboard.refresh())
        self._dashboard.repaint()
        self.call_after_refresh(self._begin)

    async def on_unmount(self) -> None:
        """Stop to read with the screen."""
        if self._reader is not None:
            self._reader.stop()

    def on_background_reported(self, event: BackgroundReported) -> None:
        """Change to colours that can be read on the terminal's background."""
        self._dashboard.restyle(self._styles_on(event.background))

    def _styles_on(self, background: Background) -> Mapping[int, Style]:
        return styles_on(background, has_256_colours=self._has_256_colours)

    # ------------------------------------------------------------------------------- frames

    def _begin(self) -> None:
        """Start what the screen shows, and draw the first frame of it."""
        if self._reader is not None:
            self._reader.start()
        self._tick()

    def _tick(self) -> None:
        """Draw one frame unless the link is behind, check whether to leave, and schedule the next tick."""
        self._look_again()
        self._follow_up()
        self._refresh_state()
        waiting_writes = 0 if self._terminal is None else self._terminal.waiting_writes
        if waiting_writes <= MAX_WAITING_WRITES:
            self._dashboard.repaint()
        how = self._way_out()
        if how is not None:
            self._leave(how)
            return
        self.set_timer(self.FRAME_SECONDS, self._tick)

    def _look_again(self) -> None:
        """Read the newest of what the screen shows."""

    def _follow_up(self) -> None:
        """React to it before it is drawn."""

    def _refresh_state(self) -> None:
        now = time.time()
        message = self._state.message if now < self._message_until else ""
        self._state = replace(self._state, now=now, message=message)

    def _redraw(self) -> None:
        """Show the effect of a key at once instead of at the next frame."""
        self._follow_up()
        self._refresh_state()
        self._dashboard.repaint()

    def _paint(self, canvas: Canvas) -> None:
        if self._overlay is None or not self._overlay.covers_all:
            self._draw(canvas)
        if self._overlay is not None:
            self._overlay.draw(canvas, self._view, self._state)

    def _draw(self, canvas: Canvas) -> None:
        """Draw what is below the overlay, if one is open."""
        raise NotImplementedError

    def _say(self, message: str, *, severity: Severity = "warning", seconds: float | None = None) -> None:
        self._message_until = time.time() + (self.MESSAGE_SECONDS if seconds is None else seconds)
        self._state = replace(self._state, message=message, severity=severity)

    # --------------------------------------------------------------------------------- keys

    async def on_key(self, event: events.Key) -> None:
        """Handle every key except the two that Textual binds."""
        event.stop()
        event.prevent_default()
        await self.action_press(event.key)

    async def action_press(self, key: str) -> None:
        """Pass the key to the open overlay, if any; else do what the table says.

        Ctrl+C and Ctrl+Z always work.
        """
        self._look_again()
        before, message_until = self._overlay, self._message_until
        if key == "ctrl+c":
            self.action_interrupt()
        elif key == "ctrl+z":
            self.action_suspend_process()
        elif before is not None and not (key in self._pages and before.leads_on(key)):
            await self._take_answer(before.press(key, self._view))
        elif (before is not None or not self._takes(key)) and key in self._actions:
            await self.run_action(self._actions[key])
        if self._overlay not in (None, before) and self._message_until == message_until:
            self._message_until = 0.0  # read, and what it says of keys may not hold on this page
        self._redraw()

    def _takes(self, _key: str) -> bool:
        """Take a key that the screen itself has a use for now, such as a letter of a search."""
        return False

    async def _take_answer(self, answer: "Answer") -> None:
        """Do what a key in an overlay leads to."""
        if answer.close:
            self._overlay = None
        if answer.action:
            await self.run_action(answer.action)

    def _keys(self) -> Sequence[Key]:
        """The keys that work now, for the footer and the help."""
        return self.KEYS

    def action_toggle_log(self) -> None:
        self._state = replace(self._state, log_y=not self._state.log_y)

    def action_show_help(self) -> None:
        from amptui.tui.overlays.help import Help

        self._overlay = Help(self.HELP_TITLE, self._keys(), glossary=self.HAS_GLOSSARY)

    # ------------------------------------------------------------------------- the terminal

    @property
    def failure(self) -> AmptuiError | None:
        """Why the reader could not go on."""
        return None if self._reader is None else self._reader.failure

    @property
    def _terminal(self) -> PatientDriver | None:
        """None before the screen is up, and on one without a terminal."""
        return self._driver if isinstance(self._driver, PatientDriver) else None

    def _write(self, data: str) -> None:
        if self._driver is not None:
            self._driver.write(data)

    # ------------------------------------------------------------------------------ leaving

    def _way_out(self) -> Left | None:
        """How to leave now; None to stay."""
        if self._terminal is not None and self._terminal.terminal_is_gone:
            return "hung up"
        return "" if self.failure is not None else None

    def action_leave(self) -> None:
        """Quit."""
        self._leave("")

    def action_interrupt(self) -> None:
        """Ctrl+C."""
        self._leave("interrupted")

    def action_suspend_process(self) -> None:
        """Stop this job of the shell, until `fg`: the driver gives the terminal back and takes it again.

        A run is no part of the job: it leads a session of its own.
        """
        if os.getpgrp() == os.getsid(0):  # no job of a shell
            self._say("no shell here would bring the screen back: press q instead")
        elif self._terminal is not None:
            os.killpg(os.getpgrp(), signal.SIGTSTP)

    def hang_up(self, how: Left = "hung up") -> None:
        """Leave soon, even if the terminal accepts no more output. Does not stop a run.

        May be called from any thread and from a signal handler, before and while the screen is open.
        """
        self.left = how
        if how != "interrupted" and self._terminal is not None:
            self._terminal.hurry()
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the screen has ended
                loop.call_soon_threadsafe(self.exit)

    def _leave(self, how: Left) -> None:
        """End the screen; without an alternate screen, later output appears below it."""
        self.left = how if self.left is None else self.left
        if how == "hung up" and self._terminal is not None:
            self._terminal.hurry()
        self._write(f"\x1b[{self.size.height};1H")
        self.exit()
