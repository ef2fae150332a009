"""The float16 panel: gradients against float16's range, headroom, the loss scaler, and what was found."""

import math
from collections.abc import Sequence

from amptui.base import units
from amptui.diagnosis import activity, probe_words
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import age_words
from amptui.records.findings import ParameterWindow, is_old
from amptui.telemetry.health import judge_window
from amptui.telemetry.view import NumericsView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.answer_panel import LABEL_WIDTH, finding_blocks, labelled_block
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
    whole_words,
    write,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.float16_histogram import LEGEND_LINES, MIN_WIDTH, draw_exponents
from amptui.tui.style import BOLD, Style

NOTHING_YET = "no gradients measured yet"

_MIN_BARS, _MAX_BARS = 3, 18
"""Lines of bars."""

_TITLE_LINES = 3
"""Of a terminal that is too narrow for bars."""

_FAIR_PART = 0.45
"""Of the lines, the histogram's where there is more to say than lines."""

_ROOMY = 20
"""With more lines than these a blank one separates the paragraphs."""

_DOUBLINGS = 16
"""The range of the gauge: the doublings between 1 and the largest float16."""

_STEP_AT_STAKE = 1.0
"""With less headroom than one doubling the scaler's next growth overflows."""

_SHARE_WIDTH = len("underflow")


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The histogram, and the text below it."""
    numerics, width, height = view.numerics, canvas.width, canvas.height
    measured = (numerics.window, numerics.headroom, numerics.measured_step, numerics.trace, numerics.xray)
    if numerics.scaler.freshness == "never measured" and all(value is None for value in measured):
        words = activity.waiting_words(view, silence=screen.lost or screen.silence)
        quiet(canvas, f"{NOTHING_YET}: {words}" if words else NOTHING_YET)
        return
    blocks = [_headroom_block(numerics, width), _gradients_block(numerics, width)]
    blocks += finding_blocks(amp_answer(view), screen, width, of_float16=True)
    if numerics.window is not None and numerics.window.worst:
        blocks.append(Block(_worst_lines(numerics.window.worst, width), 6, 2))
    # The text gets what a histogram of a fair height leaves.
    most = 1 + _MAX_BARS + LEGEND_LINES if width >= MIN_WIDTH else _TITLE_LINES
    fair = min(most, max(1 + _MIN_BARS + LEGEND_LINES, round(_FAIR_PART * height)))
    lines = fitting_lines(blocks, max(0, height - fair))
    room = height - len(lines)
    gap = int(room > _ROOMY)
    upper = min(room - gap, most)
    _draw_window(canvas.rows(0, upper), view)
    write_lines(canvas, upper + gap, lines)


def _draw_window(canvas: Canvas, view: SessionView) -> None:
    """The histogram, below a title: of which step, precision and scale it is, and how old."""
    window = view.numerics.window
    if window is None:
        quiet(canvas, f"float16 gradients: {probe_words.window_missing(view)}")
        return
    at = probe_words.at_scale(window.loss_scale, hypothetical=window.hypothetical)
    place = f"step {units.count(window.step)}"
    if view.precision != window.precision:
        place += f" in {precision_label(window.precision)}"
    title = [
        phrase("float16 gradients", rank=3 if window.hypothetical else 1),
        phrase(whole_words(at, canvas.width), Style.FP16 | BOLD),
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
    if canvas.width < MIN_WIDTH:
        quiet(canvas.rows(1), "a wider terminal shows the histogram")


# ---------------------------------------------------------------------------------------- headroom


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
    """``8.0× below overflow``, or that NaN and Inf leave none."""
    headroom, style = numerics.headroom, _headroom_style(numerics)
    if headroom is not None and not math.isfinite(headroom):
        return (Word("none", style), Word(": NaN or Inf"))
    factor, *below = units.below_overflow(headroom).split(" ", 1)
    return Word(factor, style), *(Word(f" {words}", Style.DIM) for words in below)


def _headroom_block(numerics: NumericsView, width: int) -> Block:
    """Value, gauge and least; with its own scale where the histogram beside it is at another one."""
    window, scale = numerics.window, numerics.headroom_scale
    own = None if window is None or window.loss_scale == scale else scale
    at, room = probe_words.at_scale(own, hypothetical=numerics.hypothetical), width - LABEL_WIDTH - GAP
    phrases = [Phrase(headroom_words(numerics)), *([phrase(whole_words(at, room), Style.DIM)] if at else [])]
    # Empty if float16 overflows.
    left = None if numerics.headroom is None else max(0.0, numerics.headroom / _DOUBLINGS)
    phrases.append(Phrase((Gauge(_DOUBLINGS, left, _headroom_style(numerics)),)))
    if least := probe_words.least_headroom(numerics):
        phrases.append(phrase(least, Style.DIM))
    return labelled_block("headroom", flowed(phrases, room), 0)


def _gradients_block(numerics: NumericsView, width: int) -> Block:
    """The newest measured gradients."""
    nonfinite, bad = numerics.nonfinite_gradients, Style.ERROR | BOLD
    norm, largest = (
        labelled(name, units.loss(value), style=Style.TEXT if value is None or math.isfinite(value) else bad)
        for name, value in (("norm", numerics.grad_norm), ("max", numerics.grad_max))
    )
    count = labelled("NaN/Inf", units.count(nonfinite), style=bad if nonfinite else Style.TEXT)
    step = phrase(f"step {units.count(numerics.measured_step)}", Style.DIM)
    lines = flowed([norm, largest, count, step], width - LABEL_WIDTH - GAP)
    return labelled_block("newest", lines, 2)


def _worst_lines(worst: Sequence[ParameterWindow], width: int) -> list[Line]:
    """The parameters that lose most in float16: shares of the norm below it, and of the elements above."""
    lines: list[Line] = [[phrase("underflow  overflow  worst parameters", Style.DIM)]]
    for parameter in worst:
        nonzero = parameter.elements - parameter.zeros
        overflow = parameter.overflowing / nonzero if nonzero > 0 else None
        shares = (parameter.underflowing_share, Style.WARNING), (overflow, Style.ERROR | BOLD)
        words = [
            Word(f"{units.share(share, 1):>{_SHARE_WIDTH}} ", style if share else Style.DIM)
            for share, style in shares
        ]
        name = end_of(parameter.name, width - 2 * _SHARE_WIDTH - 3)
        lines.append([Phrase((*words, Word(f" {name}")))])
    return lines
