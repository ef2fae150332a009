"""The questions to the user: which precision, how to go on after a pause, whether to stop the run."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import long_words
from amptui.records.run import PRECISIONS
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay, entry, open_box
from amptui.tui.panels.phrases import (
    GAP,
    Block,
    Line,
    Phrase,
    Word,
    fitting_lines,
    phrase,
    wrapped_phrases,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style, precision_style

MEANINGS = {
    "fp32": "PyTorch's default: convolutions may use TF32",
    "ieee": "float32 with TF32 off everywhere",
    "tf32": "float32 with TF32 on everywhere",
    "fp16": "autocast to float16, with loss scaling",
    "bf16": "autocast to bfloat16, no loss scaling",
    "fp8": "bf16, and Linear layers multiply in float8",
}
"""What each precision is, in half a line."""

_REMEDIES = (("bf16", "float32's range, no loss scaling"), ("fp32", "no overflow at 65,504"))
"""The precisions to continue in, and why they help."""

_WIDTH = 76

_SENTENCE_LINES = 3

_CHOICE_LINES = 4
"""Of one choice on a narrow screen."""


class Choice(NamedTuple):
    """One line of a question."""

    presses: tuple[str, ...]
    """Textual's names of the presses that choose it; the first is the key that the screen shows."""
    words: str
    answer: Answer
    label: str = ""
    """What stands before the words: a precision, say."""
    style: int = Style.TEXT
    """The label's."""


class Question(Overlay):
    """Some lines, and choices: a key makes one of them, and any other does what ``otherwise`` says."""

    title: ClassVar[str]
    otherwise: ClassVar[Answer] = CLOSE

    def lines(self, view: SessionView, width: int) -> list[Line]:
        """What is asked."""
        raise NotImplementedError

    def choices(self, view: SessionView) -> Sequence[Choice]:
        """What can be answered."""
        raise NotImplementedError

    def draw(self, canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
        width, choices = min(_WIDTH, canvas.width), self.choices(view)
        lines, height = self.lines(view, width - 6), canvas.height - 2
        # Each choice has a line; what is asked comes before more of their words.
        rows = _rows(choices, width - 6, most=_CHOICE_LINES)
        if len(rows) + 2 > height:
            rows = _rows(choices, width - 6, most=1)
        blank = [Block([[]], 0)] if lines else []
        shown = fitting_lines([Block(lines, 1), *blank, Block(rows, 0, len(rows))], height)
        write_lines(open_box(canvas, self.title, width=width, height=len(shown) + 2).columns(1), 0, shown)

    def press(self, key: str, view: SessionView) -> Answer:
        answers = (choice.answer for choice in self.choices(view) if key in choice.presses)
        return next(answers, self.otherwise)


def _rows(choices: Sequence[Choice], width: int, *, most: int) -> list[Line]:
    """Keys, labels and words in columns, in lines of ``width`` cells."""
    keys = ["esc" if choice.presses[0] == "escape" else choice.presses[0] for choice in choices]
    key_width, label_width = max(map(len, keys)), max(text_width(choice.label) for choice in choices)
    rows = list[Line]()
    for key, choice in zip(keys, choices, strict=True):
        label = f"{' ' * GAP}{choice.label:<{label_width}}" if label_width else ""
        first = Phrase((Word(key.rjust(key_width), Style.KEY | BOLD), Word(label, choice.style)))
        rows += entry(first, choice.words, width, most=most)
    return rows


def _of_precision(
    presses: tuple[str, ...], name: str, words: str, view: SessionView, *, action: str = ""
) -> Choice:
    """To run in it; one that the device does not support says why, and cannot be chosen."""
    refused: Mapping[str, str] = view.run.unsupported if view.run is not None else {}
    if name in refused:
        return Choice(presses, refused[name], STAY, precision_label(name), Style.DIM)
    answer = Answer(close=True, action=action, precision=name)
    return Choice(presses, words, answer, precision_label(name), precision_style(name))


class PrecisionMenu(Question):
    """Every precision."""

    name: ClassVar[str] = "precisions"
    title: ClassVar[str] = "precision"
    otherwise: ClassVar[Answer] = STAY

    def lines(self, _view: SessionView, _width: int) -> list[Line]:
        return []

    def choices(self, view: SessionView) -> Sequence[Choice]:
        now = {view.precision: " (now)"}
        names = enumerate(PRECISIONS, 1)
        some = [_of_precision((f"{i}",), it, MEANINGS[it] + now.get(it, ""), view) for i, it in names]
        return [*some, Choice(("escape", "m", "q", "ctrl+q"), "back", CLOSE)]


class LossScaleQuestion(Question):
    """Why training is paused, and the choices: another precision, the same one, detach or quit."""

    name: ClassVar[str] = "loss scale"
    title: ClassVar[str] = "training is paused"
    otherwise: ClassVar[Answer] = STAY

    def lines(self, view: SessionView, width: int) -> list[Line]:
        """The trainer's reason, then what is known about the cause."""
        sign, style = VERDICT_SIGNS["error"]
        lines = list[Line]()
        for text in (view.pause_reason, *dict.fromkeys(map(long_words, view.pause_findings))):
            first = phrase(" " if lines else sign, style | BOLD)
            sentence = text[:1].upper() + text[1:]
            weight = Style.TEXT if lines else Style.STRONG
            prose = wrapped_phrases(sentence, weight, width - 1 - GAP, lines=_SENTENCE_LINES)
            lines += [[phrase(" ") if i else first, *line] for i, line in enumerate(prose)]
        return lines

    def choices(self, view: SessionView) -> Sequence[Choice]:
        """The precision is asked for before the resume, so that no step runs in the one that failed."""
        resume, now = Answer(close=True, action="resume"), view.precision or "fp16"
        remedies = enumerate(() if view.pause_cause == "weights" else _REMEDIES, 1)
        choices = [
            _of_precision((f"{i}",), name, words, view, action="resume") for i, (name, words) in remedies
        ]
        same = f"continue with the loss scale held at {units.count(view.scaler.scale)}"
        if view.pause_cause == "weights":
            same = "continue, though NaN weights never recover"
        last, label = (f"{len(choices) + 1}",), precision_label(now)
        return [
            *choices,
            Choice(last, same, resume, label, precision_style(now)),
            Choice(
                ("d",),
                "close the screen, the run stays paused",
                Answer(close=True, action="detach"),
                "detach",
            ),
            Choice(("q", "ctrl+q"), "stop the run; asks again", Answer(action="leave"), "quit"),
            Choice(("escape",), "stay paused; space opens this again", CLOSE, "back"),
        ]


class QuitQuestion(Question):
    """Asks whether to stop the run. Only ``y`` stops it, whoever started it: other keys go back."""

    name: ClassVar[str] = "quit"
    title: ClassVar[str] = "quit"

    def __init__(self, *, attached: bool) -> None:
        self._attached = attached

    def lines(self, view: SessionView, width: int) -> list[Line]:
        question = f"Training is at step {view.step:,}. Stop it or detach?"
        return wrapped_phrases(question, Style.TEXT, width)

    def choices(self, view: SessionView) -> Sequence[Choice]:
        after = "the run stays paused" if view.state == "paused" else "training continues"
        leave = f"detach: close the screen, {after}"
        saves = view.run is None or "checkpoint" not in view.run.refuses
        files = "checkpoint and journal are kept" if saves else "the journal is kept"
        stop = f"stop {'the run for all screens' if self._attached else 'after this step'}; {files}"
        if view.run is not None and view.run.observed:
            stop = "interrupt the script as Ctrl+C does"
            stop += ", if amptui run started it" if self._attached else ""
        return (
            Choice(("y",), stop, Answer(close=True, action="stop")),
            Choice(("d",), leave, Answer(close=True, action="detach")),
            Choice(("escape",), "go back (any other key too)", CLOSE),
        )
