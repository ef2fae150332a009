"""The questions to the user: whether to stop the run, and how to go on after it paused by itself."""

from dataclasses import replace
from typing import ClassVar

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import long_words
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.overlay import (
    CLOSE,
    STAY,
    Answer,
    Choice,
    Overlay,
    answer_to,
    choices_height,
    draw_choices,
    open_box,
    unsupported,
)
from amptui.tui.panels.phrases import whole_words, wrapped
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style, precision_style

_PRECISIONS = (("bf16", "float32's range, no loss scaling"), ("fp32", "no overflow at 65,504"))
"""Those to continue in, and why they help."""

_REASON_LINES = 3

_QUESTION_LINES = 2


class LossScaleQuestion(Overlay):
    """Why training is paused, and the choices: another precision, the same one, detach or quit."""

    name: ClassVar[str] = "loss scale"

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        width = min(74, canvas.width)
        choices = _choices(view)
        # The choices matter more than the last lines on the cause.
        lines = choices_height(choices, width - 4)
        lines = lines if lines + 6 <= canvas.height else len(choices)
        why = self._causes(view, max(1, canvas.height - lines - 5), width - 8)
        inner = open_box(canvas, "training is paused", width=width, height=len(why) + lines + 5)
        sign, sign_style = VERDICT_SIGNS["error"]
        inner.text(1, 0, sign, sign_style | BOLD)
        for y, (line, style) in enumerate(why):
            inner.text(3, y, line, style)
        y = len(why) + 1
        y += draw_choices(inner.rows(y, lines), choices)
        stay = whole_words("esc: stay paused; space opens this again", inner.width - 1)
        inner.text(1, y + 1, stay, Style.DIM, width=max(0, inner.width - 1))

    def _causes(self, view: SessionView, height: int, width: int) -> list[tuple[str, int]]:
        """The trainer's reason, then what is known about the cause; ``…`` if that takes more lines."""
        lines: list[tuple[str, int]] = []
        for text in (view.pause_reason, *dict.fromkeys(map(long_words, view.pause_findings))):
            style = Style.TEXT if lines else Style.STRONG
            sentence = text[:1].upper() + text[1:]
            lines += [(line, style) for line in wrapped(sentence, width, lines=_REASON_LINES)]
        if len(lines) > height:
            last, last_style = lines[height - 1]
            last = whole_words(f"{last} …", width).removesuffix("…").rstrip() + "…"
            lines = [*lines[: height - 1], (last, last_style)]
        return lines

    def press(self, key: str, view: SessionView) -> Answer:
        """Answer with the precision before the resume, so that no step runs in the one that failed."""
        return CLOSE if key == "escape" else answer_to(key, _choices(view))


def _choices(view: SessionView) -> list[Choice]:
    precision, refused = view.precision or "fp16", unsupported(view)
    resume = Answer(close=True, action="resume")
    choices = []
    for key, (name, words) in enumerate(() if view.pause_cause == "weights" else _PRECISIONS, 1):
        label, style = precision_label(name), precision_style(name)
        choice = Choice(f"{key}", (f"{key}",), words, replace(resume, precision=name), label, style)
        if name in refused:
            choice = choice._replace(words=refused[name], answer=STAY, style=Style.DIM)
        choices.append(choice)
    held = f"continue with the loss scale held at {units.count(view.scaler.scale)}"
    same = "continue, though NaN weights never recover" if view.pause_cause == "weights" else held
    label, style = precision_label(precision), precision_style(precision)
    detaching, quitting = Answer(close=True, action="detach"), Answer(action="leave")
    last = f"{len(choices) + 1}"
    return [
        *choices,
        Choice(last, (last,), same, resume, label, style),
        Choice("d", ("d",), "close the screen, the run stays paused", detaching, "  detach"),
        Choice("q", ("q", "ctrl+q"), "stop the run; asks again", quitting, "  quit"),
    ]


class QuitQuestion(Overlay):
    """Asks whether to stop the run. Only ``y`` stops it, whoever started it: other keys go back."""

    name: ClassVar[str] = "quit"

    def __init__(self, *, attached: bool) -> None:
        self._attached = attached

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        choices = self._choices(view)
        width = min(76, canvas.width)
        question = f"Training is at step {view.step:,}. Stop it or detach?"
        lines = wrapped(question, width - 5, lines=_QUESTION_LINES)
        height = len(lines) + choices_height(choices, width - 4) + 3
        inner = open_box(canvas, "quit", width=width, height=height)
        for y, line in enumerate(lines):
            inner.text(1, y, line)
        draw_choices(inner.rows(len(lines) + 1), choices)

    def _choices(self, view: SessionView) -> tuple[Choice, ...]:
        after = "the run stays paused" if view.state == "paused" else "training continues"
        leave = f"detach: close the screen, {after}"
        saves = view.run is None or "checkpoint" not in view.run.refuses
        files = "checkpoint and journal are kept" if saves else "the journal is kept"
        stop = f"stop {'the run for all screens' if self._attached else 'after this step'}; {files}"
        if view.run is not None and view.run.observed:
            stop = "interrupt the script as Ctrl+C does"
            stop += ", if amptui run started it" if self._attached else ""
        return (
            Choice("y", ("y",), stop, Answer(close=True, action="stop")),
            Choice("d", ("d",), leave, Answer(close=True, action="detach")),
            Choice("esc", ("escape",), "go back (any other key too)", CLOSE),
        )

    def press(self, key: str, view: SessionView) -> Answer:
        """Only a clear yes stops the run."""
        answer = answer_to(key, self._choices(view))
        return CLOSE if answer == STAY else answer
