"""The screen of a run: what connects it to the run, what each of its keys does, and when it leaves."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from amptui.base.notification import notification
from amptui.diagnosis import activity, speed
from amptui.diagnosis.activity import LOST
from amptui.diagnosis.alerts import Alerts
from amptui.diagnosis.event_words import checkpoint_written, comparison_over
from amptui.diagnosis.words import long_words
from amptui.records.answers import Answer, RequestKind, RequestMade, RequestRefused
from amptui.records.control import Asker
from amptui.records.run import RunFailed
from amptui.telemetry.health import judge_trace
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.keys import ENDED_KEYS, FOOTER_HINTS, KEYS, MAX_ZOOM, Key, footer_hints, keys_of
from amptui.tui.layout import PANELS, RANKED_PANELS
from amptui.tui.opening import Opening
from amptui.tui.panels import curve
from amptui.tui.panels.metric_charts import panel_chart
from amptui.tui.reading_thread import ReadingThread
from amptui.tui.renderables.step_window import steps_ahead
from amptui.tui.screen import Left, Screen

if TYPE_CHECKING:
    from amptui.records.run import Severity
    from amptui.tui.overlays.overlay import Answer as KeyAnswer
    from amptui.tui.overlays.overlay import Overlay

FINDING_SECONDS = 15.0
"""How long a result is shown above the footer; it takes longer to read than a notice."""

_BY_USER = "stopped by the user"

UNANSWERED = "waiting for your answer: press space"
"""Shown in the footer while the run waits for an answer to a question that was closed."""


HURRIED_SECONDS = 5.0
"""How long the screen waits for a run that was asked to end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What connects a screen to its run and its terminal."""

    look: Callable[[str | None], SessionView]
    """Returns the view with an optimizer in front; with the one that makes steps for None."""
    control: Asker
    ended: threading.Event
    """Set once the run will send nothing more."""
    patience_seconds: float = math.inf
    """How long a run that was asked to stop may be silent before the screen closes anyway."""
    why_ended: Callable[[], str] = str
    """Returns one line on a run that ended without its last record."""
    why_silent: Callable[[], str] = str
    """Returns one line on a live run that has sent nothing for seconds; empty while it sends."""
    start: Callable[[], object] = lambda: None
    """Called once the first frame is drawn."""
    is_away: Callable[[], bool] = bool
    """Returns whether the connection to the run is lost for now, so that nothing can be asked of it."""
    opening: Opening | None = None
    """What the terminal shows until this screen takes it over."""
    alerts: Alerts | None = None
    """Decides what rings the terminal's bell; None for a screen that stays quiet."""


class RunScreen(Screen):
    """The screen of a run in another process, with keys that send requests to it.

    ``attached``: the run was started elsewhere, so that Ctrl+C only detaches.
    """

    TITLE = "amptui"
    KEYS: ClassVar[Sequence[Key]] = KEYS
    HAS_GLOSSARY = True

    def __init__(self, parts: Parts, *, attached: bool = False, reader: ReadingThread | None = None) -> None:
        super().__init__(parts.opening, reader)
        self._parts = parts
        self._control = parts.control
        self._attached = attached
        self._frame = Frame()
        self._state = replace(self._state, hints=FOOTER_HINTS)
        self._chosen_front: str | None = None
        """The optimizer that the user chose to look at."""
        self._over = False
        self._unanswered: set[int] = set()
        """Numbers of this screen's requests that have no answer yet."""
        self._comparing = False
        self._xray_is_new = False
        self._question_answered = False
        self._early: tuple[RequestKind, ...] = ()
        """What keys asked for before the run had begun, in that order: what AMP is there is not known yet."""
        self._patient_since: float | None = None
        self._interrupted = False
        self._hurried = False
        """Whether the user does not wait for the current step any more."""

    # ------------------------------------------------------------------------------- frames

    def _begin(self) -> None:
        self._parts.start()
        super()._begin()

    def _look_again(self) -> None:
        """Read the newest view, and whether the run has ended, with its last record or without."""
        # In this order: once the connection has ended, the view has everything that arrived.
        over = self._parts.ended.is_set()
        self._view = self._parts.look(self._chosen_front)
        self._over = over or self._is_told_over()

    def _is_told_over(self) -> bool:
        return self._view.state in ("finished", "failed")

    def _refresh_state(self) -> None:
        super()._refresh_state()
        view, lost = self._view, self._state.lost
        if not lost and self._over and not self._is_told_over():  # it ended without its last record
            lost = self._parts.why_ended() or LOST
        waiting = [] if self._over else activity.pending_words(view, self._early)
        if not self._over and self._question_answered and self._waits_for_an_answer:
            waiting.insert(0, UNANSWERED)
        self._state = replace(
            self._state,
            steps_ahead=0 if self._over else steps_ahead(self._state.steps_ahead, view.step_seconds),
            stopping=self._control.stop_reason is not None and not self._over,
            accepts=self._accepts(),
            hints=footer_hints(
                self._keys(),
                paused=view.state == "paused",
                switches_to=activity.switch_target(view),
                several_optimizers=bool(view.optimizers),
                has_traceback=isinstance(view.outcome, RunFailed) and bool(view.outcome.traceback),
            ),
            lost=lost,
            silence="" if self._over else self._parts.why_silent(),
            waiting=" · ".join(waiting),
        )

    def _accepts(self) -> frozenset[RequestKind]:
        """The kinds of request that the run takes from this screen now."""
        return frozenset() if self._over or self._parts.is_away() else self._view.accepts

    def _keys(self) -> Sequence[Key]:
        """The keys that work now, for the footer and the help."""
        return ENDED_KEYS if self._over else keys_of(self._accepts())

    def _draw(self, canvas: Canvas) -> None:
        self._frame.draw(canvas, self._view, self._state)

    def _tick(self) -> None:
        super()._tick()
        # Notify somebody who looks elsewhere; what is written leaves the cursor and the cells alone.
        alerts, stop_asked = self._parts.alerts, self._control.stop_reason is not None
        lost = self._state.lost
        if alerts is not None and (text := alerts.news(self._view, exit_reason=lost, stop_asked=stop_asked)):
            self._write(notification(text))

    # ---------------------------------------------------------------------------- answers

    def _follow_up(self) -> None:
        """Show the answers to this screen's requests; open a question or an X-ray if nothing else is open."""
        if self._early and (self._over or self._view.run is not None):
            early, self._early = self._early, ()
            for kind in () if self._over else early:
                self._ask_for(kind)
        view = self._view
        for answer in view.answers if self._unanswered else ():
            if answer.request.number in self._unanswered:
                self._unanswered.discard(answer.request.number)
                self._tell(answer)
        was_comparing, self._comparing = self._comparing, speed.running(view) is not None
        if was_comparing and view.compared is not None and view.compared.over:
            result = comparison_over(view.compared)
            self._say(result, severity="info", seconds=FINDING_SECONDS)
        # Close a question that the run or another screen has answered; open one, or a new X-ray.
        asks = bool(view.pause_reason)
        self._question_answered &= asks
        if (not asks and self._has_open("loss scale")) or (self._over and self._has_open("quit")):
            self._overlay = None
        stops = self._control.stop_reason is not None or activity.is_stopping(view)
        if self._overlay is None and not stops:
            if asks and not self._question_answered and not self._over:
                self.action_open("loss scale")
            elif self._xray_is_new:
                self.action_open("x-ray")
        self._xray_is_new &= not self._has_open("x-ray")

    def _tell(self, answer: Answer) -> None:
        """Show the answer to a request of this screen: an X-ray in its overlay, all others in the footer."""
        view = self._view
        trace, kind = view.numerics.trace, answer.request.kind
        if isinstance(answer, RequestRefused):
            severity: Severity = "error" if answer.reason == "failed" else "warning"
            if words := activity.refusal_words(answer):
                self._say(words, severity=severity, seconds=FINDING_SECONDS)
        elif kind == "x-ray":
            self._xray_is_new = not self._has_open("x-ray")
        elif kind == "trace" and trace is not None:
            finding = judge_trace(trace)
            words = long_words(finding)
            leads_on = self._overlay is None or self._overlay.leads_on("e")
            text = f"e: details · {words}" if leads_on else words
            self._say(text, severity=finding.severity, seconds=FINDING_SECONDS)
        elif kind == "checkpoint" and view.checkpoint is not None:
            self._say(checkpoint_written(view.checkpoint), severity="info")

    def _has_open(self, name: str) -> bool:
        return self._overlay is not None and self._overlay.name == name

    # --------------------------------------------------------------------------------- keys

    def _takes(self, key: str) -> bool:
        """Move the cursor of the enlarged curve, if the key does that."""
        cursor, focus = self._state.cursor, self._state.focus
        if focus not in curve.CURVES or not curve.takes(cursor, key):
            return False
        chart = panel_chart(self._view, focus)
        extent = curve.extent_of(chart, self._view, self._state, cursor, self.size.width - 4)
        self._state = replace(self._state, cursor=curve.press(cursor, key, extent))
        return True

    async def _take_answer(self, answer: "KeyAnswer") -> None:
        self._question_answered |= answer.close and self._has_open("loss scale")
        if answer.precision and self._can_ask():
            self._ask(RequestMade("precision", precision=answer.precision))
        await super()._take_answer(answer)

    # ------------------------------------------------------------------- requests

    def _ask(self, request: RequestMade) -> None:
        self._unanswered.add(self._control.ask(request))
        self._look_again()

    def _can_ask(self) -> bool:
        """Whether the run goes on; if not, say so."""
        if self._over:
            self._say("the run has ended")
        return not self._over

    def _ask_for(self, kind: RequestKind) -> None:
        """Ask for ``kind``, once the run has begun."""
        if not self._can_ask():
            return
        if self._view.run is None:
            self._early = (*self._early, kind)
        elif kind == "precision":
            self._ask(RequestMade("precision", precision=activity.switch_target(self._view)))
        elif kind == "comparison":
            self._ask(RequestMade("comparison", precisions=activity.compared_precisions(self._view)))
        else:
            self._ask(RequestMade(kind))

    def action_toggle_precision(self) -> None:
        self._ask_for("precision")

    def action_choose_precision(self) -> None:
        if self._can_ask():
            self.action_open("precisions")

    def action_toggle_pause(self) -> None:
        """Pause or resume: the opposite of the pending request or, without one, of the run's state.

        If the run paused itself and asks how to continue, show that question again.
        """
        if self._waits_for_an_answer:
            self._question_answered = False
        elif self._can_ask():
            request = activity.newest(self._view, "pause")
            paused = self._view.state == "paused" if request is None else request.paused
            self._ask(RequestMade("pause", paused=not paused))

    @property
    def _waits_for_an_answer(self) -> bool:
        return bool(self._view.pause_reason) and activity.newest(self._view, "pause") is None

    def action_resume(self) -> None:
        self._ask(RequestMade("pause", paused=False))

    def action_write_checkpoint(self) -> None:
        stop_is_pending = self._state.stopping or activity.newest(self._view, "stop") is not None
        if stop_is_pending or activity.is_stopping(self._view):
            self._say("the run is stopping: it writes a checkpoint at its end")
        else:
            self._ask_for("checkpoint")

    def action_compare(self) -> None:
        """Alternate blocks of FP32 and AMP, or bf16 and FP8; or end a comparison that is running."""
        self._show_first_optimizer()
        if speed.running(self._view) is None:
            self._ask_for("comparison")
        elif self._can_ask():
            self._ask(RequestMade("comparison"))

    def action_take_xray(self) -> None:
        """Ask for an X-ray. If none can be taken now, show the last one first."""
        self._show_first_optimizer()
        stopped = self._parts.ended.is_set() or self._view.state == "paused"
        if stopped and self._view.numerics.xray is not None and not self._has_open("x-ray"):
            self.action_open("x-ray")
            return
        self._ask_for("x-ray")
        if not self._has_open("x-ray") and "x-ray" in self._accepts():
            self._overlay = None  # the X-ray opens when it is taken

    def action_trace_modules(self) -> None:
        self._show_first_optimizer()
        self._ask_for("trace")

    # ------------------------------------------------------------------------- views

    def action_next_optimizer(self) -> None:
        """Show the next of several optimizers in all panels."""
        names = [optimizer.name for optimizer in self._view.optimizers]
        if not names:
            self._say("this run has one optimizer", severity="info")
            return
        place = names.index(self._view.front) if self._view.front in names else -1
        self._chosen_front = names[(place + 1) % len(names)]
        self._look_again()

    def _show_first_optimizer(self) -> None:
        """Show the optimizer in whose steps a run is measured: findings are of its gradients."""
        if self._view.front != FIRST:
            self._chosen_front = FIRST
            self._look_again()

    def action_zoom(self, key: str) -> None:
        """Zoom in by a level, which shows half as many steps, or out; ``0`` shows the whole run."""
        zoom = {"0": 0, "minus": self._state.zoom - 1}.get(key, self._state.zoom + 1)
        self._state = replace(self._state, zoom=max(0, min(MAX_ZOOM, zoom)))

    def action_next_panel(self) -> None:
        """Enlarge the next panel; after the last, show all."""
        panels, focus = PANELS if self._view.ranks is None else RANKED_PANELS, self._state.focus
        place = panels.index(focus) + 1 if focus in panels else 0
        self._state = replace(self._state, focus=panels[place] if place < len(panels) else None)

    def action_focus_numerics(self) -> None:
        """Enlarge the float16 panel to the whole screen and measure it now, or show all again."""
        is_shown = self._state.focus == "numerics" and self._overlay is None
        focus = None if is_shown else "numerics"
        self._overlay, self._state = None, replace(self._state, focus=focus)
        is_pending = "histogram" in self._early or activity.newest(self._view, "histogram") is not None
        # Where the run takes no such request, the panel says how old its histogram is.
        if focus and "histogram" in self._accepts() and not is_pending:
            self._show_first_optimizer()
            self._ask_for("histogram")

    def action_all_panels(self) -> None:
        self._state = replace(self._state, focus=None)

    def action_open(self, name: str) -> None:
        """Open the overlay of that name. They are imported here: the first frame does not need them."""
        from amptui.tui.overlays.metrics_browser import MetricsBrowser
        from amptui.tui.overlays.questions import LossScaleQuestion, PrecisionMenu
        from amptui.tui.overlays.text_browser import ConfigurationBrowser, EventBrowser, OutputBrowser
        from amptui.tui.overlays.xray_overlay import XRay

        browsers = (EventBrowser, MetricsBrowser, OutputBrowser, ConfigurationBrowser)
        overlays: tuple[type[Overlay], ...] = (*browsers, LossScaleQuestion, PrecisionMenu, XRay)
        self._overlay = next(overlay for overlay in overlays if overlay.name == name)()

    # ------------------------------------------------------------------------------- leaving

    def action_leave(self) -> None:
        """Quit; during training, ask first."""
        if self._over:
            self._leave("")
            return
        from amptui.tui.overlays.questions import QuitQuestion

        self._overlay = QuitQuestion(attached=self._attached)

    def action_detach(self) -> None:
        """Close the screen at once; training continues."""
        self._leave("" if self._parts.ended.is_set() else "detached")

    def action_stop(self) -> None:
        """Stop after the current step, and close the screen once that is done."""
        self._ask(RequestMade("stop", reason=_BY_USER))

    def action_interrupt(self) -> None:
        """Stop and quit without asking; the second time at once, the third without waiting for that.

        If attached, only detach.
        """
        if self._attached:
            self._leave("" if self._parts.ended.is_set() else "detached")
        elif self._hurried or self._parts.ended.is_set():
            self._leave("interrupted")
        elif self._interrupted:
            self._hurried = True
            self._ask(RequestMade("stop", reason=_BY_USER, at_once=True))
            self._say("ending at once: Ctrl+C again leaves")
        else:
            self._interrupted = True
            self.action_stop()
            self._say("stopping: Ctrl+C again does not wait", severity="info", seconds=FINDING_SECONDS)

    def _way_out(self) -> Left | None:
        how = super()._way_out()
        if how is not None:
            return how
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
