"""The screen of a comparison and its keys: one timer draws what the readers of the journals have found."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amptui.reports.compare import sentences
from amptui.reports.compare.compare_frame import KEYS, Choice, CompareFrame
from amptui.reports.compare.following import Following
from amptui.tui.canvas import Canvas
from amptui.tui.canvas_app import CanvasApp
from amptui.tui.opening import Opening
from amptui.tui.overlays.overlay import SCROLL_KEYS

if TYPE_CHECKING:
    from amptui.reports.compare.contrasts import Compared

FRAME_SECONDS = 0.5
"""From one frame to the next: journals are looked at once a second."""

MAX_TOP = 1000
"""The limit of scrolling: more lines than any verdict has."""

_ACTIONS = {press: key.action for key in KEYS for press in key.presses}


class CompareApp(CanvasApp):
    """Shows what ``following`` reads; keys choose what to look at, and nothing reaches a run."""

    TITLE = "amptui compare"

    def __init__(self, following: Following, opening: Opening | None = None) -> None:
        super().__init__(opening)
        self._following = following
        self._frame = CompareFrame()
        self._choice = Choice()
        self._newest: Compared | None = None

    @property
    def choice(self) -> Choice:
        """What the user chose to look at."""
        return self._choice

    def _begin(self) -> None:
        self._following.start()
        self._tick()

    def _tick(self) -> None:
        if self._terminal_is_gone():
            self._leave("hung up")
            return
        if self._following.failure is not None:
            self._leave("")
            return
        newest = self._following.newest
        if newest is not self._newest and not self._link_is_behind():
            self._newest = newest
            self._dashboard.repaint()
        self.set_timer(FRAME_SECONDS, self._tick)

    def _paint(self, canvas: Canvas) -> None:
        self._frame.draw(canvas, self._following.newest, self._choice)

    # --------------------------------------------------------------------------------- keys

    async def action_press(self, key: str) -> None:
        """An open help is closed by any key that does not scroll it; otherwise the table of keys decides."""
        action, scroll = _ACTIONS.get(key), self._frame.help_scroll
        if key == "ctrl+c":
            self._leave("interrupted")
        elif self._choice.shows_help and scroll.words and key in SCROLL_KEYS:
            scroll.press(key)
        elif self._choice.shows_help:
            self._choice = replace(self._choice, shows_help=False)
        elif action == "leave":
            self._leave("")
        elif action is not None:
            self._choice = self._changed(replace(self._choice, message=""), action)
        self._dashboard.repaint()

    def _changed(self, choice: Choice, action: str) -> Choice:
        """What the user looks at after an action of the table."""
        changes: dict[str, Any] = {}
        match action:
            case "next_axis":
                axes = [*sentences.AXES]
                changes["axis"] = axes[(axes.index(choice.axis) + 1) % len(axes)]
            case "toggle_validation":
                newest = self._following.newest
                if newest is None or not any(run.validations for run in newest.runs):
                    changes["message"] = sentences.NO_VALIDATION
                else:
                    changes["validation"] = not choice.validation
            case "toggle_log":
                changes["log_y"] = not choice.log_y
            case "toggle_runs":
                changes["by_run"] = not choice.by_run
            case "scroll_down":
                changes["top"] = min(choice.top + 1, MAX_TOP)
            case "scroll_up":
                changes["top"] = max(0, choice.top - 1)
            case "show_help":
                self._frame.help_scroll.top = 0
                changes["shows_help"] = True
        return replace(choice, **changes)
