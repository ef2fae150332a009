"""A run on the screen: one timer draws each frame and decides whether, and how, to leave."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, Unpack

from textual.app import App, ComposeResult

from amptui.control import Asker
from amptui.cores import read_cores, read_limits
from amptui.records import Severity
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.terminal import terminal_speaks_utf8
from amptui.tui.canvas import Canvas
from amptui.tui.dashboard import Dashboard
from amptui.tui.frame import Frame
from amptui.tui.frame_pace import Pace
from amptui.tui.keys import FOOTER_HINTS
from amptui.tui.opening import Opening
from amptui.tui.panels.phase import is_stopping
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.step_window import steps_ahead
from amptui.tui.terminal_driver import ContinuingDriver, PatientDriver

if TYPE_CHECKING:
    from amptui.tui.overlays.overlay import Overlay

MESSAGE_SECONDS = 4.0
"""How long a notice is shown in the footer."""

MAX_WAITING_WRITES = 2
"""Frames are skipped while more writes than this wait for a slow link."""

LOST = "the training process exited unexpectedly: see `amptui runs`"

Left = Literal["", "detached", "hung up", "interrupted", "stopped"]
"""How a screen ended: "" because the run had ended, otherwise what made it leave before that."""


class Parts(TypedDict):
    """What connects a screen to the run on one side and the terminal on the other."""

    look: Callable[[], SessionView]
    control: Asker
    ended: threading.Event
    """Set once the run will send nothing more."""
    start: Callable[[], None]
    """Called once the first frame is drawn."""
    patience_seconds: float
    """How long a run that was asked to stop may be silent before the screen closes anyway."""
    frames_per_second: NotRequired[float | None]
    """A fixed rate; None to adapt to the cost of a frame."""
    why_ended: NotRequired[Callable[[], str]]
    """Returns one line on a run that ended without its last record."""
    why_silent: NotRequired[Callable[[], str]]
    """Returns one line on a live run that has sent nothing for seconds; empty while it sends."""
    opening: NotRequired[Opening | None]
    """What the terminal shows until this screen takes it over."""


class RunScreen(App[None]):
    """Draws a session that is fed from elsewhere. Handles no keys: a subclass turns them into requests."""

    CSS_PATH = "dashboard.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "amptui"

    def __init__(self, **parts: Unpack[Parts]) -> None:
        self._opening = parts.get("opening")
        self.terminal = self._opening.terminal if self._opening is not None else None
        driver_class = PatientDriver if self._opening is None else ContinuingDriver
        super().__init__(driver_class=driver_class, ansi_color=True)
        self._look = parts["look"]
        self._control = parts["control"]
        self._ended = parts["ended"]
        self._start = parts["start"]
        self._patience_seconds = parts["patience_seconds"]
        self._why_ended = parts.get("why_ended", str)
        self._why_silent = parts.get("why_silent", str)
        self._pace = Pace(parts.get("frames_per_second"), cores=read_cores(read_limits()).seconds)
        self._frame = Frame()
        self._dashboard = Dashboard(
            self._paint, self._write, ascii_only=not terminal_speaks_utf8(), no_color=self.no_color
        )
        self._overlay: Overlay | None = None
        self._view = EMPTY_VIEW
        self._state = ScreenState(hints=FOOTER_HINTS)
        self._message_until = 0.0
        self._over = False
        self._patient_since: float | None = None
        self._interrupted = False
        self.left: Left | None = None
        """How the screen was left; None while it is open, and if an error ended it."""

    def on_load(self) -> None:
        """Prepare to take over the terminal."""
        if self._opening is not None:
            self._opening.hand_over()

    def compose(self) -> ComposeResult:
        """Add the one widget."""
        yield self._dashboard

    def on_mount(self) -> None:
        """Paint first, then start listening to the run."""
        if self.left is not None:
            self.hang_up(self.left)  # asked for before the screen was up
        self.app_resume_signal.subscribe(self, lambda _: self._dashboard.refresh())
        self._dashboard.repaint()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._start()
        self._tick()

    # ------------------------------------------------------------------------------- frames

    def _tick(self) -> None:
        """Draw one frame unless the link is behind, check whether to leave, and schedule the next tick."""
        self._look_again()
        self._follow_session()
        self._refresh_state()
        if not self._link_is_behind():
            self._dashboard.repaint()
        how = self._way_out()
        if how is not None:
            self._leave(how)
            return
        self.set_timer(self._pace.next_interval_seconds(), self._tick)

    def _look_again(self) -> None:
        """Read what is new of the run, and whether it has ended, with its last record or without."""
        # In this order: once the connection has ended, the view has everything that arrived.
        over = self._ended.is_set()
        self._view = self._look()
        self._over = over or self._is_told_over()

    def _is_told_over(self) -> bool:
        return self._view.state in ("finished", "failed")

    def _follow_session(self) -> None:
        """React to a new view before it is drawn."""

    def _refresh_state(self) -> None:
        now = time.time()
        self._state = replace(
            self._state,
            frames_per_second=self._pace.frames_per_second,
            frame_cpu_percent=self._pace.cpu_percent,
            now=now,
            steps_ahead=0 if self._over else steps_ahead(self._state.steps_ahead, self._view.step_seconds),
            stopping=self._control.stop_reason is not None and not self._over,
            lost=self._state.lost or self._lost_words(),
            silence="" if self._over else self._why_silent(),
            message=self._state.message if now < self._message_until else "",
        )

    def _lost_words(self) -> str:
        """What to say of a run that ended without its last record."""
        return (self._why_ended() or LOST) if self._over and not self._is_told_over() else ""

    def _paint(self, canvas: Canvas) -> None:
        if self._overlay is None or not self._overlay.covers_all:
            self._frame.draw(canvas, self._view, self._state)
        if self._overlay is not None:
            self._overlay.draw(canvas, self._view, self._state)

    def _redraw(self) -> None:
        """Answer a key at once instead of at the next frame."""
        self._follow_session()
        self._refresh_state()
        self._dashboard.repaint()

    def _say(self, message: str, *, severity: Severity = "warning", seconds: float | None = None) -> None:
        self._message_until = time.time() + (MESSAGE_SECONDS if seconds is None else seconds)
        self._state = replace(self._state, message=message, severity=severity)

    def _write(self, data: str) -> None:
        if self._driver is not None:
            self._driver.write(data)

    def _link_is_behind(self) -> bool:
        driver = self._driver
        return isinstance(driver, PatientDriver) and driver.waiting_writes > MAX_WAITING_WRITES

    # ------------------------------------------------------------------------------ leaving

    def hang_up(self, how: Left = "hung up") -> None:
        """Leave soon, even if the terminal accepts nothing more, as when it is closed. Does not stop the run.

        May be called from any thread and from a signal handler, before and while the screen is open.
        """
        self.left = how
        if isinstance(self._driver, PatientDriver):
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

    def _way_out(self) -> Left | None:
        """How to leave now; None to stay."""
        if isinstance(self._driver, PatientDriver) and self._driver.terminal_is_gone:
            return "hung up"
        if self._control.stop_reason is None:
            # A run that failed before its first step, or never started, has only its one line to show.
            began = self._view.run is not None and self._view.state != "failed"
            return "" if self._over and self._view.step == 0 and not began else None
        if self._over or self._is_late():
            return "interrupted" if self._interrupted else "stopped"
        return None

    def _is_late(self) -> bool:
        """Whether a run that was asked to stop has been silent for too long."""
        now = time.monotonic()
        if self._patient_since is None or is_stopping(self._view):
            self._patient_since = now
        return now - self._patient_since > self._patience_seconds
