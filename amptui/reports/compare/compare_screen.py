"""The screen of a comparison and its keys: one timer draws what the readers of the journals have found."""

from dataclasses import replace
from typing import TYPE_CHECKING

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
        if key == "ctrl+c":
            self._leave("interrupted")
            return
        scroll = self._frame.help_scroll
        if self._choice.shows_help and scroll.words and key in SCROLL_KEYS:
            scroll.press(key)
        elif self._choice.shows_help:
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
        """Open the help at its beginning."""
        self._frame.help_scroll.top = 0
        self._choice = replace(self._choice, shows_help=True)

    def action_leave(self) -> None:
        """Quit."""
        self._leave("")
