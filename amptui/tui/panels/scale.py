"""The loss scale: its value, its changes, and the progress to the next doubling."""

from amptui.base import units
from amptui.diagnosis.probe_words import idle_words, last_change
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import (
    Line,
    Phrase,
    Word,
    flowed,
    labelled,
    phrase,
    wrapped_phrases,
    write_folded,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import GRADE_STYLES, Style


def value(view: SessionView) -> Phrase:
    """The scale after the last fp16 step, in the colour of the trouble that it is in."""
    scale, finding = view.scaler.scale, view.numerics.scaler
    if finding.is_trouble and not idle_words(view):
        return phrase(units.count(scale), GRADE_STYLES[finding.grade])
    return phrase(units.count(scale), Style.DIM if idle_words(view) else Style.STRONG)


def _next(view: SessionView) -> Phrase:
    """``doubles in 760 steps``: applied steps without overflow until the scale does; or why it is idle."""
    scaler, idle = view.scaler, idle_words(view)
    if idle or scaler.growth_tracker is None or not scaler.growth_interval or view.numerics.scaler.is_trouble:
        return phrase(idle, Style.DIM, 2)
    width, left = len(units.count(scaler.growth_interval)), scaler.growth_interval - scaler.growth_tracker
    return labelled("doubles in", f"{units.count(max(0, left)):>{width}} steps", 2)


def _skipped(view: SessionView) -> list[Phrase]:
    """The steps that the scaler skipped of all, if any; what that means the verdict says."""
    if not view.scaler.skipped:
        return []
    skipped, of = view.scaler.skipped, f" of {units.count(view.scaler.skipped + view.scaler.applied)}"
    words = Word("skipped ", Style.DIM), Word(units.count(skipped), Style.WARNING), Word(of, Style.DIM)
    return [Phrase(words, 1)]


def lines(view: SessionView, width: int) -> list[Line]:
    """The scale and its next doubling, skipped steps, and its last change."""
    scale = Phrase((Word("loss scale ", Style.DIM), *value(view).words))
    moves = wrapped_phrases(last_change(view.scaler.last_change), Style.DIM, width)
    return [*flowed([scale, _next(view)], width), *flowed(_skipped(view), width), *moves]


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The scale, its next doubling, and the skipped steps."""
    phrases = [value(view), *_skipped(view), _next(view)] if view.scaler.scale is not None else []
    write_folded(canvas, "loss scale", phrases)
