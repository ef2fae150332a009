"""The question when the trainer paused by itself: the loss scale collapsed or the weights contain NaN."""

from typing import ClassVar, NamedTuple

from amptui import units
from amptui.telemetry.labels import signed_label
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay, open_box, unsupported
from amptui.tui.panels.phrases import wrapped
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style, precision_style

_PRECISIONS = {
    "b": ("bf16", "float32's range, no loss scaling"),
    "f": ("fp32", "no overflow at 65,504"),
}
"""From each key to the precision to continue in, and why that helps."""

_LABEL_WIDTH = 12
_REASON_LINES = 3


class _Choice(NamedTuple):
    """One line of the choice."""

    key: str
    label: str
    style: int
    meaning: str


class LossScaleQuestion(Overlay):
    """Why training is paused, and the choices: another precision, the same one, or the end."""

    name: ClassVar[str] = "floor"

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        width = min(74, canvas.width)
        choices = _choices(view)
        # The choices matter more than the last lines on the cause.
        why = _why(view, width - 8)[: max(1, canvas.height - len(choices) - 6)]
        inner = open_box(canvas, "training is paused", width=width, height=len(why) + len(choices) + 6)
        sign, sign_style = VERDICT_SIGNS["error"]
        inner.text(1, 0, sign, sign_style | BOLD)
        for y, (line, style) in enumerate(why):
            inner.text(3, y, line, style)
        y = len(why) + 1
        for choice in choices:
            x = inner.text(1, y, choice.key, Style.KEY | BOLD) + 2
            inner.text(x, y, choice.label, choice.style, width=_LABEL_WIDTH)
            x += _LABEL_WIDTH + 1
            inner.text(x, y, choice.meaning, width=max(0, inner.width - x))
            y += 1
        stay = "esc: stay paused, space: ask again"
        inner.text(1, y + 1, stay, Style.DIM, width=max(0, inner.width - 1))

    def press(self, key: str, view: SessionView) -> Answer:
        """Answer with the precision before the resume, so that no step runs in the one that failed."""
        if key in _PRECISIONS and view.pause_cause != "weights":
            precision, _ = _PRECISIONS[key]
            if precision in unsupported(view):
                return STAY
            return Answer(close=True, precision=precision, action="resume")
        if key == "g":
            return Answer(close=True, action="resume")
        if key == "d":
            return Answer(close=True, action="detach")
        if key in ("q", "ctrl+q"):
            return Answer(action="ask_quit")
        return CLOSE if key == "escape" else STAY


def _why(view: SessionView, width: int) -> list[tuple[str, int]]:
    """The trainer's reason, then what is known about the cause."""
    causes = [_way_back(view) if view.pause_cause == "weights" else view.numerics.scaler.text]
    if view.numerics.trace_verdict is not None:
        causes.append(view.numerics.trace_verdict.text)
    lines = [(line, Style.STRONG) for line in _sentence(view.pause_reason, width)]
    lines += [(line, Style.TEXT) for cause in causes for line in _sentence(cause, width)]
    return [(line, int(style)) for line, style in lines]


def _way_back(view: SessionView) -> str:
    if view.checkpoint is None:
        return "there is no checkpoint to go back to: quit and restart with a smaller --lr"
    return f"go back to {view.checkpoint.name}: quit, then amptui train --resume"


def _sentence(text: str, width: int) -> list[str]:
    return wrapped(text[:1].upper() + text[1:], width, lines=_REASON_LINES)


def _choices(view: SessionView) -> list[_Choice]:
    now, scale = view.precision or "fp16", units.count(view.scaler.scale)
    leave = [
        _Choice("d", "  detach", Style.TEXT, "close the screen, the run stays paused"),
        _Choice("q", "  quit", Style.TEXT, "stop the run; asks again"),
    ]
    if view.pause_cause == "weights":
        return [_in_precision("g", now, "continue, though NaN weights never recover"), *leave]
    refused = unsupported(view)
    choices = [
        _in_precision(key, name, refused.get(name) or meaning, known=name not in refused)
        for key, (name, meaning) in _PRECISIONS.items()
    ]
    return [
        *choices,
        _in_precision("g", now, f"continue with the loss scale held at {scale}"),
        *leave,
    ]


def _in_precision(key: str, name: str, meaning: str, *, known: bool = True) -> _Choice:
    return _Choice(key, signed_label(name), precision_style(name) if known else Style.DIM, meaning)
