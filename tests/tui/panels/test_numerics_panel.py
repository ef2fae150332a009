from dataclasses import replace

import pytest

from amptui.diagnosis.float16_verdicts import at_scale, window_cost
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import numerics_panel, verdicts
from amptui.tui.style import BOLD, Style
from tests.tui import numerics_views, views
from tests.tui.panels.drawing import SCREEN, draw_alone, line_text, style_of

SIZES = [(36, 8), (76, 20), (76, 46), (106, 14), (116, 36), (196, 56)]

sizes = pytest.mark.parametrize(("width", "height"), SIZES)


def drawn(view: SessionView, width: int = 76, height: int = 20) -> Canvas:
    return draw_alone(numerics_panel.NumericsPanel().draw, view, width, height)


def text_of(canvas: Canvas) -> str:
    return "\n".join(line.rstrip() for line in canvas.lines())


def headline(view: SessionView) -> list[str]:
    return [line_text([phrase]) for phrase in numerics_panel.headline(view, SCREEN)]


def with_window(view: SessionView, **changes: object) -> SessionView:
    window = replace(view.numerics.window, **changes)  # type: ignore[type-var]  # its fields
    return replace(view, numerics=replace(view.numerics, window=window))


def test_the_classic_terminal_has_it_all() -> None:
    lines = drawn(numerics_views.healthy()).lines()
    assert lines[0].split("  ")[:3] == [
        "float16 gradients",
        at_scale(65536.0, hypothetical=False),
        "step 1,184",
    ]
    text = "\n".join(lines)
    for line in (
        "  zeros      flushed      subnormal             normal      overflow NaN/Inf",
        "headroom   3.6 doublings  ▰▰▰▰▱▱▱▱▱▱▱▱▱▱▱▱  least 2.4 of the last 256",
        "           the scale doubles in 760 steps, headroom then 1.4",
        "scaler     ✔ no overflow  the scaler does not notice underflow",
        "           no skip in the last 100 steps: 1,204 without one",
        "gradients  norm 1.02  max 0.0831  NaN/Inf 0  step 1,204",
        "underflow   flushed subnormal  overflow  worst parameters",
        "     4.0%      3.1%     20.8%        0%  features.13.conv.weight",
        "trace      ✔ nothing overflowed in 43 modules; nearest: the output of",
        "X-ray      ✔ gradients agree in 1 of 1 layers; worst 0.999 in features.12;",
    ):
        assert line in text


@sizes
@pytest.mark.parametrize("name", sorted(numerics_views.ALL))
def test_the_headroom_is_seen_at_every_size(name: str, width: int, height: int) -> None:
    view = numerics_views.ALL[name]()
    text = text_of(drawn(view, width, height))
    assert "headroom" in text
    assert "float16" in text or "at scale" in text


@sizes
def test_what_did_not_run_in_float16_is_named_hypothetical(width: int, height: int) -> None:
    hypothetical = text_of(drawn(numerics_views.in_fp32(), width, height))
    assert at_scale(65536.0, hypothetical=True) in hypothetical
    assert "at scale" not in hypothetical
    assert "if in float16" not in text_of(drawn(numerics_views.healthy(), width, height))


@sizes
def test_flushed_and_overflowing_gradients_are_seen_by_ink_and_number(width: int, height: int) -> None:
    canvas = drawn(numerics_views.in_bf16(), width, height)
    assert style_of(canvas, "1.1%") == Style.WARNING | BOLD
    assert style_of(canvas, "0.88%") == Style.ERROR | BOLD


def test_the_headline_has_the_state_and_the_headroom() -> None:
    assert headline(numerics_views.healthy()) == ["✔ no overflow", "headroom 3.6 doublings"]
    assert headline(numerics_views.collapsing()) == ["✖ collapsing", "headroom none: NaN or Inf"]
    assert headline(numerics_views.in_bf16()) == ["headroom in float16 -1.3 doublings"]
    assert headline(views.starting()) == []


def test_before_the_first_measurement_it_says_what_is_waited_for() -> None:
    assert "no gradients measured yet: importing torch" in text_of(drawn(views.starting()))
    assert text_of(drawn(views.compared())).strip() == numerics_panel.NOTHING_YET


@sizes
def test_what_is_known_is_shown_before_the_first_window(width: int, height: int) -> None:
    text = text_of(drawn(numerics_views.calibrating(), width, height))
    assert "not measured yet" in " ".join(text.split())
    assert "0.2" in text or "▄" in text


@pytest.mark.parametrize("seconds", [0.0031, None])
def test_the_cost_stands_last_in_the_title(seconds: float | None) -> None:
    view = with_window(numerics_views.healthy(), steps_since=None, seconds=seconds)
    title = drawn(view, 100, 24).lines()[0].rstrip()
    assert view.numerics.window is not None
    assert title.endswith(f"at scale 65,536  step 1,184  {window_cost(view.numerics.window)}".rstrip())


def test_a_narrow_title_keeps_the_scale() -> None:
    title = drawn(numerics_views.in_bf16(), 36, 8).lines()[0]
    assert title.strip() == f"{at_scale(65536.0, hypothetical=True)}  step 1,184"


def test_a_headroom_at_another_scale_than_the_histogram_says_so() -> None:
    view = numerics_views.healthy()
    assert view.numerics.headroom_scale == 65536.0
    same, another = drawn(view).lines(), drawn(with_window(view, loss_scale=1024.0)).lines()
    assert "at scale 1,024" in another[0]
    assert "65,536" in next(line for line in another if line.startswith("headroom"))
    assert "at scale" not in next(line for line in same if line.startswith("headroom"))
    wide = drawn(with_window(view, loss_scale=1024.0), 116, 36).lines()
    assert "at scale 1,024" in wide[0]
    assert f"headroom {at_scale(65536.0, hypothetical=False)}" in wide[0]


def test_room_to_overflow_is_no_good_sign_where_gradients_underflow() -> None:
    view = numerics_views.healthy()
    good = verdicts.headroom_words(view.numerics)[0]
    lost = with_window(view, subnormal_squares=1.0, squares=2.0).numerics
    bad = verdicts.headroom_words(lost)[0]
    assert (good.style, bad.style) == (Style.GOOD | BOLD, Style.TEXT | BOLD)


def test_a_wide_panel_has_the_headroom_large() -> None:
    lines = drawn(numerics_views.healthy(), 116, 36).lines()
    start = lines[0].index("headroom at scale 65,536")
    assert [line[start : start + 9] for line in lines[1:4]] == ["▄▄▄   ▄▄▄", "▄▄█   █▄▄", "▄▄█ ▄ █▄█"]
    assert lines[3][start:].split()[-3:] == ["doublings", "to", "overflow"]
    assert lines[5][start:].count("▰") == 7


def test_a_headroom_that_is_no_number_is_a_word() -> None:
    text = text_of(drawn(numerics_views.collapsing(), 116, 36))
    assert "none: NaN or Inf" in text
    assert "doublings to overflow" not in text


@pytest.mark.parametrize(("width", "height"), [(76, 46), (116, 36), (196, 56)])
def test_with_room_the_headroom_has_its_history(width: int, height: int) -> None:
    lines = drawn(numerics_views.healthy(), width, height).lines()
    title = next(y for y, line in enumerate(lines) if "headroom of each measured step" in line)
    assert any("⠀" < sign <= "⣿" for line in lines[title:] for sign in line)
    assert lines[-1].split()[0] == "1"
    without = replace(numerics_views.healthy(), numerics=numerics_views.numerics(views.starting()).numerics)
    assert "measured step" not in text_of(drawn(without, width, height))


def test_trouble_is_said_before_what_loses_most() -> None:
    text = text_of(drawn(numerics_views.collapsing(), 76, 12))
    assert "✖ collapsing" in text
    assert "worst" not in text


def test_one_more_step_changes_few_cells() -> None:
    view = numerics_views.healthy()
    later = replace(view, numerics=replace(view.numerics, headroom=3.4, measured_step=1205, grad_norm=1.04))
    before, after = drawn(view), drawn(later)
    assert sum(span.stop - span.start for span in after.changes_since(before)) <= 12
