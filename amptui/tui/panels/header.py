"""The top line: what trains where, in which precision, and its progress."""

from amptui.base import units
from amptui.diagnosis import activity, speed
from amptui.diagnosis.event_words import not_saved
from amptui.diagnosis.labels import SYNTHETIC, compared_label, run_label
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import RunFinished, RunStarted
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.phrases import (
    Phrase,
    Word,
    fitting,
    labelled,
    phrase,
    precision_word,
    write,
    write_right,
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
    "running": Style.GOOD,
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
        right += [*_epoch(view, run), *_steps(view, screen, run, wide=canvas.width >= _WIDE)]
    fitting_ids = {id(part) for part in fitting([*left, *right], canvas.width - 2)}
    write(canvas, 1, 0, [part for part in left if id(part) in fitting_ids])
    write_right(canvas, 0, [part for part in right if id(part) in fitting_ids], margin=1)


def _news(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """What is not saved, what the run waits for, and how many errors and warnings there were."""
    phrases = [phrase(f"✖ {not_saved(view.not_kept)}", Style.ERROR, 6)] if view.not_kept else []
    waiting = activity.waiting_words(view, silence=screen.lost or screen.silence)
    if waiting and view.phase is not None:  # without a phase it says no more than the state
        phrases.append(phrase(waiting, rank=7))
    counts = ((view.errors, *VERDICT_SIGNS["error"]), (view.warnings, *VERDICT_SIGNS["warning"]))
    return phrases + [phrase(f"{sign} {units.count(n)}", style, 8) for n, sign, style in counts if n]


def _precision_and_state(view: SessionView, screen: ScreenState) -> Phrase:
    """``AMP fp16 running``; ``FP32     switching`` until the engine confirms it; or those compared."""
    if view.precision is None:
        return Phrase(_state(view, screen))
    target = None if screen.lost else activity.wanted_precision(view)
    comparison = speed.running(view)
    if target is not None:
        words = [precision_word(target)]
        state = (Word(f"{'switching':<{_STATE_WIDTH}}", Style.DIM),)
    elif comparison is not None:
        words = _compared(comparison)
        state = (Word(f"{'comparing':<{_STATE_WIDTH}}", Style.DIM),)
    else:
        words, state = [precision_word(view.precision)], _state(view, screen)
    width = sum(text_width(word.text) for word in words)
    return Phrase((*words, Word(" " * max(1, _PRECISION_WIDTH + 1 - width)), *state))


def _compared(comparison: PrecisionsCompared) -> list[Word]:
    """``FP32/fp16``, each in its style; of more than two only their number."""
    if len(comparison.rows) != 2:
        return [Word(f"{len(comparison.rows)} precisions", Style.STRONG)]
    styles = [precision_style(row.precision) | BOLD for row in comparison.rows]
    first, second = (compared_label(row.precision, comparison) for row in comparison.rows)
    return [
        Word(first.removeprefix("AMP "), styles[0]),
        Word("/", Style.DIM),
        Word(second.removeprefix("AMP "), styles[1]),
    ]


def _state(view: SessionView, screen: ScreenState) -> tuple[Word]:
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
    return (Word(f"{state:<{_STATE_WIDTH}}", style),)


def _epoch(view: SessionView, run: RunStarted) -> list[Phrase]:
    """The epoch; an observed script tells of its epochs, if at all, as they end."""
    if run.total_epochs:
        total = str(run.total_epochs)
        return [labelled("epoch", f"{view.epoch:>{len(total)}}/{total}", 5)]
    return [
        labelled("epoch", f"{view.epoch:<2}", 5) if view.epoch > 1 else phrase(" " * len("epoch 99"), rank=5)
    ]


def _steps(view: SessionView, screen: ScreenState, run: RunStarted, *, wide: bool) -> list[Phrase]:
    """The step, and how long the others will take; once the run has ended, how long it took."""
    whole = "" if run.total_steps is None else f"/{units.count(run.total_steps)}"
    step = Word(f"{units.count(view.step):>{len(whole) - 1 if whole else 7}}")
    phrases = [Phrase((Word("step ", Style.DIM), step, Word(whole, Style.DIM)), 2)]
    over = view.state in ("finished", "failed") or bool(screen.lost)
    before, seconds, after = "about " if wide else "", view.eta_seconds, " left"
    if over:
        before, seconds, after = "in ", view.elapsed_seconds, ""
    elif run.total_steps is None:
        return phrases
    time = "" if seconds is None else units.duration(seconds)
    before, after = (before, after) if time else ("", "")
    pad = " " * (len("about 1:02:03 left" if wide else "1:02:03 left") - len(before + time + after))
    words = Word(pad + before, Style.DIM), Word(time), Word(after, Style.DIM)
    return [*phrases, Phrase(words, 4)]


def _short(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"
