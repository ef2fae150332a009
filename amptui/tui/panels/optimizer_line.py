"""The line of a run with several optimizers: those whose steps the panels do not show."""

from collections.abc import Sequence

from amptui.base import units
from amptui.diagnosis.labels import loss_form_words, precision_letter
from amptui.telemetry.optimizers import MAX_OPTIMIZERS
from amptui.telemetry.view import OptimizerView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import Phrase, Word, fitting, labelled, line_width, phrase, wrapped, write
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
    return next((_short_label(optimizer) for optimizer in view.optimizers if optimizer.is_front), "")


def _short_label(optimizer: OptimizerView) -> str:
    """Its label, cut."""
    return "".join(wrapped(optimizer.label, _NAME_WIDTH, lines=1))


def draw(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The key that changes the front, then of each other one what fits: name and loss of all first."""
    others = [optimizer for optimizer in view.optimizers if not optimizer.is_front]
    phrases = [phrase("o", Style.KEY, -1)] if others else []
    room = canvas.width - 2
    count = len(others)
    while (
        count > 1 and line_width([*phrases, *map(_name, others[:count]), *_more(view, others, count)]) > room
    ):
        count -= 1
    for place, optimizer in enumerate(others[:count]):
        phrases += [_name(optimizer), *_numbers(optimizer, 1 + _RANKS_OF_ONE * place)]
    write(canvas, 1, 0, fitting([*phrases, *_more(view, others, count)], room))


def _more(view: SessionView, others: Sequence[OptimizerView], count: int) -> list[Phrase]:
    """How many there is no room for, and whether there are more than a session keeps."""
    phrases = []
    if count < len(others):
        phrases.append(phrase(f"+{len(others) - count}", Style.DIM, -1))
    if view.optimizers_left_out:
        phrases.append(phrase(f"⚠ more than {MAX_OPTIMIZERS}", Style.WARNING, -1))
    return phrases


def _name(optimizer: OptimizerView) -> Phrase:
    """``A discriminator loss 0.391``; or that there is no loss, NaN and Inf in the style of an error."""
    letter = Word(precision_letter(optimizer.precision), precision_style(optimizer.precision) | BOLD)
    name = Word(f" {_short_label(optimizer)} ", Style.STRONG)
    if optimizer.loss is None and (words := loss_form_words(optimizer.loss_form, optimizer.micro_batches)):
        return Phrase((letter, name, Word(words.partition(":")[0], Style.DIM)), -2)
    finite = optimizer.loss is None or abs(optimizer.loss) < float("inf")
    loss = Word(units.loss(optimizer.loss), Style.TEXT if finite else Style.ERROR)
    return Phrase((letter, name, Word("loss ", Style.DIM), loss), -2)


def _numbers(optimizer: OptimizerView, rank: int) -> list[Phrase]:
    """Skips, gradient norm, learning rate, step and average loss; the first matter most."""
    numbers = (("avg", optimizer.smoothed_loss, 4), ("lr", optimizer.lr, 2), ("norm", optimizer.grad_norm, 1))
    phrases = [
        labelled(label, units.loss(number), rank + distance)
        for label, number, distance in numbers
        if number is not None
    ]
    phrases.append(labelled("step", units.count(optimizer.step), rank + 3))
    if optimizer.skipped:
        words = Word(units.count(optimizer.skipped), Style.WARNING), Word(" skipped", Style.DIM)
        phrases.append(Phrase(words, rank))
    return phrases
