"""The loss scale: its value, its changes, and the progress to the next doubling."""

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.loss_scale import last_change
from amptui.records.run import MIN_SOUND_SCALE
from amptui.telemetry.view import ScalerView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import Gauge, Line, Phrase, Word, quiet, wrapped_phrases, write_lines
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.panels.verdicts import headroom_words, state_words
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.step_window import visible_window
from amptui.tui.style import Style, precision_style

NEVER_USED = "no loss scale: only AMP fp16 uses one"

_NARROWEST_BAR = 4

_MIN_CURVE = 4
"""Lines of curve that the text leaves."""


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Doublings to overflow if there is room, and the scale itself, dim while no step uses it."""
    if view.scaler.scale is None:
        return []
    return [*_headroom(view), value(view)]


def value(view: SessionView) -> Phrase:
    """The scale after the last fp16 step."""
    scale = view.scaler.scale
    if scale is not None and scale < MIN_SOUND_SCALE:
        return Phrase((Word(units.count(scale), Style.ERROR),))
    return Phrase((Word(units.count(scale), Style.DIM if kept_words(view) else Style.STRONG),))


def kept_words(view: SessionView) -> str:
    """``kept while FP32 runs``; "" if the scale is in use or there is none."""
    if view.scaler.scale is None or view.precision in (None, "fp16"):
        return ""
    return f"kept while {precision_label(view.precision)} runs"


def growth(scaler: ScalerView, bar_width: int) -> Phrase:
    """``doubles in 760 steps``, a bar within: applied steps without overflow until the scale does."""
    done, whole = scaler.growth_tracker, scaler.growth_interval
    fraction = None if done is None or not whole else min(1.0, done / whole)
    left = None if done is None or not whole else max(0, whole - done)
    text = f" in {units.count(left):>{len(units.count(whole))}} steps"
    return Phrase(
        (Word("doubles ", Style.DIM), Gauge(bar_width, fraction, precision_style("fp16")), Word(text)), 2
    )


def counts(scaler: ScalerView) -> list[Phrase]:
    """Steps that changed the weights, and steps that the scaler skipped."""
    skipped_style = Style.WARNING if scaler.skipped else Style.TEXT
    return [
        Phrase((Word("skipped ", Style.DIM), Word(f"{units.count(scaler.skipped)}", skipped_style)), 1),
        Phrase((Word("applied ", Style.DIM), Word(f"{units.count(scaler.applied)}")), 3),
    ]


def trouble(view: SessionView) -> list[Phrase]:
    """The scaler's state, if it is in use and not healthy."""
    state = state_words(view.numerics.scaler)
    return [] if state is None or view.numerics.scaler.state == "healthy" else [Phrase((state,))]


def _headroom(view: SessionView) -> list[Phrase]:
    """``headroom 3.2``, of a step in float16."""
    if view.numerics.headroom is None or view.numerics.hypothetical:
        return []
    return [Phrase((Word("headroom ", Style.DIM), *headroom_words(view.numerics)), 1)]


class ScalePanel:
    """The curve keeps the limits of its axis from frame to frame."""

    def __init__(self) -> None:
        self._plot = CurvePlot(units.short_count, band=False)

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """The scale's curve in powers of two, above what the scaler did."""
        if view.scaler.scale is None:
            quiet(canvas, NEVER_USED)
            return
        lines = _lines(view, canvas.width, canvas.height)[: canvas.height]
        rows = canvas.height - len(lines)
        if rows >= 2:
            series, upper = view.loss_scale, canvas.rows(0, rows)
            window = visible_window(series, screen.zoom, ahead=screen.steps_ahead)
            self._plot.draw(upper, series, window=window, switches=view.switches, kind="log2")
        write_lines(canvas, rows, lines)


def _lines(view: SessionView, width: int, height: int) -> list[Line]:
    """Progress to the next doubling and skipped steps, the scaler's state, and more if there is room."""
    scaler, kept = view.scaler, kept_words(view)
    if kept:
        first = Phrase((Word(kept, Style.DIM),))
    else:
        bar_width = width - growth(scaler, 0).width
        first = growth(scaler, bar_width if bar_width >= _NARROWEST_BAR else 0)
    lines: list[Line] = [[first], [*trouble(view), *counts(scaler)]]
    state = state_words(view.numerics.scaler)
    told = [] if state is None else [Phrase((state,)), *_headroom(view)]
    moves = wrapped_phrases(last_change(scaler.last_change), Style.DIM, width)
    if told and height - len(lines) - 1 >= _MIN_CURVE:
        lines = [[first], counts(scaler), told]
    return lines + moves if height - len(lines) - len(moves) >= _MIN_CURVE else lines
