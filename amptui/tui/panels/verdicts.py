"""The numerics in words: headroom, verdicts with their signs, and the worst parameters."""

import math
from collections.abc import Callable

from amptui.base import units
from amptui.diagnosis.amp_finding import Grade
from amptui.diagnosis.answer_words import SIGNS
from amptui.diagnosis.float16_verdicts import at_scale, least_headroom
from amptui.diagnosis.loss_scale import outlook, scaler_sentence, scaler_state
from amptui.records.findings import Float16Window, ParameterWindow
from amptui.telemetry.health import judge_window
from amptui.telemetry.scaling import ScalerVerdict
from amptui.telemetry.underflow import underflowing_share
from amptui.telemetry.view import NumericsView
from amptui.tui.panels.phrases import (
    GAP,
    Block,
    Gauge,
    Line,
    Phrase,
    Word,
    end_of,
    flowed,
    labelled,
    phrase,
    wrapped_phrases,
)
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

_ALL_COLUMNS = 60
"""With fewer cells two columns are left out, so that names have room."""


def state_words(verdict: ScalerVerdict) -> Word | None:
    """``✔ no overflow``; None while no loss scaler is in use."""
    if verdict.state == "unused":
        return None
    sign, style = VERDICT_SIGNS[verdict.severity]
    if verdict.is_past or (verdict.severity == "info" and verdict.state != "healthy"):
        sign, style = NO_VERDICT
    return Word(f"{sign} {scaler_state(verdict)}", style if style == Style.TEXT else style | BOLD)


def headroom_style(headroom: float | None, *, underflows: bool = False) -> int:
    """Green with room for the next doubling, a warning without it, an error if float16 overflows.

    Not green where gradients underflow: much room is no good sign then.
    """
    if headroom is None:
        return Style.DIM
    if not headroom >= 0:
        return Style.ERROR | BOLD
    if headroom < _STEP_AT_STAKE:
        return Style.WARNING | BOLD
    return (Style.TEXT if underflows else Style.GOOD) | BOLD


def _style_of(headroom: float | None, numerics: NumericsView) -> int:
    window = numerics.window
    underflows = window is not None and judge_window(window).state in ("underflows", "all zero")
    return headroom_style(headroom, underflows=underflows)


def headroom_words(numerics: NumericsView) -> tuple[Word, ...]:
    """``3.2 doublings``, or that NaN and Inf leave none."""
    headroom, style = numerics.headroom, _style_of(numerics.headroom, numerics)
    if headroom is not None and not math.isfinite(headroom):
        return (Word("none", style), Word(": NaN or Inf"))
    unit = Word(" doublings" if headroom is not None else "", Style.DIM)
    return Word(units.doublings(headroom), style), unit


def headroom_gauge(numerics: NumericsView, width: int) -> Gauge:
    """The fraction of ``DOUBLINGS`` that is left; empty if float16 overflows."""
    headroom = numerics.headroom
    fraction = None if headroom is None else max(0.0, headroom / DOUBLINGS)
    return Gauge(width, fraction, _style_of(headroom, numerics), "full")


def at_which_scale(numerics: NumericsView) -> Word:
    """``at scale 65,536``, or ``if in float16 at 65,536``."""
    if numerics.headroom_scale is None:
        return Word("")
    return Word(at_scale(numerics.headroom_scale, hypothetical=numerics.hypothetical), Style.DIM)


def least_words(numerics: NumericsView) -> tuple[Word, ...]:
    """:func:`least_headroom`, dim."""
    return (Word(least_headroom(numerics), Style.DIM),) if numerics.min_headroom is not None else ()


def headroom(numerics: NumericsView, width: int, *, beside: Float16Window | None = None) -> Block:
    """Value, gauge and least, then the next change of the scale.

    With its own scale where the histogram ``beside`` it is at another one.
    """
    at = (at_which_scale(numerics),) if beside and beside.loss_scale != numerics.headroom_scale else ()
    gauge, least = headroom_gauge(numerics, DOUBLINGS), least_words(numerics)
    words = headroom_words(numerics), at if at and at[0].text else (), (gauge,), least
    flow = flowed([Phrase(part) for part in words if part], width - _LABEL_WIDTH - GAP)
    return Block(_beside("headroom", flow + _prose(outlook(numerics.outlook), Style.TEXT, width)), 0)


def scaler(verdict: ScalerVerdict, width: int) -> Block:
    """State and sentence."""
    state = state_words(verdict)
    if state is None:
        lines = _prose("not used", Style.DIM, width)
    else:
        lines = _prose(f"  {scaler_sentence(verdict)}", Style.TEXT, width, state)
    return Block(_beside("scaler", lines), 1, min(2, len(lines)))


def gradients(numerics: NumericsView, width: int) -> Block:
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


def finding(label: str, grade: Grade, text: str, width: int, *, rank: int, about: str) -> Block:
    """What a measurement found, with the sign that the answer on AMP gives it, and the step it is about."""
    sign, style = SIGNS[grade], GRADE_STYLES[grade]
    text_style = style if grade in ("warning", "error") else int(Style.TEXT)
    lines = _prose(f" {text} ({about})", text_style, width, Word(sign, style))
    return Block(_beside(label, lines), rank)


def worst(window: Float16Window | None, width: int) -> list[Block]:
    """The parameters that lose most in float16: the share of the norm, and of the nonzero elements."""
    if window is None or not window.worst:
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
