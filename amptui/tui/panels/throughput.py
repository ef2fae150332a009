"""The speed of training: samples a second over the run, the time of a step, and where it goes."""

from amptui.base import units
from amptui.diagnosis.speed import EMULATED, NO_STEPS
from amptui.diagnosis.tensor_cores import mfu_words, rate_words
from amptui.records.run import is_emulated
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import ab_comparison, step_time_breakdown
from amptui.tui.panels.phrases import Phrase, Word, phrase, quiet, write_folded
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.step_window import visible_window
from amptui.tui.style import BOLD, Style

_LARGE = (74, 16)
"""With fewer columns or lines there is no room for the time breakdown below the curve."""

_MIN_CURVE = 5
"""At least so many lines for the curve."""


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """Samples a second and the time of a step over the last measured steps; what its operations come to."""
    samples = units.rate(view.samples_per_second, "samples")
    return [*_emulated(view), *_achieved(view), phrase(f"{samples:>16}", Style.STRONG), _step_time(view)]


def _emulated(view: SessionView) -> list[Phrase]:
    """The word, beside a speed of this training that is not FP8's."""
    return [phrase(EMULATED, Style.DIM)] if is_emulated(view.precision or "") else []


def _achieved(view: SessionView) -> list[Phrase]:
    """``412 TFLOP/s 42% MFU``, of the median step in the current precision."""
    flops = next((flops for flops in view.flops if flops.counted.precision == view.precision), None)
    if flops is None or flops.flops_per_second is None:
        return []
    words = [Word(rate_words(flops))]
    if flops.mfu is not None:
        words += [Word(f" {mfu_words(flops)}"), Word(" MFU", Style.DIM)]
    return [Phrase(tuple(words), 2)]


def _step_time(view: SessionView) -> Phrase:
    """``2.02 ms/step``, a mean; as wide, but without a unit, if there is no measurement."""
    if view.step_seconds is None:
        return phrase(f"{units.NOT_AVAILABLE:<12}", rank=1)
    return Phrase((Word(f"{units.milliseconds(view.step_seconds):>7}"), Word("/step", Style.DIM)), 1)


class ThroughputPanel:
    """The curve keeps the limits of its axis from frame to frame."""

    def __init__(self) -> None:
        self._plot = CurvePlot(units.short_count)

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """Samples a second over the run, coloured by precision; in a large panel, the time breakdown too."""
        if not view.samples_rate.count:
            quiet(canvas, NO_STEPS)
            return
        rows = canvas.height - _draw_timing(canvas, view)
        window = visible_window(view.samples_rate, screen.zoom, ahead=screen.steps_ahead)
        self._plot.draw(canvas.rows(0, rows), view.samples_rate, window=window, switches=view.switches)


def _draw_timing(canvas: Canvas, view: SessionView) -> int:
    """Draw it at the bottom of ``canvas``; return the number of lines, with a blank one above it."""
    if canvas.width < _LARGE[0] or canvas.height < _LARGE[1] or not view.timings:
        return 0
    foot = canvas.height - _MIN_CURVE - 1
    return 1 + step_time_breakdown.draw(canvas.rows(canvas.height - foot), view)


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """Samples a second in the style of the current precision, and the time of a step."""
    samples = f"{units.rate(view.samples_per_second, 'samples'):<16}"
    rate = phrase(samples, ab_comparison.steady_style(view) | BOLD)
    write_folded(canvas, "throughput", [rate, _step_time(view), *_emulated(view)])
