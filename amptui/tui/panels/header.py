"""The top lines: what trains where, in which precision, and its progress; other optimizers."""

from amptui.base import units
from amptui.diagnosis import activity, speed
from amptui.diagnosis.event_words import not_saved
from amptui.diagnosis.labels import SYNTHETIC, loss_form_words, precision_letter, run_label, short_label
from amptui.records.run import RunFinished, RunStarted
from amptui.telemetry.optimizers import MAX_OPTIMIZERS
from amptui.telemetry.view import OptimizerView, SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.phrases import (
    Phrase,
    Word,
    fitting,
    labelled,
    line_width,
    phrase,
    precision_word,
    wrapped,
    write,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style, precision_style

_NAME_WIDTH = 24
"""Cells for a name that comes from a user or a driver."""

_PRECISION_WIDTH = len("AMP fp16")

_STATE_WIDTH = len("switching")

_WIDE = 100
"""With fewer columns the time left is not called ``about``, and the data just ``synthetic``."""

_STATE_STYLES = {
    "starting": Style.DIM,
    "running": Style.TEXT,
    "paused": Style.WARNING,
    "finished": Style.GOOD,
    "failed": Style.ERROR,
}


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """What is trained on the left; precision, state and progress on the right, in columns that stay.

    What comes and goes stands between them, where there is room.
    """
    left, run = [phrase(_short(run_label(view)), Style.STRONG)], view.run
    if run is not None:
        left += [
            phrase(_short(run.device_name.removeprefix("NVIDIA ")), rank=9),
            phrase(_short(run.data.name), rank=10),
        ]
        if not run.data.real:  # a lasting warning
            words = SYNTHETIC if canvas.width >= _WIDE else SYNTHETIC.split()[0]
            left.append(phrase(f"⚠ {words}", Style.WARNING, 1))
    right = [*_news(view, screen), _precision_and_state(view, screen)]
    if run is not None:
        right += [_epoch(view, run), *_steps(view, screen, run, wide=canvas.width >= _WIDE)]
    fitting_ids = {id(part) for part in fitting([*left, *right], canvas.width - 2)}
    write(canvas, 1, 0, [part for part in left if id(part) in fitting_ids])
    right = [part for part in right if id(part) in fitting_ids]
    write(canvas, canvas.width - 1 - line_width(right), 0, right)


def _news(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """What is not saved, what the run waits for, and how many errors and warnings there were."""
    phrases = [phrase(f"✖ {not_saved(view.not_kept)}", Style.ERROR, 1)] if view.not_kept else []
    waiting = activity.waiting_words(view, silence=screen.lost or screen.silence)
    if waiting and view.phase is not None:  # without a phase it says no more than the state
        phrases.append(phrase(waiting, rank=1 if view.phase.phase == "stopping" else 7))
    counts = ((view.errors, *VERDICT_SIGNS["error"]), (view.warnings, *VERDICT_SIGNS["warning"]))
    return phrases + [phrase(f"{sign} {units.count(n)}", style, 8) for n, sign, style in counts if n]


def _precision_and_state(view: SessionView, screen: ScreenState) -> Phrase:
    """``AMP fp16 running``; ``FP32     switching`` until the engine confirms it; or those compared."""
    state, style = _state(view, screen)
    if view.precision is None:
        return phrase(f"{state:<{_STATE_WIDTH}}", style)
    target = None if screen.lost else activity.wanted_precision(view)
    comparison, word = speed.running(view), precision_word(target or view.precision)
    if target is not None:
        state, style = "switching", Style.DIM
    elif comparison is not None:
        labels = [short_label(row.precision) for row in comparison.rows]
        word = Word("/".join(labels) if len(labels) == 2 else f"{len(labels)} precisions", Style.STRONG)
        state, style = "comparing", Style.DIM
    gap = Word(" " * max(1, _PRECISION_WIDTH + 1 - text_width(word.text)))
    return Phrase((word, gap, Word(f"{state:<{_STATE_WIDTH}}", style)))


def _state(view: SessionView, screen: ScreenState) -> tuple[str, Style]:
    state, style = str(view.state), _STATE_STYLES[view.state]
    pause = activity.newest(view, "pause")
    if state == "finished" and isinstance(view.outcome, RunFinished) and view.outcome.reason != "done":
        state, style = view.outcome.reason, Style.GOOD
    elif screen.lost:
        state, style = "lost", Style.ERROR
    elif screen.silence and state not in ("finished", "failed"):
        state, style = "silent", Style.WARNING
    elif state in ("starting", "running", "paused") and (
        screen.stopping or activity.is_stopping(view) or activity.newest(view, "stop") is not None
    ):
        state, style = "stopping", Style.WARNING
    elif pause is not None and pause.paused != (state == "paused"):
        state, style = "pausing" if pause.paused else "resuming", Style.WARNING
    elif view.pause_reason:
        style = Style.ERROR  # nobody asked for this pause
    return state, style


def _epoch(view: SessionView, run: RunStarted) -> Phrase:
    """The epoch; an observed script tells of its epochs, if at all, as they end."""
    if not run.total_epochs and view.epoch <= 1:
        return phrase(" " * len("epoch 99"), rank=5)
    total = str(run.total_epochs)
    epoch = f"{view.epoch:>{len(total)}}/{total}" if run.total_epochs else f"{view.epoch:<2}"
    return labelled("epoch", epoch, 5)


def _steps(view: SessionView, screen: ScreenState, run: RunStarted, *, wide: bool) -> list[Phrase]:
    """The step, and how long the others will take; once the run has ended, how long it took."""
    whole = "" if run.total_steps is None else f"/{units.count(run.total_steps)}"
    step = Word(f"{units.count(view.step):>{len(whole) - 1 if whole else 7}}")
    phrases = [Phrase((Word("step ", Style.DIM), step, Word(whole, Style.DIM)), 2)]
    about, words = "about " if wide else "", ""
    if view.state in ("finished", "failed") or screen.lost:
        words = f"in {units.duration(view.elapsed_seconds)}"
    elif run.total_steps is None:
        return phrases
    elif view.eta_seconds is not None:
        words = f"{about}{units.duration(view.eta_seconds)} left"
    return [*phrases, phrase(f"{words:>{len(about + '1:02:03 left')}}", rank=4)]


def _short(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"


_OPTIMIZER_WIDTH = 20
"""Cells for a name that comes from a script."""


def front_label(view: SessionView) -> str:
    """What the optimizer in front is called; empty in a run with one."""
    return next((_short_label(optimizer) for optimizer in view.optimizers if optimizer.is_front), "")


def _short_label(optimizer: OptimizerView) -> str:
    """Its label, cut."""
    return "".join(wrapped(optimizer.label, _OPTIMIZER_WIDTH, lines=1))


def draw_optimizers(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The key that changes the front, then name and loss of the others that fit, and how many do not."""
    others = [_name(optimizer) for optimizer in view.optimizers if not optimizer.is_front]
    key = [phrase("o", Style.KEY, -1)] if others else []
    kept = [phrase(f"⚠ more than {MAX_OPTIMIZERS}", Style.WARNING, -1)] if view.optimizers_left_out else []
    line, room = [*key, *others, *kept], canvas.width - 2
    for count in range(len(others) - 1, 0, -1):
        if line_width(line) <= room:
            break
        line = [*key, *others[:count], phrase(f"+{len(others) - count}", Style.DIM, -1), *kept]
    write(canvas, 1, 0, fitting(line, room))


def _name(optimizer: OptimizerView) -> Phrase:
    """``A discriminator loss 0.391``; or that there is no loss, NaN and Inf in the style of an error."""
    letter = Word(precision_letter(optimizer.precision), precision_style(optimizer.precision) | BOLD)
    name = Word(f" {_short_label(optimizer)} ", Style.STRONG)
    if optimizer.loss is None and (words := loss_form_words(optimizer.loss_form, optimizer.micro_batches)):
        return Phrase((letter, name, Word(words.partition(":")[0], Style.DIM)))
    finite = optimizer.loss is None or abs(optimizer.loss) < float("inf")
    loss = Word(units.loss(optimizer.loss), Style.TEXT if finite else Style.ERROR)
    return Phrase((letter, name, Word("loss ", Style.DIM), loss))
