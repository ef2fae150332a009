"""A Textual application with one widget, the canvas: paints first, then ticks; writes and leaves safely."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from amptui.base.text import terminal_speaks_utf8
from amptui.tui.background import Background, assumed_background, has_256_colours
from amptui.tui.canvas import Canvas
from amptui.tui.keyboard import BackgroundReported, MouseReported
from amptui.tui.opening import Opening
from amptui.tui.painter import Painter
from amptui.tui.style import STYLES, styles_on
from amptui.tui.terminal_driver import PatientDriver

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
        canvas = Canvas(self.size.width, self.size.height, ascii_only=self._ascii_only)
        self._paint(canvas)
        return canvas

    def _keep(self, canvas: Canvas) -> None:
        self._frame = canvas
        self._strips.clear()


class CanvasApp(App[None]):
    """Draws on a canvas. A subclass begins, paints and decides when to leave.

    ``opening`` has shown the first frame, and entered the alternate screen on which the app continues.
    """

    CSS_PATH = str(Path(__file__).with_name("dashboard.tcss"))
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # Textual binds these two itself; here they are handled like every other key.
        Binding("ctrl+c", "press('ctrl+c')", show=False, priority=True),
        Binding("ctrl+q", "press('ctrl+q')", show=False, priority=True),
    ]

    def __init__(self, opening: Opening | None = None) -> None:
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

    def on_background_reported(self, event: BackgroundReported) -> None:
        """Change to colours that can be read on the terminal's background."""
        self._dashboard.restyle(self._styles_on(event.background))

    def _styles_on(self, background: Background) -> Mapping[int, Style]:
        return styles_on(background, has_256_colours=self._has_256_colours)

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

    async def on_mouse_reported(self, event: MouseReported) -> None:
        """Handle a click, a drag or a turn of the wheel."""
        if event.what in ("press", "drag"):
            self._point(event.column, event.line)
        else:
            await self.action_press(self._wheel_keys[event.what == "wheel down"])

    _wheel_keys: ClassVar[tuple[str, str]] = ("plus", "minus")
    """What turning the wheel up and down presses."""

    def _point(self, column: int, line: int) -> None:
        """The left button is down over a cell."""

    @property
    def _terminal(self) -> PatientDriver | None:
        """None before the screen is up, and on one without a terminal."""
        return self._driver if isinstance(self._driver, PatientDriver) else None

    def _write(self, data: str) -> None:
        if self._driver is not None:
            self._driver.write(data)

    def _link_is_behind(self) -> bool:
        return self._terminal is not None and self._terminal.waiting_writes > MAX_WAITING_WRITES

    def _terminal_is_gone(self) -> bool:
        return self._terminal is not None and self._terminal.terminal_is_gone

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
