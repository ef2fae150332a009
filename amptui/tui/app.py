"""The screen as an app: one timer draws, one table dispatches keys, requests go out through Control."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from amptui.control import Control, Probe
from amptui.records import AMP_PRECISIONS, Severity
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.comparing import Comparing, precisions_to_compare
from amptui.tui.dashboard import Dashboard
from amptui.tui.driver import PatientDriver
from amptui.tui.frame import Frame
from amptui.tui.keys import ACTIONS, FOOTER_HINTS
from amptui.tui.layout import PANELS
from amptui.tui.overlays.eventbrowser import EventBrowser
from amptui.tui.overlays.floor import FloorChoice
from amptui.tui.overlays.help import Help
from amptui.tui.overlays.precisions import PrecisionMenu
from amptui.tui.overlays.quitting import QuitQuestion
from amptui.tui.overlays.xray import XRay
from amptui.tui.pace import Pace
from amptui.tui.panels import inturns
from amptui.tui.panels.state import ScreenState
from amptui.tui.probing import Came, Probing

if TYPE_CHECKING:
    from amptui.tui.overlays.overlay import Overlay

MESSAGE_SECONDS = 4.0
"""How long a notice stands in the footer."""

FINDING_SECONDS = 15.0
"""How long a finding stands there: it is longer to read, and the person waited for it."""

MAX_WAITING_WRITES = 2
"""Frames are skipped while a slow link has more than that to take."""

MAX_ZOOM = 16

_LOCALE_NAMES = ("LC_ALL", "LC_CTYPE", "LANG")


class WatchApp(App[None]):
    """Draws a session and turns keys into requests. Knows no torch, no file and no trainer."""

    CSS_PATH = "dashboard.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "amptui"
    BINDINGS: ClassVar[list[BindingType]] = [
        # Textual binds these two itself; ours go the way of every other key.
        Binding("ctrl+c", "press('ctrl+c')", show=False, priority=True),
        Binding("ctrl+q", "press('ctrl+q')", show=False, priority=True),
    ]

    def __init__(
        self,
        *,
        look: Callable[[], SessionView],
        control: Control,
        ended: threading.Event,
        start: Callable[[], None],
        patience_seconds: float,
        frames_per_second: float | None = None,
    ) -> None:
        super().__init__(driver_class=PatientDriver, ansi_color=True)
        self._look = look
        self._control = control
        self._ended = ended
        self._start = start
        self._patience_seconds = patience_seconds
        self._pace = Pace(frames_per_second)
        self._frame = Frame()
        self._dashboard = Dashboard(
            self._paint, self._write, ascii_only=not terminal_speaks_utf8(), no_color=self.no_color
        )
        self._overlay: Overlay | None = None
        self._probing = Probing()
        self._comparing = Comparing()
        self._xray_came = False
        self._floor_answered = False
        self._view = EMPTY_VIEW
        self._state = ScreenState(hints=FOOTER_HINTS)
        self._message_until = 0.0
        self._stop_asked_at: float | None = None
        self.interrupted = False
        """Whether Ctrl+C ended it."""

    def compose(self) -> ComposeResult:
        """One widget."""
        yield self._dashboard

    def on_mount(self) -> None:
        """Paint first, then let torch be imported."""
        self._dashboard.repaint()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._start()
        self._tick()

    # ------------------------------------------------------------------------------- frames

    def _tick(self) -> None:
        """Draw one frame unless the link is behind, see whether to leave, and set the next tick."""
        self._view = self._look()
        self._follow_session()
        self._refresh_state()
        if not self._link_is_behind():
            self._dashboard.repaint()
        if self._should_leave():
            self._leave()
            return
        self.set_timer(self._pace.next_interval_seconds(), self._tick)

    def _follow_session(self) -> None:
        """Tell what came of what was asked for, and open what opens by itself once nothing else is open."""
        view = self._view
        for came in self._probing.came(view):
            self._tell(came)
        result = self._comparing.came(view)
        if result:
            self._say(result, severity="info", seconds=FINDING_SECONDS)
        if not view.pause_reason:
            self._floor_answered = False
            if isinstance(self._overlay, FloorChoice):
                self._overlay = None
        if self._overlay is not None or self._control.stop_reason is not None:
            return
        if view.pause_reason and not self._floor_answered:
            self._overlay = FloorChoice()
        elif self._xray_came:
            self._overlay = XRay()
        if isinstance(self._overlay, XRay):
            self._xray_came = False

    def _tell(self, came: Came) -> None:
        """An X-ray is shown, a trace told in the footer."""
        verdict = self._view.numerics.trace_verdict
        if came.failure:
            self._say(came.failure, seconds=FINDING_SECONDS)
        elif came.probe == "x-ray":
            self._xray_came = not isinstance(self._overlay, XRay)
        elif verdict is not None:
            text = f"e tells more · {verdict.text}"
            self._say(text, severity=verdict.severity, seconds=FINDING_SECONDS)

    def _refresh_state(self) -> None:
        view, requested = self._view, self._state.requested_precision
        refused = requested is not None and view.state in ("finished", "failed")
        now = time.time()
        self._state = replace(
            self._state,
            requested_precision=None if refused or requested == view.precision else requested,
            frames_per_second=self._pace.frames_per_second,
            frame_cpu_percent=self._pace.cpu_percent,
            now=now,
            stopping=self._control.stop_reason is not None and not self._ended.is_set(),
            message=self._state.message if now < self._message_until else "",
            waiting=" · ".join(filter(None, (self._comparing.words(view), self._probing.words(view)))),
        )

    def _paint(self, canvas: Canvas) -> None:
        if self._overlay is None or not self._overlay.covers_all:
            self._frame.draw(canvas, self._view, self._state)
        if self._overlay is not None:
            self._overlay.draw(canvas, self._view, self._state)

    def _write(self, data: str) -> None:
        if self._driver is not None:
            self._driver.write(data)

    def _leave(self) -> None:
        """End the screen; where there is no alternate one, what comes next stands below it."""
        self._write(f"\x1b[{self.size.height};1H")
        self.exit()

    def _link_is_behind(self) -> bool:
        driver = self._driver
        return isinstance(driver, PatientDriver) and driver.waiting_writes > MAX_WAITING_WRITES

    def _should_leave(self) -> bool:
        driver = self._driver
        if isinstance(driver, PatientDriver) and driver.terminal_is_gone:
            self._control.request_stop("the terminal was closed")
            return True
        if self._control.stop_reason is None:
            # A run that failed before its first step has nothing to show but its one line.
            return self._ended.is_set() and self._view.state == "failed" and self._view.step == 0
        self._stop_asked_at = self._stop_asked_at or time.monotonic()
        late = time.monotonic() - self._stop_asked_at > self._patience_seconds
        return self._ended.is_set() or late

    # --------------------------------------------------------------------------------- keys

    async def on_key(self, event: events.Key) -> None:
        """Every key but the two that Textual would take for itself."""
        event.stop()
        event.prevent_default()
        await self.action_press(event.key)

    async def action_press(self, key: str) -> None:
        """An open overlay gets the key; without one, and for Ctrl+C always, the table says what it does."""
        if self._overlay is not None and ACTIONS.get(key) != "interrupt":
            answer = self._overlay.press(key, self._view)
            if answer.close:
                self._floor_answered |= isinstance(self._overlay, FloorChoice)
                self._overlay = None
            if answer.precision:
                self._request(answer.precision)
            if answer.action:
                await self.run_action(answer.action)
        elif key in ACTIONS:
            await self.run_action(ACTIONS[key])
        self._redraw()

    def _redraw(self) -> None:
        """Answer a key at once instead of at the next frame."""
        self._follow_session()
        self._refresh_state()
        self._dashboard.repaint()

    def _say(self, message: str, *, severity: Severity = "warning", seconds: float | None = None) -> None:
        self._message_until = time.time() + (MESSAGE_SECONDS if seconds is None else seconds)
        self._state = replace(self._state, message=message, severity=severity)

    def action_toggle_precision(self) -> None:
        """FP32 to AMP, AMP to whatever ran before it."""
        view = self._view
        if view.run is None or view.precision is None:
            self._say("not yet: training has not begun")
            return
        now = self._state.requested_precision or self._comparing.chosen(view)
        before = [s.precision for s in view.switches if s.precision not in AMP_PRECISIONS]
        self._request((before or ["fp32"])[-1] if now in AMP_PRECISIONS else view.run.amp_precision)

    def _request(self, precision: str) -> None:
        view = self._view
        if self._ended.is_set():
            self._say("the run has ended")
        elif view.run is not None and precision in view.run.unsupported:
            self._say(f"{precision_label(precision)}: {view.run.unsupported[precision]}")
        else:
            self._control.request_precision(precision)
            self._state = replace(self._state, requested_precision=precision)

    def action_choose_precision(self) -> None:
        """Open the menu of precisions."""
        if self._view.run is None:
            self._say("not yet: training has not begun")
        else:
            self._overlay = PrecisionMenu(self._view)

    def action_toggle_pause(self) -> None:
        """Pause, or go on."""
        if self._ended.is_set():
            self._say("the run has ended")
        else:
            self._control.request_pause(not self._control.paused)

    def action_resume(self) -> None:
        """Go on after a pause."""
        self._control.request_pause(False)

    def action_compare(self) -> None:
        """Compare FP32 with AMP in turns, or end the comparison that runs."""
        view = self._view
        if inturns.running(view) is not None:
            self._control.request_comparison(())
        elif self._takes_steps("a comparison needs steps") and view.run is not None:
            precisions = precisions_to_compare(view, view.run)
            refused = [each for each in precisions if each in view.run.unsupported]
            if refused:
                self._say(f"{precision_label(refused[0])}: {view.run.unsupported[refused[0]]}")
                return
            self._control.request_comparison(precisions)
            self._comparing.ask(view)

    def action_take_xray(self) -> None:
        """Ask for an X-ray; where none can be taken now, show the one that there is."""
        self._probe("x-ray", "X-ray")
        standing = self._ended.is_set() or self._view.state == "paused"
        if standing and self._overlay is None and self._view.numerics.xray is not None:
            self._overlay = XRay()

    def action_trace_modules(self) -> None:
        """Ask for a trace of all modules."""
        self._probe("trace", "trace")

    def _probe(self, probe: Probe, name: str) -> None:
        if self._takes_steps(f"the {name} needs a step's batch"):
            self._control.request_probe(probe)
            self._probing.ask(probe, self._view)

    def _takes_steps(self, why: str) -> bool:
        """Whether there is a next step soon; where there is none that is said, while paused with ``why``."""
        if self._ended.is_set():
            self._say("the run has ended")
        elif self._view.run is None:
            self._say("not yet: training has not begun")
        elif self._view.state == "paused":
            self._say(f"resume first: {why}")
        else:
            return True
        return False

    def action_toggle_log(self) -> None:
        """Logarithmic loss axis, or linear."""
        self._state = replace(self._state, log_y=not self._state.log_y)

    def action_zoom_in(self) -> None:
        """Half as many steps."""
        self._state = replace(self._state, zoom=min(MAX_ZOOM, self._state.zoom + 1))

    def action_zoom_out(self) -> None:
        """Twice as many steps."""
        self._state = replace(self._state, zoom=max(0, self._state.zoom - 1))

    def action_zoom_all(self) -> None:
        """Show the whole run."""
        self._state = replace(self._state, zoom=0)

    def action_next_panel(self) -> None:
        """Give the next panel the screen; after the last, show all."""
        order = (None, *PANELS)
        focus = order[(order.index(self._state.focus) + 1) % len(order)]
        self._state = replace(self._state, focus=focus)

    def action_focus_numerics(self) -> None:
        """Give the panel of float16's range the screen, or show all again."""
        focus = None if self._state.focus == "numerics" else "numerics"
        self._state = replace(self._state, focus=focus)

    def action_all_panels(self) -> None:
        """Show all panels."""
        self._state = replace(self._state, focus=None)

    def action_browse_events(self) -> None:
        """Open the list of events."""
        self._overlay = EventBrowser()

    def action_show_help(self) -> None:
        """Open the help."""
        self._overlay = Help()

    def action_ask_quit(self) -> None:
        """Leave; while training, ask first."""
        if self._ended.is_set():
            self._leave()
        else:
            self._overlay = QuitQuestion()

    def action_stop(self) -> None:
        """Stop after the current step, and leave once it is done."""
        self._control.request_stop("stopped by the user")

    def action_interrupt(self) -> None:
        """Stop and leave without asking; a second time, leave without waiting."""
        if self.interrupted or self._ended.is_set():
            self._leave()
        self.interrupted = True
        self.action_stop()


def terminal_speaks_utf8() -> bool:
    """Whether the locale says so; where it says nothing, as in most containers, a terminal of today does."""
    said = next((value for name in _LOCALE_NAMES if (value := os.environ.get(name))), "UTF-8")
    return "utf" in said.lower()
