"""The loss: whether the model learns, and in which precision."""

import math

from amptui.base import units
from amptui.diagnosis.activity import waiting_words
from amptui.diagnosis.labels import has_no_loss, step_loss_words
from amptui.diagnosis.speed import NO_STEPS
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.curve import draw_panel
from amptui.tui.panels.header import front_label
from amptui.tui.panels.phrases import (
    GAP,
    Phrase,
    folded_room,
    labelled,
    phrase,
    quiet,
    whole_words,
    write_folded,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.style import Style


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """The newest loss, its average, the best of the run, the last validation, and the learning rates.

    NaN and Inf have the style of an error.
    """
    phrases = []
    if view.last is not None and view.last.loss[0] is not None and not has_no_loss(view.newest):
        loss = view.last.loss[0]
        phrases.append(phrase(f"{units.loss(loss):>7}", Style.STRONG if math.isfinite(loss) else Style.ERROR))
    if form := step_loss_words(view.newest, brief=True):  # or why there is none; none of one backward pass
        phrases.append(phrase(form, Style.DIM, 0 if has_no_loss(view.newest) else 2))
    for label, value, rank in (("avg", view.smoothed_loss, 4), ("best", view.best_loss, 3)):
        if value is not None:
            phrases.append(labelled(label, f"{units.loss(value):>7}", rank))
    result = view.validated.validation if view.validated is not None else None
    if result is not None:
        phrases.append(labelled("val", f"{units.loss(result.loss):>7}", 1))
        if result.accuracy is not None:
            phrases.append(labelled("acc", f"{units.percent(result.accuracy, 1):>6}", 1))
    # The learning rates of the newest step; of each parameter group where they differ.
    step = view.newest if view.newest is not None and view.newest.lr[0] is not None else view.last
    if step is not None and step.lr[0] is not None:
        lrs = [lr[0] for lr in step.group_lrs or (step.lr,)]
        phrases.append(labelled("lr", " ".join(map(units.loss, lrs)), 5))
    metrics = () if result is None else result.metrics.items()
    return [
        *phrases,
        *(labelled(name, units.loss(value), rank) for rank, (name, value) in enumerate(metrics, 6)),
    ]


def draw(canvas: Canvas, view: SessionView, screen: ScreenState, *, plot: CurvePlot) -> None:
    """The curve, below it the ribbon of precisions and skips, then the axis of steps."""
    if not view.loss.count:
        words = waiting_words(view, silence=screen.lost or screen.silence)
        if words and not (view.phase is not None and view.phase.phase == "first step"):
            words = "waiting for the first step" + (f": {words}" if view.phase is not None else "")
        quiet(canvas, words or NO_STEPS)
    elif view.last is None and (words := step_loss_words(view.newest)):
        quiet(canvas, words)
    else:
        draw_panel(canvas, plot, view, screen, "loss")


def draw_line(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The headline in place of the curve, or what is waited for."""
    words = "" if view.loss.count else waiting_words(view, silence=screen.lost or screen.silence)
    label = front_label(view)
    phrases = [phrase(label, Style.STRONG, 1)] if label else []
    if words:
        phrases = [phrase(whole_words(f"waiting: {words}", folded_room(canvas)), Style.DIM)]
    elif has_no_loss(view.newest):
        room = folded_room(canvas) - sum(it.width + GAP for it in phrases)
        phrases.append(phrase(whole_words(step_loss_words(view.newest, brief=True), room), Style.DIM))
    else:
        phrases += headline(view, screen)
    write_folded(canvas, "loss", phrases)
