"""The top line: what trains where, in which precision, and its progress."""

from amptui.base import units
from amptui.diagnosis import activity, speed
from amptui.diagnosis.event_words import not_saved
from amptui.diagnosis.labels import SYNTHETIC, compared_label, precision_glyph, precision_label
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import RunFinished, RunStarted
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import (
    Gauge,
    Phrase,
    Word,
    fitting,
    labelled,
    phrase,
    precision_word,
    steady_style,
    write,
    write_right,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style, precision_style

_NAME_WIDTH = 24
"""Cells for a name that comes from a user or a driver."""

_BAR_WIDTH = 10

_SCREENS_FROM = 110
"""With fewer columns the number of screens is not shown."""

_STATE_STYLES = {
    "starting": Style.DIM,
    "running": Style.GOOD,
    "paused": Style.WARNING,
    "finished": Style.GOOD,
    "failed": Style.ERROR,
}


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """What is trained on the left; precision, state and progress in fixed places on the right."""
    left, right = [phrase("amptui", Style.DIM, 9)], _progress(view, screen)
    if view.run is not None:
        left += [
            phrase(_short(view.run.model), Style.STRONG, 3),
            phrase(_short(view.run.device_name.removeprefix("NVIDIA ")), rank=8),
            phrase(_short(view.run.data.name), rank=7),
        ]
        if not view.run.data.real:  # a lasting warning
            left.append(phrase(f"⚠ {SYNTHETIC}", Style.WARNING, 1))
    if canvas.width >= _SCREENS_FROM and view.viewers > 1:
        left.append(phrase(f"{units.count(view.viewers)} screens", Style.DIM, 10))
    fitting_ids = {id(part) for part in fitting([*left, *right], canvas.width - 2)}
    write(canvas, 1, 0, [part for part in left if id(part) in fitting_ids])
    write_right(canvas, 0, [part for part in right if id(part) in fitting_ids], margin=1)


def _progress(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """Problems, precision, state, then the progress of the epoch and the run."""
    counts = ((view.errors, *VERDICT_SIGNS["error"]), (view.warnings, *VERDICT_SIGNS["warning"]))
    phrases = [phrase(f"✖ {not_saved(view.not_kept)}", Style.ERROR, 1)] if view.not_kept else []
    phrases += [phrase(f"{sign} {units.count(n)}", style, 3) for n, sign, style in counts if n]
    phrases += [*_precision(view, screen), _state(view, screen)]
    waiting = activity.waiting_words(view, silence=screen.lost or screen.silence)
    if waiting and view.phase is not None:  # without a phase it says no more than the state
        bar = Gauge(_BAR_WIDTH, activity.waiting_fraction(view), Style.TEXT)
        phrases.append(phrase(waiting, rank=2))
        phrases += [Phrase((bar,), 8)] if bar.fraction is not None else []
    elif view.run is not None:
        phrases += _epoch(view, view.run)
    if view.run is not None and view.state != "starting":
        total = view.run.total_steps
        whole = "" if total is None else f"/{units.count(total)}"
        step = Word(f"{units.count(view.step):>{len(whole) - 1 if whole else 7}}")
        phrases.append(Phrase((Word("step ", Style.DIM), step, Word(whole, Style.DIM)), 3))
        # The remaining time of the run; once it has ended, how long it took.
        over = view.state in ("finished", "failed") or bool(screen.lost)
        label, seconds = ("in", view.elapsed_seconds) if over else ("ETA", view.eta_seconds)
        phrases.append(labelled(label, f"{units.duration(seconds):>5}", 5))
    return phrases


def _precision(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """The current precision, and the requested one until the engine confirms it; or those compared."""
    if view.precision is None:
        return []
    comparison = speed.running(view)
    target = None if screen.lost else activity.wanted_precision(view)
    if comparison is not None and target is None:
        return [phrase("comparing", Style.DIM, 6), Phrase(_compared(comparison))]
    words = [precision_word(view.precision)]
    if target is not None:
        words += [
            Word(" → ", Style.DIM),
            Word(precision_label(target), precision_style(target)),
            Word(" switching", Style.DIM),
        ]
    return [Phrase(tuple(words))]


def _compared(comparison: PrecisionsCompared) -> tuple[Word, ...]:
    """``■ FP32 ▲ AMP fp16``, each in its style; if more than two, only their number."""
    if len(comparison.rows) > 2:
        return (Word(f"{len(comparison.rows)} precisions", Style.STRONG),)
    words: list[Word] = []
    for row in comparison.rows:
        name = f"{precision_glyph(row.precision)} {compared_label(row.precision, comparison)}"
        words += [Word(" " if words else ""), Word(name, precision_style(row.precision) | BOLD)]
    return tuple(words)


def _state(view: SessionView, screen: ScreenState) -> Phrase:
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
    return phrase(f"{state:<8}", style, 1)


def _epoch(view: SessionView, run: RunStarted) -> list[Phrase]:
    """The epoch and its progress; no bar if its length is unknown, or once the run has ended."""
    if not run.total_epochs:  # an observed script tells of its epochs, if at all, as they end
        return [] if view.epoch <= 1 else [labelled("epoch", f"{view.epoch}", 4)]
    total = str(run.total_epochs)
    epoch = labelled("epoch", f"{view.epoch:>{len(total)}}/{total}", 4)
    if not run.steps_per_epoch or view.outcome is not None:
        return [epoch]
    steps = run.steps_per_epoch
    if run.total_steps is not None:  # which may end within the epoch
        steps = max(1, min(steps, run.total_steps - view.step + view.epoch_step))
    fraction = min(1.0, view.epoch_step / steps)
    return [epoch, Phrase((Gauge(_BAR_WIDTH, fraction, steady_style(view)),), 8)]


def _short(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"
