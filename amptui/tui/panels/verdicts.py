"""The numerics in words: headroom, verdicts with their signs, and the worst parameters."""

import math
from collections.abc import Callable

from amptui import units
from amptui.diagnosis.amp_finding import Grade
from amptui.diagnosis.answer_words import SIGNS
from amptui.diagnosis.float16_verdicts import at_scale
from amptui.diagnosis.loss_scale import outlook, scaler_rule, scaler_sentence, scaler_state
from amptui.findings import Float16Window, ParameterWindow
from amptui.telemetry.scaling import ScalerVerdict
from amptui.telemetry.view import NumericsView
from amptui.tui.panels.phrases import GAP, Block, Gauge, Line, Phrase, Word, end_of, flowed, wrapped_phrases
from amptui.tui.style import BOLD, GRADE_STYLES, NO_VERDICT, VERDICT_SIGNS, Style

DOUBLINGS = 16
"""The range of the gauge: the doublings between 1 and the largest float16."""

_LABEL_WIDTH = 9
"""Room for ``gradients``."""

_STEP_AT_STAKE = 1.0
"""With less headroom than one doubling the scaler's next growth overflows."""

_MAX_LINES = 4
"""Lines of one sentence."""

_SHARE_WIDTH = 9
"""A column's head is ``subnormal`` at most, a share has seven cells."""

_ALL_COLUMNS = 50
"""With fewer cells the subnormal column is left out, so that names have room."""


def state_words(verdict: ScalerVerdict) -> Word | None:
    """``✔ no overflow``; None while no loss scaler is in use."""
    if verdict.state == "unused":
        return None
    sign, style = VERDICT_SIGNS[verdict.severity]
    if verdict.severity == "info" and verdict.state != "healthy":
        sign, style = NO_VERDICT
    return Word(f"{sign} {scaler_state(verdict)}", style if style == Style.TEXT else style | BOLD)


def headroom_style(headroom: float | None) -> int:
    """Green with room for the next doubling, a warning without it, an error if float16 overflows."""
    if headroom is None:
        return Style.DIM
    if not headroom >= 0:
        return Style.ERROR | BOLD
    return Style.WARNING | BOLD if headroom < _STEP_AT_STAKE else Style.GOOD | BOLD


def headroom_words(numerics: NumericsView) -> tuple[Word, ...]:
    """``3.2 doublings``, or that NaN and Inf leave none."""
    headroom, style = numerics.headroom, headroom_style(numerics.headroom)
    if headroom is not None and not math.isfinite(headroom):
        return (Word("none", style), Word(": NaN or Inf"))
    unit = Word(" doublings" if headroom is not None else "", Style.DIM)
    return Word(units.doublings(headroom), style), unit


def headroom_gauge(headroom: float | None, width: int) -> Gauge:
    """The fraction of ``DOUBLINGS`` that is left; empty if float16 overflows."""
    fraction = None if headroom is None else max(0.0, headroom / DOUBLINGS)
    return Gauge(width, fraction, headroom_style(headroom), "full")


def at_which_scale(numerics: NumericsView) -> Word:
    """``at scale 65,536``, or ``if in float16 at 65,536``."""
    if numerics.headroom_scale is None:
        return Word("")
    return Word(at_scale(numerics.headroom_scale, hypothetical=numerics.hypothetical), Style.DIM)


def min_words(numerics: NumericsView) -> tuple[Word, ...]:
    """The least headroom of the last measured steps; empty if there are none."""
    least = numerics.min_headroom
    if least is None:
        return ()
    if not math.isfinite(least):
        return (Word("NaN/Inf"), Word(" in the last 256", Style.DIM))
    value = Word(units.doublings(least), headroom_style(least))
    return Word("least ", Style.DIM), value, Word(" of the last 256", Style.DIM)


def headroom(numerics: NumericsView, width: int) -> Block:
    """Value, gauge and least, then the next change of the scale."""
    words = headroom_words(numerics), (headroom_gauge(numerics.headroom, DOUBLINGS),), min_words(numerics)
    flow = flowed([Phrase(each) for each in words if each], width - _LABEL_WIDTH - GAP)
    return Block(_labelled("headroom", flow + _prose(outlook(numerics.outlook), Style.TEXT, width)), 0)


def scaler(verdict: ScalerVerdict, width: int) -> Block:
    """State and sentence, then the rule behind them."""
    state = state_words(verdict)
    if state is None:
        told = _prose("not used", Style.DIM, width)
    else:
        told = _prose(f"  {scaler_sentence(verdict)}", Style.TEXT, width, state)
    lines = told + _prose(scaler_rule(verdict), Style.DIM, width)
    return Block(_labelled("scaler", lines), 1, min(2, len(told)))


def gradients(numerics: NumericsView, width: int) -> Block:
    """Norm, maximum and number of non-finite elements, of the newest measured step."""
    bad = numerics.nonfinite_gradients
    phrases = [
        Phrase((Word("norm ", Style.DIM), _gradient(numerics.grad_norm))),
        Phrase((Word("max ", Style.DIM), _gradient(numerics.grad_max))),
        Phrase(
            (Word("NaN/Inf ", Style.DIM), Word(units.count(bad), Style.ERROR | BOLD if bad else Style.TEXT))
        ),
        Phrase((Word(f"step {units.count(numerics.measured_step)}", Style.DIM),)),
    ]
    lines = flowed(phrases, width - _LABEL_WIDTH - GAP)
    return Block(_labelled("gradients", lines), 2, len(lines))


def finding(label: str, grade: Grade, text: str, width: int, *, rank: int, step: int) -> Block:
    """What a measurement found, with the sign that the answer on AMP gives it, and the step it is about."""
    sign, style = SIGNS[grade], GRADE_STYLES[grade]
    text_style = style if grade in ("warning", "error") else int(Style.TEXT)
    lines = _prose(f" {text} (step {units.count(step)})", text_style, width, Word(sign, style))
    return Block(_labelled(label, lines), rank)


def worst(window: Float16Window | None, width: int) -> list[Block]:
    """The parameters that lose most in float16: their names and the shares of nonzero elements lost."""
    if window is None or not window.worst:
        return []
    columns = _COLUMNS if width >= _ALL_COLUMNS else (_COLUMNS[0], _COLUMNS[-1])
    head = "".join(f"{name:>{_SHARE_WIDTH}} " for name, _, _ in columns)
    title = Word(f"{head} worst parameters", Style.DIM)
    lines = [[Phrase((title,)), Phrase((Word("(of nonzero)", Style.DIM),), 1)]]
    for parameter in window.worst:
        nonzero = parameter.elements - parameter.zeros
        shares = [
            Word(f"{units.share(count, nonzero):>{_SHARE_WIDTH}} ", style if count else Style.DIM)
            for count, style in ((count_of(parameter), style) for _, count_of, style in columns)
        ]
        name = end_of(parameter.name, width - len(head) - 1)
        lines.append([Phrase((*shares, Word(f" {name}")))])
    return [Block(lines, 6, 2)]


_COLUMNS: tuple[tuple[str, Callable[[ParameterWindow], int], int], ...] = (
    ("flushed", lambda parameter: parameter.flushed, Style.WARNING),
    ("subnormal", lambda parameter: parameter.subnormal, Style.TEXT),
    ("overflow", lambda parameter: parameter.overflowing, Style.ERROR | BOLD),
)
"""What float16 does to a parameter's elements, how many, and the style."""


def _gradient(value: float | None) -> Word:
    bad = value is not None and not math.isfinite(value)
    return Word(units.loss(value), Style.ERROR | BOLD if bad else Style.TEXT)


def _prose(text: str, style: int, width: int, *head: Word) -> list[Line]:
    """``text`` wrapped beside a label, behind ``head``; a cell is kept free for the sign that it was cut."""
    return wrapped_phrases(text, style, width - _LABEL_WIDTH - GAP - 1, lines=_MAX_LINES, head=head)


def _labelled(label: str, lines: list[Line]) -> list[Line]:
    """``lines`` behind a dim label, those after the first indented as much."""
    labels = [label, *[""] * (len(lines) - 1)]
    return [
        [Phrase((Word(f"{name:<{_LABEL_WIDTH}}", Style.DIM),), -1), *line]
        for name, line in zip(labels, lines, strict=True)
    ]
