"""The line of a run with several optimizers: those whose steps the panels do not show."""

from collections.abc import Sequence

from amptui.base import units
from amptui.diagnosis.labels import precision_letter
from amptui.diagnosis.loss_form import loss_form_words
from amptui.telemetry.optimizers import MAX_OPTIMIZERS
from amptui.telemetry.view import OptimizerView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import Phrase, Word, fitting, line_width, wrapped, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style, precision_style

_NAME_WIDTH = 20
"""Cells for a name that comes from a script."""

_RANKS_OF_ONE = 10


def wanted_height(view: SessionView) -> int:
    """Lines for the others: one if there are any."""
    return int(bool(view.optimizers))


def front_label(view: SessionView) -> str:
    """What the optimizer in front is called; empty in a run with one."""
    return next((short_label(each) for each in view.optimizers if each.is_front), "")


def short_label(optimizer: OptimizerView) -> str:
    """Its label, cut."""
    return "".join(wrapped(optimizer.label, _NAME_WIDTH, lines=1))


def draw(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The key that changes the front, then of each other one what fits: name and loss of all first."""
    others = [each for each in view.optimizers if not each.is_front]
    key = [Phrase((Word("o", Style.KEY),), -1)] if others else []
    room = canvas.width - 2
    shown = len(others)
    while shown > 1 and line_width([*key, *map(_name, others[:shown]), *_more(view, others, shown)]) > room:
        shown -= 1
    phrases = [*key]
    for place, optimizer in enumerate(others[:shown]):
        phrases += [_name(optimizer), *_numbers(optimizer, 1 + _RANKS_OF_ONE * place)]
    write(canvas, 1, 0, fitting([*phrases, *_more(view, others, shown)], room))


def _more(view: SessionView, others: Sequence[OptimizerView], shown: int) -> list[Phrase]:
    """How many there is no room for, and whether there are more than a session keeps."""
    phrases = []
    if shown < len(others):
        phrases.append(Phrase((Word(f"+{len(others) - shown}", Style.DIM),), -1))
    if view.optimizers_left_out:
        phrases.append(Phrase((Word(f"⚠ more than {MAX_OPTIMIZERS}", Style.WARNING),), -1))
    return phrases


def _name(optimizer: OptimizerView) -> Phrase:
    """``A discriminator loss 0.391``."""
    letter = Word(precision_letter(optimizer.precision), precision_style(optimizer.precision) | BOLD)
    name = Word(f" {short_label(optimizer)} ", Style.STRONG)
    return Phrase((letter, name, *_loss(optimizer)), -2)


def _numbers(optimizer: OptimizerView, rank: int) -> list[Phrase]:
    """Skips, gradient norm, learning rate, step and average loss; the first matter most."""
    phrases = [
        _labelled("avg", optimizer.smoothed_loss, rank + 4),
        _labelled("lr", optimizer.lr, rank + 2),
        _labelled("norm", optimizer.grad_norm, rank + 1),
        Phrase((Word("step ", Style.DIM), Word(units.count(optimizer.step))), rank + 3),
    ]
    if optimizer.skipped:
        words = Word(units.count(optimizer.skipped), Style.WARNING), Word(" skipped", Style.DIM)
        phrases.append(Phrase(words, rank))
    return [phrase for phrase in phrases if phrase.words]


def _loss(optimizer: OptimizerView) -> tuple[Word, ...]:
    """The newest loss, or that there is none; NaN and Inf in the style of an error."""
    if optimizer.loss is None and (words := loss_form_words(optimizer.loss_form, optimizer.micro_batches)):
        return (Word(words.partition(":")[0], Style.DIM),)
    finite = optimizer.loss is None or abs(optimizer.loss) < float("inf")
    return Word("loss ", Style.DIM), Word(units.loss(optimizer.loss), Style.TEXT if finite else Style.ERROR)


def _labelled(label: str, number: float | None, rank: int) -> Phrase:
    words = () if number is None else (Word(f"{label} ", Style.DIM), Word(units.loss(number)))
    return Phrase(words, rank)
