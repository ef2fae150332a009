"""The question before a screen closes: stop the run, or leave it running."""

from typing import ClassVar, NamedTuple

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay, open_box
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style

_KEY_WIDTH = 5


class _Choice(NamedTuple):
    """One line of the question; enter takes the first."""

    key: str
    presses: tuple[str, ...]
    """Textual's names of the presses that count as this key."""
    words: str
    answer: Answer


class QuitQuestion(Overlay):
    """Asks whether to stop the run.

    Enter stops it on the screen that started it, and detaches on one that attached.
    """

    name: ClassVar[str] = "quit"

    def __init__(self, *, attached: bool) -> None:
        self._attached = attached

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        choices = self._choices(view)
        inner = open_box(canvas, "quit", width=76, height=len(choices) + 4)
        or_else = "Stop it or detach?" if self._attached else "Stop it?"
        inner.text(1, 0, f"Training is at step {view.step:,}. {or_else}", width=inner.width - 1)
        for y, choice in enumerate(choices, 2):
            style = Style.STRONG if y == 2 else Style.TEXT
            inner.text(1, y, choice.key, Style.KEY | BOLD, width=_KEY_WIDTH, align="right")
            x = 1 + _KEY_WIDTH + 2
            inner.text(x, y, choice.words, style, width=max(0, inner.width - x))

    def _choices(self, view: SessionView) -> tuple[_Choice, ...]:
        goes_on = "the run stays paused" if view.state == "paused" else "training continues"
        leave = f"detach: close the screen, {goes_on}"
        stopping, detaching = Answer(close=True, action="stop"), Answer(close=True, action="detach")
        back = _Choice("esc", ("escape",), "go back", CLOSE)
        if self._attached:
            stop = "stop the run for all screens; checkpoint and journal are kept"
            return (
                _Choice("enter", ("enter", "d"), leave, detaching),
                _Choice("y", ("y",), stop, stopping),
                back,
            )
        stop = "stop after this step; checkpoint and journal are kept"
        return (
            _Choice("enter", ("enter", "y"), stop, stopping),
            _Choice("d", ("d",), leave, detaching),
            back,
        )

    def press(self, key: str, view: SessionView) -> Answer:
        """A clear yes stops; anything that means no goes back."""
        answers = {key: choice.answer for choice in self._choices(view) for key in choice.presses}
        return answers.get(key, CLOSE if key in ("n", "q", "ctrl+q") else STAY)
