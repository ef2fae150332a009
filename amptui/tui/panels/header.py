"""The top line: what trains where, in which precision, and its progress."""

from amptui.base import units
from amptui.diagnosis.labels import precision_glyph, precision_label
from amptui.records.run import RunFinished
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import ab_comparison, pending_requests
from amptui.tui.panels.phase import is_stopping, waiting_fraction, waiting_words
from amptui.tui.panels.phrases import Gauge, Phrase, Word, fitting, write, write_right
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
    left, right = _identity(view), _progress(view, screen)
    if canvas.width >= _SCREENS_FROM and view.viewers > 1:
        left.append(Phrase((Word(f"{units.count(view.viewers)} screens", Style.DIM),), 10))
    kept = {id(each) for each in fitting([*left, *right], canvas.width - 2)}
    write(canvas, 1, 0, [each for each in left if id(each) in kept])
    write_right(canvas, 0, [each for each in right if id(each) in kept], margin=1)


def _identity(view: SessionView) -> list[Phrase]:
    """What trains where, with a lasting warning about synthetic data."""
    app = Phrase((Word("amptui", Style.DIM),), 9)
    if view.run is None:
        return [app]
    phrases = [
        app,
        Phrase((Word(_short(view.run.model), Style.STRONG),), 3),
        Phrase((Word(_short(view.run.device_name.removeprefix("NVIDIA "))),), 8),
        Phrase((Word(_short(view.run.data.name)),), 7),
    ]
    if not view.run.data.real:
        phrases.append(Phrase((Word("⚠ synthetic data", Style.WARNING),), 1))
    return phrases


def _progress(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """Problems, precision, state, then the progress of the epoch and the run."""
    phrases = [*_trouble(view), *_precision(view, screen), _state(view, screen)]
    waiting = waiting_words(view, screen)
    if waiting:
        bar = Gauge(_BAR_WIDTH, waiting_fraction(view), Style.TEXT)
        phrases.append(Phrase((Word(waiting),), 2))
        phrases += [Phrase((bar,), 8)] if bar.fraction is not None else []
    elif view.run is not None:
        phrases += _epoch(view)
    if view.run is not None and view.state != "starting":
        phrases += [_step(view), _time(view, screen)]
    return phrases


def _trouble(view: SessionView) -> list[Phrase]:
    """What cannot be saved at present; how many warnings and errors there were."""
    counts = ((view.errors, *VERDICT_SIGNS["error"]), (view.warnings, *VERDICT_SIGNS["warning"]))
    phrases = [Phrase((Word(f"{sign} {units.count(n)}", style),), 3) for n, sign, style in counts if n]
    if view.not_kept:
        parts = " and ".join(change.what for change in view.not_kept)
        phrases.insert(0, Phrase((Word(f"✖ {parts} not saved", Style.ERROR),), 1))
    return phrases


def _precision(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """The current precision, and the requested one until the engine confirms it; or those compared."""
    if view.precision is None:
        return []
    compared, target = (
        ab_comparison.running(view),
        None if screen.lost else pending_requests.wanted_precision(view),
    )
    if compared is not None and target is None:
        return [Phrase((Word("comparing", Style.DIM),), 6), Phrase(tuple(ab_comparison.names(compared)), 0)]
    words = [_precision_word(view.precision)]
    if target is not None:
        words += [
            Word(" → ", Style.DIM),
            Word(precision_label(target), precision_style(target)),
            Word(" switching", Style.DIM),
        ]
    return [Phrase(tuple(words), 0)]


def _precision_word(precision: str) -> Word:
    return Word(
        f"{precision_glyph(precision)} {precision_label(precision)}", precision_style(precision) | BOLD
    )


def _state(view: SessionView, screen: ScreenState) -> Phrase:
    state, style = str(view.state), _STATE_STYLES[view.state]
    if state == "finished" and isinstance(view.outcome, RunFinished) and view.outcome.reason != "done":
        state, style = view.outcome.reason, Style.GOOD
    elif screen.lost:
        state, style = "lost", Style.ERROR
    elif screen.silence and state not in ("finished", "failed"):
        state, style = "silent", Style.WARNING
    elif state in ("starting", "running", "paused") and (
        screen.stopping or is_stopping(view) or pending_requests.newest(view, "stop") is not None
    ):
        state, style = "stopping", Style.WARNING
    elif (asked := pending_requests.newest(view, "pause")) is not None and asked.paused != (
        state == "paused"
    ):
        state, style = "pausing" if asked.paused else "resuming", Style.WARNING
    elif view.pause_reason:
        style = Style.ERROR  # nobody asked for this pause
    return Phrase((Word(f"{state:<8}", style),), 1)


def _epoch(view: SessionView) -> list[Phrase]:
    """The epoch and its progress; no bar if its length is unknown."""
    if view.run is None:
        return []
    if not view.run.total_epochs:  # an observed script tells of its epochs, if at all, as they end
        return [] if view.epoch <= 1 else [Phrase((Word("epoch ", Style.DIM), Word(f"{view.epoch}")), 4)]
    total = str(view.run.total_epochs)
    words = Phrase((Word("epoch ", Style.DIM), Word(f"{view.epoch:>{len(total)}}/{total}")), 4)
    if not view.run.steps_per_epoch:
        return [words]
    fraction = min(1.0, view.epoch_step / view.run.steps_per_epoch)
    return [words, Phrase((Gauge(_BAR_WIDTH, fraction, ab_comparison.steady_style(view)),), 8)]


def _step(view: SessionView) -> Phrase:
    total = view.run.total_steps if view.run is not None else None
    whole = "" if total is None else f"/{units.count(total)}"
    width = len(whole) - 1 if whole else 7
    return Phrase(
        (Word("step ", Style.DIM), Word(f"{units.count(view.step):>{width}}"), Word(whole, Style.DIM)), 3
    )


def _time(view: SessionView, screen: ScreenState) -> Phrase:
    """The remaining time of the run; once it has ended, how long it took."""
    over = view.state in ("finished", "failed") or bool(screen.lost)
    label, seconds = ("in", view.elapsed_seconds) if over else ("ETA", view.eta_seconds)
    return Phrase((Word(f"{label} ", Style.DIM), Word(f"{units.duration(seconds):>5}")), 5)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"
