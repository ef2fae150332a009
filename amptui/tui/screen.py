"""The screen of a run: one timer draws each frame, sets the frame rate, and decides whether to leave."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from amptui.base.cores import read_cores
from amptui.base.notification import notification
from amptui.diagnosis import activity
from amptui.diagnosis.activity import LOST
from amptui.diagnosis.alerts import Alerts
from amptui.records.answers import RequestKind
from amptui.records.control import Asker
from amptui.records.run import RunFailed, Severity
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.canvas_app import CanvasApp, Left
from amptui.tui.frame import Frame
from amptui.tui.keys import ENDED_KEYS, FOOTER_HINTS, Key, footer_hints, keys_of
from amptui.tui.opening import Opening
from amptui.tui.panels.metric_charts import MAX_PINNED
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.step_window import steps_ahead

if TYPE_CHECKING:
    from amptui.tui.overlays.overlay import Overlay

MESSAGE_SECONDS = 4.0
"""How long a notice is shown in the footer."""

MAX_FRAMES_PER_SECOND = 4.0

CPU_BUDGET = 0.01
"""The fraction of all cores that drawing may take: training needs them to load batches and launch kernels."""

MAX_INTERVAL_SECONDS = 0.5
"""The screen is updated this often, however expensive a frame is."""

HURRIED_SECONDS = 5.0
"""How long the screen waits for a run that was asked to end at once."""

_FRAMES_REMEMBERED = 9
"""The pace follows the median of these, so that one expensive frame (an import, a resize) changes nothing."""


Pins = tuple[tuple[str, str], ...]
"""The metrics that a user pinned: kind and name of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What connects a screen to its run and its terminal."""

    look: Callable[[str | None], SessionView]
    """Returns the view with an optimizer in front; with the one that makes steps for None."""
    control: Asker
    ended: threading.Event
    """Set once the run will send nothing more."""
    start: Callable[[], None]
    """Called once the first frame is drawn."""
    patience_seconds: float
    """How long a run that was asked to stop may be silent before the screen closes anyway."""
    frames_per_second: float | None = None
    """A fixed rate; None to adapt to the cost of a frame."""
    why_ended: Callable[[], str] = str
    """Returns one line on a run that ended without its last record."""
    why_silent: Callable[[], str] = str
    """Returns one line on a live run that has sent nothing for seconds; empty while it sends."""
    is_away: Callable[[], bool] = bool
    """Returns whether the connection to the run is lost for now, so that nothing can be asked of it."""
    opening: Opening | None = None
    """What the terminal shows until this screen takes it over."""
    alerts: Alerts | None = None
    """Decides what rings the terminal's bell; None for a screen that stays quiet."""
    read_pins: Callable[[], Pins] = tuple
    """Returns what this user pinned on an earlier screen."""
    write_pins: Callable[[Pins], str] = lambda _pins: ""
    """Keeps them for the next screen; returns the reason if it cannot."""


class Pace:
    """Sets the interval between frames by the CPU time that the drawing thread spends on them.

    ``cores`` is how many cores this process may use. ``frames_per_second`` fixes the rate instead. To be used
    by the drawing thread only.
    """

    def __init__(self, frames_per_second: float | None = None, *, cores: float = 1.0) -> None:
        self._budget = CPU_BUDGET * cores
        self._fixed = frames_per_second
        self._cpu_seconds = time.thread_time()
        self._wall_seconds = time.monotonic()
        self._costs: deque[float] = deque(maxlen=_FRAMES_REMEMBERED)
        self._intervals: deque[float] = deque(maxlen=_FRAMES_REMEMBERED)

    @property
    def frames_per_second(self) -> float | None:
        """The rate of the last frames; None before the first."""
        return len(self._intervals) / sum(self._intervals) if sum(self._intervals) else None

    @property
    def cpu_percent(self) -> float | None:
        """CPU time of the drawing thread over the last frames, in percent of one core."""
        return 100 * sum(self._costs) / sum(self._intervals) if sum(self._intervals) else None

    def next_interval_seconds(self) -> float:
        """Record the frame that was just drawn; return how long to wait until the next."""
        cpu, wall = time.thread_time(), time.monotonic()
        self._costs.append(cpu - self._cpu_seconds)
        self._intervals.append(wall - self._wall_seconds)
        self._cpu_seconds, self._wall_seconds = cpu, wall
        if self._fixed is not None:
            return 1 / self._fixed
        return min(MAX_INTERVAL_SECONDS, max(1 / MAX_FRAMES_PER_SECOND, median(self._costs) / self._budget))


class RunScreen(CanvasApp):
    """Draws the view of a session. Handles no keys: a subclass does."""

    TITLE = "amptui"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.opening)
        self._parts = parts
        self._control = parts.control
        self._pace = Pace(parts.frames_per_second, cores=read_cores().seconds)
        self._frame = Frame()
        self._overlay: Overlay | None = None
        self._view = EMPTY_VIEW
        self._chosen_front: str | None = None
        """The optimizer that the user chose to look at."""
        self._state = ScreenState(hints=FOOTER_HINTS)
        self._message_until = 0.0
        self._over = False
        self._patient_since: float | None = None
        self._interrupted = False
        self._hurried = False
        """Whether the user does not wait for the current step any more."""

    def _begin(self) -> None:
        self._parts.start()
        self._state = replace(self._state, pinned=self._parts.read_pins()[-MAX_PINNED:])
        self._tick()

    # ------------------------------------------------------------------------------- frames

    def _tick(self) -> None:
        """Draw one frame unless the link is behind, check whether to leave, and schedule the next tick."""
        self._look_again()
        self._follow_session()
        self._refresh_state()
        if not self._link_is_behind():
            self._dashboard.repaint()
        self._ring()
        how = self._way_out()
        if how is not None:
            self._leave(how)
            return
        self.set_timer(self._pace.next_interval_seconds(), self._tick)

    def _look_again(self) -> None:
        """Read the newest view, and whether the run has ended, with its last record or without."""
        # In this order: once the connection has ended, the view has everything that arrived.
        over = self._parts.ended.is_set()
        self._view = self._parts.look(self._chosen_front)
        self._over = over or self._is_told_over()

    def _is_told_over(self) -> bool:
        return self._view.state in ("finished", "failed")

    def _follow_session(self) -> None:
        """React to a new view before it is drawn."""

    def _refresh_state(self) -> None:
        now, lost = time.time(), self._state.lost
        if not lost and self._over and not self._is_told_over():  # it ended without its last record
            lost = self._parts.why_ended() or LOST
        self._state = replace(
            self._state,
            frames_per_second=self._pace.frames_per_second,
            frame_cpu_percent=self._pace.cpu_percent,
            now=now,
            steps_ahead=0 if self._over else steps_ahead(self._state.steps_ahead, self._view.step_seconds),
            stopping=self._control.stop_reason is not None and not self._over,
            accepts=self._accepts(),
            hints=footer_hints(
                self._keys(),
                paused=self._view.state == "paused",
                switches_to=activity.switch_target(self._view),
                several_optimizers=bool(self._view.optimizers),
                has_traceback=isinstance(self._view.outcome, RunFailed)
                and bool(self._view.outcome.traceback),
            ),
            lost=lost,
            silence="" if self._over else self._parts.why_silent(),
            message=self._state.message if now < self._message_until else "",
        )

    def _accepts(self) -> frozenset[RequestKind]:
        """The kinds of request that the run takes from this screen now, by keys that its device supports."""
        if self._over or self._parts.is_away():
            return frozenset()
        return self._view.accepts - activity.unsupported_requests(self._view)

    def _keys(self) -> Sequence[Key]:
        """The keys that work now, for the footer and the help."""
        if self._over:
            return ENDED_KEYS
        accepts = frozenset[RequestKind]() if self._parts.is_away() else self._view.accepts
        return keys_of(accepts, activity.unsupported_requests(self._view))

    def _paint(self, canvas: Canvas) -> None:
        if self._overlay is None or not self._overlay.covers_all:
            self._frame.draw(canvas, self._view, self._state)
        if self._overlay is not None:
            self._overlay.draw(canvas, self._view, self._state)
        if self._terminal is not None:  # where it would otherwise select text
            self._terminal.report_mouse(self._has_chart())

    def _has_chart(self) -> bool:
        """Whether a chart is enlarged, on which the mouse moves a cursor; elsewhere it selects text."""
        return self._state.focus == "loss" if self._overlay is None else self._overlay.has_chart()

    def _redraw(self) -> None:
        """Show the effect of a key at once instead of at the next frame."""
        self._follow_session()
        self._refresh_state()
        self._dashboard.repaint()

    def _say(self, message: str, *, severity: Severity = "warning", seconds: float | None = None) -> None:
        self._message_until = time.time() + (MESSAGE_SECONDS if seconds is None else seconds)
        self._state = replace(self._state, message=message, severity=severity)

    def _ring(self) -> None:
        """Notify somebody who looks elsewhere; what is written leaves the cursor and the cells alone."""
        alerts, stop_asked = self._parts.alerts, self._control.stop_reason is not None
        if alerts is None:
            return
        if text := alerts.news(self._view, fate=self._state.lost, stop_asked=stop_asked):
            self._write(notification(text))

    # ------------------------------------------------------------------------------ leaving

    def _way_out(self) -> Left | None:
        """How to leave now; None to stay."""
        if self._terminal_is_gone():
            return "hung up"
        if self._control.stop_reason is None:
            # A run that failed before its first step, or never started, leaves nothing to look at.
            began = self._view.run is not None and self._view.state != "failed"
            return "" if self._over and self._view.step == 0 and not began else None
        if self._over or self._is_late():
            return "interrupted" if self._interrupted else "stopped"
        return None

    def _is_late(self) -> bool:
        """Whether a run that was asked to stop has been silent for too long, or does not end at once."""
        now = time.monotonic()
        if self._patient_since is None or not (self._state.silence or self._hurried):
            self._patient_since = now
        patience_seconds = HURRIED_SECONDS if self._hurried else self._parts.patience_seconds
        return now - self._patient_since > patience_seconds
