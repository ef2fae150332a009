"""The screen of a comparison and its keys."""

from dataclasses import replace
from typing import TYPE_CHECKING

from amptui.reports.compare import sentences
from amptui.reports.compare.compare_frame import KEYS, Choice, CompareFrame
from amptui.reports.compare.following import Following
from amptui.tui.canvas import Canvas
from amptui.tui.opening import Opening
from amptui.tui.screen import Pace, Screen

if TYPE_CHECKING:
    from amptui.reports.compare.contrasts import Compared
    from amptui.tui.overlays.menus import About

FRAMES_PER_SECOND = 2.0
"""Journals are looked at once a second."""


class CompareScreen(Screen):
    """Shows what ``following`` reads; keys choose what to look at, and nothing reaches a run."""

    TITLE = "amptui compare"
    KEYS = KEYS
    HELP_TITLE = "compare keys"

    def __init__(self, following: Following, opening: Opening | None = None) -> None:
        super().__init__(opening, Pace(FRAMES_PER_SECOND), following)
        self._following = following
        self._frame = CompareFrame()
        self._newest: Compared | None = None
        self.choice = Choice()
        """What the user chose to look at."""

    def _has_news(self) -> bool:
        before, self._newest = self._newest, self._following.newest
        return self._newest is not before

    def _draw(self, canvas: Canvas) -> None:
        self._frame.draw(canvas, self._following.newest, self.choice, self._state)

    def _about(self) -> "About":
        return (("", sentences.READING),)

    def action_move_axis(self, key: str) -> None:
        axes = [*sentences.AXES]
        place = axes.index(self.choice.axis) + (1 if key == "right" else -1)
        self.choice = replace(self.choice, axis=axes[place % len(axes)])

    def action_toggle_validation(self) -> None:
        """Where there are validations."""
        newest = self._following.newest
        if newest is None or not any(run.validations for run in newest.runs):
            self._say(sentences.NO_VALIDATION, severity="info")
        else:
            self.choice = replace(self.choice, validation=not self.choice.validation)

    def action_next_panel(self) -> None:
        """Show a row for each run, or for each group."""
        self.choice = replace(self.choice, by_run=not self.choice.by_run)

    def action_move(self, key: str) -> None:
        """Scroll the verdict by a line."""
        self._frame.top += 1 if key in ("down", "j") else -1
