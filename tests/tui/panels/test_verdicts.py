import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.amp_finding import Grade
from amptui.diagnosis.float16_verdicts import least_headroom
from amptui.diagnosis.loss_scale import scaler_rule, scaler_sentence
from amptui.records.findings import ParameterWindow
from amptui.records.run import Severity
from amptui.telemetry.scaling import ScalerState, ScalerVerdict
from amptui.telemetry.view import NumericsView
from amptui.tui.panels import verdicts
from amptui.tui.panels.phrases import Block, Line, Word, fitting_lines
from amptui.tui.style import BOLD, Style
from tests.tui import numerics_views
from tests.tui.panels.drawing import line_text

INF = math.inf


def text_of(lines: list[Line]) -> list[str]:
    return [line_text(line).rstrip() for line in lines]


def words_of(block: Block) -> str:
    return " ".join(" ".join(text_of(block.lines)).split())


@pytest.mark.parametrize(
    ("state", "severity", "word"),
    [
        ("healthy", "info", Word("✔ no overflow", Style.GOOD | BOLD)),
        ("calibrating", "info", Word("· calibrating", Style.TEXT)),
        ("backing off", "info", Word("· backing off", Style.TEXT)),
        ("backing off", "warning", Word("⚠ backing off", Style.WARNING | BOLD)),
        ("forward overflow", "warning", Word("⚠ forward overflow", Style.WARNING | BOLD)),
        ("collapsing", "error", Word("✖ collapsing", Style.ERROR | BOLD)),
        ("unused", "info", None),
    ],
)
def test_the_scaler_s_state_has_a_sign_of_its_own(
    state: ScalerState, severity: Severity, word: Word | None
) -> None:
    assert verdicts.state_words(ScalerVerdict(state=state, severity=severity)) == word


@pytest.mark.parametrize(
    ("headroom", "text", "style"),
    [
        (3.59, "3.6 doublings", Style.GOOD),
        (1.0, "1.0 doublings", Style.GOOD),
        (0.99, "1.0 doublings", Style.WARNING),
        (-0.01, "0.0 doublings", Style.ERROR),
        (-1.3, "-1.3 doublings", Style.ERROR),
        (-INF, "none: NaN or Inf", Style.ERROR),
    ],
)
def test_headroom_is_a_warning_before_the_next_doubling_overflows(
    headroom: float, text: str, style: int
) -> None:
    words = verdicts.headroom_words(NumericsView(headroom=headroom))
    assert "".join(word.text for word in words) == text
    assert words[0].style == style | BOLD


def test_headroom_that_was_not_measured_is_no_number() -> None:
    words = verdicts.headroom_words(NumericsView())
    assert [word.text for word in words] == ["n/a", ""]
    assert verdicts.headroom_gauge(NumericsView(), 16).fraction is None


@given(st.floats(allow_nan=False))
def test_the_gauge_is_empty_without_headroom_and_never_shrinks_with_more(headroom: float) -> None:
    fraction = verdicts.headroom_gauge(NumericsView(headroom=headroom), 16).fraction
    assert fraction is not None
    assert (fraction == 0) == (headroom <= 0) or 0 < headroom < 1e-300
    assert fraction <= (verdicts.headroom_gauge(NumericsView(headroom=headroom + 1), 16).fraction or 0)


@pytest.mark.parametrize(("least", "style"), [(2.41, Style.GOOD | BOLD), (-INF, Style.TEXT)])
def test_of_the_least_headroom_only_the_number_is_not_dim(least: float, style: int) -> None:
    numerics = NumericsView(min_headroom=least)
    words = verdicts.min_words(numerics)
    assert "".join(word.text for word in words) == "".join(least_headroom(numerics))
    assert [word.style for word in words if word.style != Style.DIM] == [style]
    assert verdicts.min_words(NumericsView()) == ()


def test_the_scale_is_real_or_hypothetical_and_says_so() -> None:
    real = NumericsView(headroom_scale=65536.0)
    shown = [verdicts.at_which_scale(numerics).text for numerics in (real, replace(real, hypothetical=True))]
    assert shown == ["at scale 65,536", "if in float16 at 65,536"]


def test_the_scaler_s_rule_stands_dim_under_its_sentence() -> None:
    verdict = numerics_views.collapsing().numerics.scaler
    block = verdicts.scaler(verdict, 100)
    assert text_of(block.lines) == [
        f"scaler     ✖ collapsing  {scaler_sentence(verdict)}",
        f"           {scaler_rule(verdict)}",
    ]
    first, rule = (line[-1].words for line in block.lines)
    assert [word.style for word in first if isinstance(word, Word)] == [Style.ERROR | BOLD, Style.TEXT]
    assert rule[0].style == Style.DIM


def test_a_scaler_that_is_not_used_says_only_that() -> None:
    assert words_of(verdicts.scaler(ScalerVerdict(), 60)) == "scaler not used"


def test_gradients_that_are_not_finite_have_the_ink_of_an_error() -> None:
    block = verdicts.gradients(numerics_views.collapsing().numerics, 76)
    assert text_of(block.lines) == ["gradients  norm inf  max nan  NaN/Inf 1,204  step 1,204"]
    styles = [phrase.words[-1].style for phrase in block.lines[0][1:]]
    assert styles == [Style.ERROR | BOLD] * 3 + [Style.DIM]


def test_gradients_take_the_lines_that_they_need() -> None:
    block = verdicts.gradients(numerics_views.healthy().numerics, 40)
    assert text_of(block.lines) == ["gradients  norm 1.02  max 0.0831", "           NaN/Inf 0  step 1,204"]


@pytest.mark.parametrize(
    ("grade", "sign", "styles"),
    [
        ("good", "✔", (Style.GOOD | BOLD, Style.TEXT)),
        ("neutral", "·", (Style.TEXT, Style.TEXT)),
        ("warning", "⚠", (Style.WARNING | BOLD, Style.WARNING | BOLD)),
        ("error", "✖", (Style.ERROR | BOLD, Style.ERROR | BOLD)),
    ],
)
def test_a_finding_has_the_sign_of_its_grade(grade: Grade, sign: str, styles: tuple[int, int]) -> None:
    block = verdicts.finding("X-ray", grade, "so it is", 60, rank=1, about="step 1,000")
    assert text_of(block.lines) == [f"X-ray      {sign} so it is (step 1,000)"]
    assert tuple(word.style for word in block.lines[0][-1].words) == styles


def test_the_worst_parameters_are_told_by_the_norm_and_by_shares_of_what_is_not_zero() -> None:
    losing = ParameterWindow(
        name="fc.weight",
        elements=200,
        zeros=100,
        flushed=50,
        subnormal=3,
        overflowing=0,
        squares=4.0,
        flushed_squares=0.04,
        subnormal_squares=0.32,
    )
    window = replace(numerics_views.float16_window(-8), worst=(losing,))
    (block,) = verdicts.worst(window, 76)
    assert text_of(block.lines) == [
        "underflow   flushed subnormal  overflow  worst parameters",
        "    30.0%     50.0%      3.0%        0%  fc.weight",
    ]
    shares = block.lines[1][0].words
    assert [word.style for word in shares] == [*[Style.WARNING] * 2, Style.TEXT, Style.DIM, Style.TEXT]
    assert block.least == 2


def test_a_long_name_keeps_its_end_and_a_narrow_table_its_losses() -> None:
    (block,) = verdicts.worst(numerics_views.healthy().numerics.window, 40)
    head, *rows = text_of(block.lines)
    assert head.split()[:2] == ["underflow", "overflow"]
    assert rows == ["     4.0%        0%  …res.13.conv.weight", "     2.0%        0%  ….batch_norm.weight"]


def test_nothing_is_told_where_nothing_is_lost() -> None:
    assert verdicts.worst(None, 76) == []
    assert verdicts.worst(numerics_views.float16_window(-8), 76) == []


def test_a_sentence_that_is_cut_says_so() -> None:
    block = verdicts.finding("trace", "good", "one two three four", 24, rank=1, about="step 7")
    assert len(block.lines) == 3
    assert text_of(fitting_lines([block], 1)) == ["trace      ✔ one two…"]
    assert text_of(fitting_lines([block], 3))[-1].endswith("(step 7)")
