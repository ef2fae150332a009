"""The float16 panel: gradients against float16's range, headroom, the loss scaler, and what was found."""

import math
from collections.abc import Callable

from amptui.base import units
from amptui.diagnosis import activity, probe_words
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import SIGNS, age_words, long_words, measured_at, short_words
from amptui.records.findings import Float16Window, ParameterWindow, is_old
from amptui.records.run import base_precision
from amptui.telemetry.finding import Finding
from amptui.telemetry.health import judge_trace, judge_window, judge_xray
from amptui.telemetry.underflow import underflowing_share
from amptui.telemetry.view import NumericsView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import (
    GAP,
    Block,
    Gauge,
    Line,
    Phrase,
    Word,
    end_of,
    fitting,
    fitting_lines,
    flowed,
    labelled,
    phrase,
    quiet,
    wrapped_phrases,
    write,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.float16_histogram import LEGEND_LINES, draw_exponents, width_beside
from amptui.tui.renderables.gauges import DIGIT_LINES, draw_digits
from amptui.tui.renderables.plot import CurvePlot, draw_step_axis
from amptui.tui.renderables.step_window import visible_window
from amptui.tui.style import BOLD, GRADE_STYLES, NO_VERDICT, VERDICT_SIGNS, Style

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

_DOUBLINGS = 16
"""The range of the gauge: the doublings between 1 and the largest float16."""

_LABEL_WIDTH = 9
"""Room for ``gradients``."""

_STEP_AT_STAKE = 1.0
"""With less headroom than one doubling the scaler's next growth overflows."""

_MAX_LINES = 4
"""Lines of one sentence."""

_SHARE_WIDTH = 9
"""A column's head is ``subnormal`` at most, a share has seven cells."""

_ALL_COLUMNS = 60
"""With fewer cells two columns are left out, so that names have room."""


def headline(view: SessionView, _screen: ScreenState) -> list[Phrase]:
    """The scaler's state and the doublings to overflow."""
    state = state_words(view.numerics.scaler)
    phrases = [Phrase((state,))] if state is not None else []
    if view.numerics.headroom is not None:
        label = "headroom in float16 " if view.numerics.hypothetical else "headroom "
        words = (Word(label, Style.DIM), *headroom_words(view.numerics))
        phrases.append(Phrase(words, 1))
    return phrases


class NumericsPanel:
    """The headroom's curve keeps the limits of its axis from frame to frame."""

    def __init__(self) -> None:
        self._plot = CurvePlot(units.doublings, band=False)

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """The histogram first, the text beside or below it, and the curve if there is room."""
        numerics = view.numerics
        measured = (numerics.window, numerics.headroom, numerics.measured_step, numerics.trace, numerics.xray)
        if numerics.scaler.freshness == "never measured" and all(value is None for value in measured):
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


def _split(canvas: Canvas, width: int) -> tuple[Canvas, Canvas]:
    """The ``width`` left columns of ``canvas``, and those right of them."""
    return canvas.columns(0, width), canvas.columns(width + GAP)


def _draw_window(canvas: Canvas, view: SessionView) -> None:
    """The histogram, below a title: of which step, precision and scale it is, and how old."""
    window = view.numerics.window
    if window is None:
        quiet(canvas, f"float16 gradients: {probe_words.window_missing(view)}")
        return
    at = probe_words.at_scale(window.loss_scale, hypothetical=window.hypothetical)
    place = f"step {units.count(window.step)}"
    if base_precision(view.precision or "") != base_precision(window.precision):
        place += f" in {precision_label(window.precision)}"
    title = [
        phrase("float16 gradients", rank=3 if window.hypothetical else 1),
        phrase(at, Style.FP16 | BOLD),
        phrase(place, Style.DIM, 2),
    ]
    if activity.newest(view, "histogram") is not None:
        title.append(phrase(probe_words.MEASURING, Style.STRONG))
    elif is_old(window.step, window.loss_scale, now=view.step, scale_now=view.scaler.scale):
        title.append(phrase(age_words(view.step - window.step), Style.WARNING))
    if cost := probe_words.window_cost(window):
        title.append(phrase(cost, Style.DIM, 4))
    write(canvas, 0, 0, fitting(title, canvas.width))
    draw_exponents(canvas.rows(1), window)


def _draw_headroom(canvas: Canvas, numerics: NumericsView) -> int:
    """The headroom in large digits above its gauge; return the number of lines."""
    canvas.text(0, 0, f"headroom {_at_which_scale(numerics)}", Style.DIM)
    value = units.doublings(numerics.headroom)
    words = headroom_words(numerics)
    if set(value) <= set("0123456789.-"):
        x = draw_digits(canvas, 1, value, words[0].style)
        canvas.text(x + 1, DIGIT_LINES, "doublings to overflow", Style.DIM)
    else:
        write(canvas, 0, DIGIT_LINES, [Phrase(words)])
    gauge = _headroom_gauge(numerics, min(2, canvas.width // 16) * _DOUBLINGS)
    lines: list[Line] = [[Phrase((gauge,))], [Phrase(_least_words(numerics))]]
    lines += wrapped_phrases(long_words(numerics.growth), Style.TEXT, canvas.width)
    write_lines(canvas, 2 + DIGIT_LINES, lines)
    return 3 + DIGIT_LINES + len(lines)


def _all_blocks(view: SessionView, width: int) -> list[Block]:
    return [
        _headroom_block(view.numerics, width),
        *_now_blocks(view.numerics, width),
        *_finding_blocks(view, width),
    ]


def _now_blocks(numerics: NumericsView, width: int) -> list[Block]:
    """The state of the newest steps."""
    return [_scaler_block(numerics.scaler, width), _gradients_block(numerics, width)]


def _finding_blocks(view: SessionView, width: int) -> list[Block]:
    """Findings of single steps: what float16 loses, and the probes that a user asked for."""
    numerics, answer = view.numerics, amp_answer(view)
    window, trace, xray = numerics.window, numerics.trace, numerics.xray
    blocks: list[Block] = []
    findings = (
        ("float16", None if window is None else judge_window(window)),
        ("trace", None if trace is None else judge_trace(trace)),
        ("X-ray", None if xray is None else judge_xray(xray)),
    )
    for rank, (label, finding) in enumerate(findings, 3):
        if finding is None:
            continue
        # With the sign that the answer on AMP gives it, and the step it is about.
        grade = answer.grade(finding.subject, finding.step or 0)
        style = GRADE_STYLES[grade] if grade in ("warning", "error") else int(Style.TEXT)
        text = f" {long_words(finding)} ({measured_at(finding)})"
        lines = _prose(text, style, width, Word(SIGNS[grade], GRADE_STYLES[grade]))
        blocks.append(Block(_beside(label, lines), rank))
        if window is not None and label == "float16":
            blocks += _worst_blocks(window, width)
    return blocks


def _write_blocks(canvas: Canvas, blocks: list[Block]) -> None:
    write_lines(canvas, 0, fitting_lines(blocks, canvas.height))


# ------------------------------------------------------------------------------------- in words


def state_words(scaler: Finding) -> Word | None:
    """``✔ no overflow in 300 steps``; None while no loss scaler is in use. What is over has no sign."""
    if scaler.freshness == "never measured":
        return None
    is_over = scaler.freshness == "old" or scaler.grade == "neutral"
    sign, style = NO_VERDICT if is_over else VERDICT_SIGNS[scaler.severity]
    return Word(f"{sign} {short_words(scaler)}", style if style == Style.TEXT else style | BOLD)


def _headroom_style(numerics: NumericsView) -> int:
    """Green with room for the next doubling, a warning without it, an error if float16 overflows.

    Not green where gradients underflow: much room is no good sign then.
    """
    headroom, window = numerics.headroom, numerics.window
    if headroom is None:
        return Style.DIM
    if not headroom >= 0:
        return Style.ERROR | BOLD
    if headroom < _STEP_AT_STAKE:
        return Style.WARNING | BOLD
    underflows = window is not None and judge_window(window).state in ("underflows", "all zero")
    return (Style.TEXT if underflows else Style.GOOD) | BOLD


def headroom_words(numerics: NumericsView) -> tuple[Word, ...]:
    """``3.2 doublings``, or that NaN and Inf leave none."""
    headroom, style = numerics.headroom, _headroom_style(numerics)
    if headroom is not None and not math.isfinite(headroom):
        return (Word("none", style), Word(": NaN or Inf"))
    unit = Word(" doublings" if headroom is not None else "", Style.DIM)
    return Word(units.doublings(headroom), style), unit


def _headroom_gauge(numerics: NumericsView, width: int) -> Gauge:
    """The fraction of ``_DOUBLINGS`` that is left; empty if float16 overflows."""
    headroom = numerics.headroom
    fraction = None if headroom is None else max(0.0, headroom / _DOUBLINGS)
    return Gauge(width, fraction, _headroom_style(numerics), "full")


def _at_which_scale(numerics: NumericsView) -> str:
    """``at scale 65,536``, or ``if in float16 at 65,536``."""
    scale = numerics.headroom_scale
    return "" if scale is None else probe_words.at_scale(scale, hypothetical=numerics.hypothetical)


def _least_words(numerics: NumericsView) -> tuple[Word, ...]:
    if numerics.min_headroom is None:
        return ()
    return (Word(probe_words.least_headroom(numerics), Style.DIM),)


def _headroom_block(numerics: NumericsView, width: int) -> Block:
    """Value, gauge and least, then the next change of the scale.

    With its own scale where the histogram beside it is at another one.
    """
    window, phrases = numerics.window, [Phrase(headroom_words(numerics))]
    if window is not None and window.loss_scale != numerics.headroom_scale:
        phrases += [phrase(at, Style.DIM)] if (at := _at_which_scale(numerics)) else []
    phrases.append(Phrase((_headroom_gauge(numerics, _DOUBLINGS),)))
    if least := _least_words(numerics):
        phrases.append(Phrase(least))
    flow = flowed(phrases, width - _LABEL_WIDTH - GAP)
    return Block(_beside("headroom", flow + _prose(long_words(numerics.growth), Style.TEXT, width)), 0)


def _scaler_block(scaler: Finding, width: int) -> Block:
    """What it did, and what that means while it is in use."""
    state = state_words(scaler)
    if state is None:
        lines = _prose("not used", Style.DIM, width)
    elif scaler.freshness == "old":
        lines = _prose("", Style.TEXT, width, state)
    else:
        sign, style = Word(state.text[0], state.style), state.style if scaler.is_trouble else int(Style.TEXT)
        lines = _prose(f" {long_words(scaler)}", style, width, sign)
    return Block(_beside("scaler", lines), 1, min(2, len(lines)))


def _gradients_block(numerics: NumericsView, width: int) -> Block:
    """Norm, maximum and number of non-finite elements, of the newest measured step."""
    nonfinite = numerics.nonfinite_gradients
    bad = Style.ERROR | BOLD
    phrases = [
        labelled(name, units.loss(value), style=Style.TEXT if value is None or math.isfinite(value) else bad)
        for name, value in (("norm", numerics.grad_norm), ("max", numerics.grad_max))
    ]
    phrases += [
        labelled("NaN/Inf", units.count(nonfinite), style=bad if nonfinite else Style.TEXT),
        phrase(f"step {units.count(numerics.measured_step)}", Style.DIM),
    ]
    lines = flowed(phrases, width - _LABEL_WIDTH - GAP)
    return Block(_beside("gradients", lines), 2, len(lines))


def _worst_blocks(window: Float16Window, width: int) -> list[Block]:
    """The parameters that lose most in float16: the share of the norm, and of the nonzero elements."""
    if not window.worst:
        return []
    columns = _COLUMNS if width >= _ALL_COLUMNS else (_COLUMNS[0], _COLUMNS[-1])
    head = "".join(f"{name:>{_SHARE_WIDTH}} " for name, _, _ in columns)
    lines = [[phrase(f"{head} worst parameters", Style.DIM)]]
    for parameter in window.worst:
        shares = [
            Word(f"{units.share(share, 1):>{_SHARE_WIDTH}} ", style if share else Style.DIM)
            for share, style in ((share_of(parameter), style) for _, share_of, style in columns)
        ]
        name = end_of(parameter.name, width - len(head) - 1)
        lines.append([Phrase((*shares, Word(f" {name}")))])
    return [Block(lines, 6, 2)]


def _of_nonzero(count: int, parameter: ParameterWindow) -> float | None:
    nonzero = parameter.elements - parameter.zeros
    return count / nonzero if nonzero > 0 else None


_COLUMNS: tuple[tuple[str, Callable[[ParameterWindow], float | None], int], ...] = (
    ("underflow", underflowing_share, Style.WARNING),
    ("flushed", lambda parameter: _of_nonzero(parameter.flushed, parameter), Style.WARNING),
    ("subnormal", lambda parameter: _of_nonzero(parameter.subnormal, parameter), Style.TEXT),
    ("overflow", lambda parameter: _of_nonzero(parameter.overflowing, parameter), Style.ERROR | BOLD),
)
"""The share of a parameter's norm that underflows; what float16 does to its nonzero elements; the style."""


def _prose(text: str, style: int, width: int, *head: Word) -> list[Line]:
    """``text`` wrapped beside a label, behind ``head``; a cell is kept free for the sign that it was cut."""
    return wrapped_phrases(text, style, width - _LABEL_WIDTH - GAP - 1, lines=_MAX_LINES, head=head)


def _beside(label: str, lines: list[Line]) -> list[Line]:
    """``lines`` behind a dim label, those after the first indented as much."""
    labels = [label, *[""] * (len(lines) - 1)]
    return [
        [phrase(f"{name:<{_LABEL_WIDTH}}", Style.DIM, -1), *line]
        for name, line in zip(labels, lines, strict=True)
    ]
