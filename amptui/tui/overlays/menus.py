"""The small overlays: the help, the menu of precisions, and the question before a screen closes."""

from collections.abc import Sequence
from typing import ClassVar

from amptui.diagnosis.labels import signed_label
from amptui.records.run import PRECISIONS
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.keys import Key
from amptui.tui.overlays.overlay import (
    CLOSE,
    STAY,
    Answer,
    Choice,
    Overlay,
    answer_to,
    draw_choices,
    open_box,
    unsupported,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style, precision_style

MEANINGS = {
    "fp32": "PyTorch's default: convolutions may use TF32",
    "ieee": "float32 with TF32 off everywhere",
    "tf32": "float32 with TF32 on everywhere",
    "fp16": "autocast to float16, with loss scaling",
    "bf16": "autocast to bfloat16, no loss scaling",
}
"""What each precision is, in half a line."""

TERMS = (
    ("loss scale", "fp16's factor on the loss, so that small gradients survive"),
    ("headroom", "how often the loss scale can double before an overflow"),
    ("underflow", "gradients too small for float16: zero, or with few bits"),
    ("cosine", "1 if AMP's gradients point where FP32's do"),
)
"""Words that the screen uses, for those who have not met them."""

_HELP_LABEL_WIDTH = len("run folder")


class Help(Overlay):
    """The keys that work and what they do, the signs of the precisions, and where the run is kept."""

    name: ClassVar[str] = "help"

    def __init__(self, title: str, keys: Sequence[Key]) -> None:
        self._title = title
        self._keys = keys

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        blank = int(len(self._keys) + 5 <= canvas.height)
        height = len(self._keys) + 4 + blank
        terms = TERMS if height + 1 + len(TERMS) <= canvas.height else ()
        inner = open_box(canvas, self._title, width=78, height=height + bool(terms) + len(terms))
        x = _HELP_LABEL_WIDTH + 2
        for y, key in enumerate(self._keys):
            inner.text(0, y, key.label, Style.KEY | BOLD, width=_HELP_LABEL_WIDTH, align="right")
            inner.text(x, y, key.meaning, width=max(0, inner.width - x))
        y = len(self._keys) + blank
        inner.text(0, y, "precisions", Style.DIM)
        inner.text(0, y + 1, "run folder", Style.DIM)
        inner.text(x, y + 1, view.run_dir, Style.DIM, width=max(0, inner.width - x))
        for row, (term, meaning) in enumerate(terms, y + 3):
            inner.text(0, row, term, Style.DIM)
            inner.text(x, row, meaning, width=max(0, inner.width - x))
        for name in PRECISIONS:
            x = inner.text(x, y, signed_label(name), precision_style(name)) + 2

    def press(self, _key: str, _view: SessionView) -> Answer:
        """Any key closes it."""
        return CLOSE


class PrecisionMenu(Overlay):
    """Every precision; one that the device does not support with the reason."""

    name: ClassVar[str] = "precisions"

    def __init__(self, view: SessionView) -> None:
        self._chosen = PRECISIONS.index(view.precision) if view.precision in PRECISIONS else 0

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        inner = open_box(canvas, "precision", width=72, height=len(PRECISIONS) + 4)
        refused = unsupported(view)
        for y, name in enumerate(PRECISIONS):
            style = Style.DIM if name in refused else precision_style(name)
            inner.text(0, y, "▸" if y == self._chosen else " ", Style.KEY | BOLD)
            inner.text(2, y, f"{y + 1} {signed_label(name)}", style, width=14)
            words = refused.get(name) or MEANINGS[name]
            now = " (now)" if name == view.precision else ""
            inner.text(17, y, f"{words}{now}", Style.DIM, width=max(0, inner.width - 17))
        inner.text(2, len(PRECISIONS) + 1, "enter or 1-5: switch, esc: back", Style.DIM)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Arrows move; enter or a number switches."""
        if key in ("up", "down", "k", "j"):
            self._chosen = (self._chosen + (1 if key in ("down", "j") else -1)) % len(PRECISIONS)
            return STAY
        if key == "enter":
            return Answer(close=True, precision=PRECISIONS[self._chosen])
        if key.isdecimal() and 1 <= int(key) <= len(PRECISIONS):
            return Answer(close=True, precision=PRECISIONS[int(key) - 1])
        return CLOSE if key in ("escape", "m", "q", "ctrl+q") else STAY


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
        inner.text(1, 0, f"Training is at step {view.step:,}. {or_else}", width=max(0, inner.width - 1))
        draw_choices(inner, 2, choices)

    def _choices(self, view: SessionView) -> tuple[Choice, ...]:
        after = "the run stays paused" if view.state == "paused" else "training continues"
        leave = f"detach: close the screen, {after}"
        stopping, detaching = Answer(close=True, action="stop"), Answer(close=True, action="detach")
        back = Choice("esc", ("escape", "n", "q", "ctrl+q"), "go back", CLOSE)
        observed = view.run is not None and view.run.observed
        saves = view.run is None or "checkpoint" not in view.run.refuses
        kept = "checkpoint and journal are kept" if saves else "the journal is kept"
        if self._attached:
            stop = f"stop the run for all screens; {kept}"
            if observed:
                stop = "interrupt the script as Ctrl+C does, if amptui run started it"
            return (
                Choice("enter", ("enter", "d"), leave, detaching, style=Style.STRONG),
                Choice("y", ("y",), stop, stopping),
                back,
            )
        stop = f"stop after this step; {kept}"
        if observed:
            stop = "interrupt the script as Ctrl+C does"
        return (
            Choice("enter", ("enter", "y"), stop, stopping, style=Style.STRONG),
            Choice("d", ("d",), leave, detaching),
            back,
        )

    def press(self, key: str, view: SessionView) -> Answer:
        """Only a clear yes stops the run."""
        return answer_to(key, self._choices(view))
