"""The loss scale: its value, its changes, and the progress to the next doubling."""

from amptui.base import units
from amptui.diagnosis.probe_words import NEVER_USED, idle_words, last_change
from amptui.records.run import MIN_SOUND_SCALE
from amptui.telemetry.scaling import ScalerView
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.curve import draw_enlarged
from amptui.tui.panels.numerics_panel import headroom_words, state_words
from amptui.tui.panels.phrases import (
    Gauge,
    Line,
    Phrase,
    Word,
    phrase,
    quiet,
    wrapped_phrases,
    write_folded,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.step_window import GUTTER
from amptui.tui.style import Style, precision_style

_NARROWEST_BAR, _FOLDED_BAR = 4, 10


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Doublings to overflow if there is room, and the scale itself, dim while no step uses it."""
    if view.scaler.scale is None:
        return []
    if view.numerics.headroom is None or view.numerics.hypothetical:
        return [value(view)]
    return [Phrase((Word("headroom ", Style.DIM), *headroom_words(view.numerics)), 1), value(view)]


def value(view: SessionView) -> Phrase:
    """The scale after the last fp16 step."""
    scale = view.scaler.scale
    if scale is not None and scale < MIN_SOUND_SCALE:
        return phrase(units.count(scale), Style.ERROR)
    return phrase(units.count(scale), Style.DIM if idle_words(view) else Style.STRONG)


def _growth(scaler: ScalerView, bar_width: int) -> Phrase:
    """``doubles in 760 steps``, a bar within: applied steps without overflow until the scale does."""
    fraction: float | None = None
    steps_left: int | None = None
    interval = scaler.growth_interval
    if scaler.growth_tracker is not None and interval:
        fraction = min(1.0, scaler.growth_tracker / interval)
        steps_left = max(0, interval - scaler.growth_tracker)
    bar = Gauge(bar_width, fraction, precision_style("fp16"))
    text = f" in {units.count(steps_left):>{len(units.count(interval))}} steps"
    return Phrase((Word("doubles ", Style.DIM), bar, Word(text)), 2)


def _counts(scaler: ScalerView) -> list[Phrase]:
    """Steps that the scaler skipped, if any, of all of its steps."""
    if not scaler.skipped:
        return []
    skipped, steps = units.count(scaler.skipped), units.count(scaler.skipped + scaler.applied)
    return [
        Phrase(
            (Word("skipped ", Style.DIM), Word(skipped, Style.WARNING), Word(f" of {steps}", Style.DIM)), 1
        )
    ]


def _trouble(view: SessionView) -> list[Phrase]:
    """What the scaler did, if that is not what it does in a healthy run."""
    state = state_words(view.numerics.scaler)
    return [] if state is None or view.numerics.scaler.grade == "good" else [Phrase((state,))]


def _label(scale: float) -> str:
    """A scale that fits beside an axis: ``65.5 k``, ``1.2e-04``."""
    text = units.tick(units.short_count(scale))
    return text if len(text) < GUTTER else f"{scale:.1e}"


class ScalePanel:
    """The curve keeps the limits of its axis from frame to frame."""

    def __init__(self) -> None:
        self._plot = CurvePlot(_label, band=False)

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """The scale's curve in powers of two, above what the scaler did."""
        if view.scaler.scale is None:
            quiet(canvas, NEVER_USED)
            return
        below = lines(view, canvas.width)[1:]
        rows = max(0, canvas.height - len(below))
        draw_enlarged(canvas.rows(0, rows), self._plot, view, screen, panel="scale")
        write_lines(canvas, rows, below)


def lines(view: SessionView, width: int) -> list[Line]:
    """The scale, the progress to its next doubling, trouble or skipped steps, and its last change."""
    scaler, idle = view.scaler, idle_words(view)
    first = Phrase((Word("loss scale ", Style.DIM), *value(view).words))
    if idle:
        second = phrase(idle, Style.DIM)
    else:
        bar_width = width - _growth(scaler, 0).width
        second = _growth(scaler, bar_width if bar_width >= _NARROWEST_BAR else 0)
    counts = [*_trouble(view), *_counts(scaler)]
    moves = wrapped_phrases(last_change(scaler.last_change), Style.DIM, width)
    return [[first], [second], *([counts] if counts else []), *moves]


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The scale, its problems, the progress to its next doubling, and the skipped steps."""
    phrases = [phrase(NEVER_USED, Style.DIM)]
    if view.scaler.scale is not None:
        idle = idle_words(view)
        second = phrase(idle, Style.DIM, 2) if idle else _growth(view.scaler, _FOLDED_BAR)
        phrases = [value(view), *_trouble(view), second, *_counts(view.scaler)]
    write_folded(canvas, "loss scale", phrases)
