"""The float16 panel: gradients against float16's range, headroom, and the loss scaler."""

from amptui.base import units
from amptui.diagnosis import activity, float16_verdicts
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import age_words, measured_at
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.loss_scale import outlook
from amptui.records.findings import Float16Window, is_old
from amptui.records.run import base_precision
from amptui.telemetry.view import NumericsView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import verdicts
from amptui.tui.panels.phrases import (
    GAP,
    Block,
    Line,
    Phrase,
    Word,
    fitting,
    fitting_lines,
    phrase,
    quiet,
    wrapped_phrases,
    write,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.float16_histogram import LEGEND_LINES, draw_exponents, width_beside
from amptui.tui.renderables.gauges import DIGIT_LINES, draw_digits
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.ribbon import draw_step_axis
from amptui.tui.renderables.step_window import visible_window
from amptui.tui.style import BOLD, Style

NOTHING_YET = "no gradients measured yet"

_WIDE = 104
"""With fewer columns the text is below the histogram instead of beside it."""

_WORDS_WIDTH = 42
"""Width of that text; less if the histogram would become unreadable."""

_HIGH = 24
"""Lines for a second row in a wide panel: the headroom's curve and the findings."""

_MIN_BARS, _MAX_BARS = 3, 18
"""Lines of bars."""

_FAIR_PART = 0.45
"""Of the lines of a narrow panel, the histogram's where there is more to say than lines."""

_ROOMY = 20
"""With more lines than these a blank one separates the paragraphs."""

_MIN_CURVE, _MAX_CURVE = 6, 14
"""Lines of the headroom's curve, its title and axis included."""


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """The scaler's state and the doublings to overflow."""
    state = verdicts.state_words(view.numerics.scaler)
    phrases = [Phrase((state,))] if state is not None else []
    if view.numerics.headroom is not None:
        label = "headroom in float16 " if view.numerics.hypothetical else "headroom "
        words = (Word(label, Style.DIM), *verdicts.headroom_words(view.numerics))
        phrases.append(Phrase(words, 1))
    return phrases


class NumericsPanel:
    """The headroom's curve keeps the limits of its axis from frame to frame."""

    def __init__(self) -> None:
        self._plot = CurvePlot(units.doublings, band=False)

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """The histogram first, the text beside or below it, and the curve if there is room."""
        if not _anything(view.numerics):
            words = activity.waiting_words(view, silence=screen.lost or screen.silence)
            quiet(canvas, f"{NOTHING_YET}: {words}" if words else NOTHING_YET)
        elif canvas.width < _WIDE:
            self._draw_stacked(canvas, view, screen)
        elif canvas.height < _HIGH:
            left, right = _split(canvas, width_beside(canvas.width, _WORDS_WIDTH + GAP))
            _draw_window(left, view)
            _write_blocks(right, _all_blocks(view, right.width))
        else:
            self._draw_wide(canvas, view, screen)

    def _draw_stacked(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """Everything in one column: the text gets what a histogram of a fair height leaves."""
        fair = max(1 + _MIN_BARS + LEGEND_LINES, round(_FAIR_PART * canvas.height))
        blocks = _all_blocks(view, canvas.width)
        lines = fitting_lines(blocks, max(0, canvas.height - fair))
        room = canvas.height - len(lines)
        gap = int(room > _ROOMY)
        upper = min(room - gap, 1 + _MAX_BARS + LEGEND_LINES)
        _draw_window(canvas.rows(0, upper), view)
        write_lines(canvas, upper + gap, lines)
        top = upper + 2 * gap + len(lines)
        self._draw_curve(canvas.rows(top, min(_MAX_CURVE, canvas.height - top)), view, screen)

    def _draw_wide(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """Two rows: now, and over the run."""
        upper = min(1 + _MAX_BARS + LEGEND_LINES, round(canvas.height * 0.55))
        left, right = _split(canvas.rows(0, upper), width_beside(canvas.width, _WORDS_WIDTH + GAP))
        _draw_window(left, view)
        below = right.rows(_draw_headroom(right, view.numerics))
        _write_blocks(below, _now_blocks(view.numerics, right.width))
        left, right = _split(canvas.rows(upper + 1), canvas.width // 2)
        self._draw_curve(left, view, screen)
        _write_blocks(right, _finding_blocks(view, right.width))

    def _draw_curve(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """The headroom of each measured step, at the loss scale of that step."""
        series = view.numerics.headrooms
        if canvas.height < _MIN_CURVE or not series.count:
            return
        canvas.text(0, 0, "headroom of each measured step, in doublings", Style.DIM, width=canvas.width)
        window, rows = visible_window(series, screen.zoom, ahead=screen.steps_ahead), canvas.height - 2
        self._plot.draw(canvas.rows(1, rows), series, window=window, switches=view.switches)
        draw_step_axis(canvas.rows(1 + rows), window=window)


def _anything(numerics: NumericsView) -> bool:
    """Whether there is anything to show yet."""
    values = (numerics.window, numerics.headroom, numerics.measured_step, numerics.trace, numerics.xray)
    return numerics.scaler.state != "unused" or any(value is not None for value in values)


def _split(canvas: Canvas, width: int) -> tuple[Canvas, Canvas]:
    """The ``width`` left columns of ``canvas``, and those right of them."""
    return canvas.columns(0, width), canvas.columns(width + GAP)


def _draw_window(canvas: Canvas, view: SessionView) -> None:
    """A title that says whether float16 ran, above the histogram."""
    window = view.numerics.window
    if window is None:
        quiet(canvas, f"float16 gradients: {float16_verdicts.window_missing(view)}")
        return
    write(canvas, 0, 0, fitting(_window_title(view, window), canvas.width))
    draw_exponents(canvas.rows(1), window)


def _window_title(view: SessionView, window: Float16Window) -> list[Phrase]:
    """Of which step, precision and scale the histogram is, and how old."""
    at = float16_verdicts.at_scale(window.loss_scale, hypothetical=window.hypothetical)
    age, cost = _age(view, window), float16_verdicts.window_cost(window)
    place = f"step {units.count(window.step)}"
    if base_precision(view.precision or "") != base_precision(window.precision):
        place += f" in {precision_label(window.precision)}"
    return [
        phrase("float16 gradients", rank=3 if window.hypothetical else 1),
        phrase(at, Style.FP16 | BOLD),
        phrase(place, Style.DIM, 2),
        *([Phrase((age,))] if age is not None else []),
        *([phrase(cost, Style.DIM, 4)] if cost else []),
    ]


def _age(view: SessionView, window: Float16Window) -> Word | None:
    """``measuring …``, or that it is old; nothing of one that is fresh."""
    if activity.newest(view, "histogram") is not None:
        return Word(float16_verdicts.MEASURING, Style.STRONG)
    if not is_old(window.step, window.loss_scale, now=view.step, scale_now=view.scaler.scale):
        return None
    return Word(age_words(view.step - window.step), Style.WARNING)


def _draw_headroom(canvas: Canvas, numerics: NumericsView) -> int:
    """The headroom in large digits above its gauge; return the number of lines."""
    canvas.text(0, 0, f"headroom {verdicts.at_which_scale(numerics).text}", Style.DIM)
    value = units.doublings(numerics.headroom)
    words = verdicts.headroom_words(numerics)
    if set(value) <= set("0123456789.-"):
        x = draw_digits(canvas, 0, 1, value, words[0].style)
        canvas.text(x + 1, DIGIT_LINES, "doublings to overflow", Style.DIM)
    else:
        write(canvas, 0, DIGIT_LINES, [Phrase(words)])
    gauge = verdicts.headroom_gauge(numerics, min(2, canvas.width // 16) * verdicts.DOUBLINGS)
    lines: list[Line] = [[Phrase((gauge,))], [Phrase(verdicts.least_words(numerics))]]
    lines += wrapped_phrases(outlook(numerics.outlook), Style.TEXT, canvas.width)
    write_lines(canvas, 2 + DIGIT_LINES, lines)
    return 3 + DIGIT_LINES + len(lines)


def _all_blocks(view: SessionView, width: int) -> list[Block]:
    return [
        verdicts.headroom(view.numerics, width, beside=view.numerics.window),
        *_now_blocks(view.numerics, width),
        *_finding_blocks(view, width),
    ]


def _now_blocks(numerics: NumericsView, width: int) -> list[Block]:
    """The state of the newest steps."""
    return [verdicts.scaler(numerics.scaler, width), verdicts.gradients(numerics, width)]


def _finding_blocks(view: SessionView, width: int) -> list[Block]:
    """Findings of single steps: what float16 loses, and the probes that a user asked for."""
    numerics, answer = view.numerics, amp_answer(view)
    window, trace, xray = numerics.window, numerics.trace, numerics.xray
    blocks: list[Block] = []
    if window is not None:
        grade, text = answer.grade("float16", window.step), float16_verdicts.window_facts(window)
        about = measured_at(window.step, window.precision)
        blocks.append(verdicts.finding("float16", grade, text, width, rank=3, about=about))
        blocks += verdicts.worst(window, width)
    if trace is not None:
        grade, text = answer.grade("forward", trace.step), float16_verdicts.trace_verdict(trace).text
        about = measured_at(trace.step, trace.precision)
        blocks.append(verdicts.finding("trace", grade, text, width, rank=4, about=about))
    if xray is not None:
        grade, text = answer.grade("agreement", xray.step), float16_verdicts.xray_verdict(xray).text
        about = measured_at(xray.step, xray.precision, xray.loss_scale)
        blocks.append(verdicts.finding("X-ray", grade, text, width, rank=5, about=about))
    return blocks


def _write_blocks(canvas: Canvas, blocks: list[Block]) -> None:
    write_lines(canvas, 0, fitting_lines(blocks, canvas.height))
