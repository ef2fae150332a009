from dataclasses import replace

from amptui.diagnosis.loss_scale import NEVER_USED, idle_words
from amptui.telemetry.view import SessionView
from amptui.tui.panels import scale
from amptui.tui.panels.phrases import Word
from amptui.tui.style import BOLD, Style
from tests.tui import numerics_views, views
from tests.tui.panels.drawing import SCREEN, draw_alone, style_of


def lines(view: SessionView, width: int = 34, height: int = 6) -> list[str]:
    return [line.rstrip() for line in draw_alone(scale.ScalePanel().draw, view, width, height).lines()]


def test_growth_and_counts_stand_under_the_curve() -> None:
    *curve, growth, counts = lines(views.with_skips())
    assert growth.split() == ["doubles", growth.split()[1], "in", "1,608", "steps"]
    assert "━" in growth
    assert counts == "skipped 3  applied 701"
    assert any(char > "⠀" for line in curve for char in line)


def test_a_narrow_panel_gives_up_the_bar_before_the_numbers() -> None:
    assert lines(views.with_skips(), 26)[-2] == "doubles  in 1,608 steps"


def test_the_last_move_is_told_where_the_curve_keeps_its_room() -> None:
    assert lines(views.with_skips(), 40, 7)[-1] == "backoff at step 812: 16,384 → 8,192"
    assert "backoff" not in " ".join(lines(views.with_skips(), 40, 6))


def test_skips_have_the_ink_of_a_warning() -> None:
    canvas = draw_alone(scale.ScalePanel().draw, views.with_skips(), 34, 6)
    assert style_of(canvas, "3  applied") == Style.WARNING


def test_without_fp16_a_plain_line_says_why_there_is_nothing() -> None:
    assert " ".join(line.strip() for line in lines(views.fp32_only())).strip() == NEVER_USED
    assert scale.headline(views.fp32_only(), SCREEN) == []


def test_a_kept_scale_is_dim_and_says_so() -> None:
    assert idle_words(views.back_in_fp32()) in lines(views.back_in_fp32())[-2]
    assert scale.value(views.back_in_fp32()).words == (Word("65,536", Style.DIM),)
    assert "doubles" not in " ".join(lines(views.back_in_fp32()))


def test_a_scale_below_one_is_an_error() -> None:
    view = views.with_skips()
    tiny = replace(view, scaler=replace(view.scaler, scale=0.5))
    assert scale.value(tiny).words == (Word("0.500", Style.ERROR),)


def test_trouble_comes_before_the_counts_in_a_small_panel() -> None:
    *curve, growth, counts = lines(numerics_views.collapsing(), 30)
    assert counts == "✖ collapsing  skipped 12"
    assert growth.endswith("in 2,000 steps")
    assert len(curve) == 4
    canvas = draw_alone(scale.ScalePanel().draw, numerics_views.collapsing(), 30, 6)
    assert style_of(canvas, "✖ collapsing") == Style.ERROR | BOLD


def test_a_healthy_scaler_takes_no_room_from_a_small_panel() -> None:
    small, plain = lines(numerics_views.healthy()), lines(views.compared())
    assert small == plain


def test_state_and_headroom_have_a_line_where_the_curve_keeps_its_room() -> None:
    assert lines(numerics_views.healthy(), 40, 7)[-1] == "✔ no overflow  headroom 3.6 doublings"
    assert lines(numerics_views.forward_overflow(), 46, 8)[-3:] == [
        "skipped 3  applied 701",
        "⚠ forward overflow  headroom 1.4 doublings",
        "backoff at step 812: 16,384 → 8,192",
    ]


def test_headroom_stands_beside_the_scale_if_float16_ran() -> None:
    headline = scale.headline(numerics_views.healthy(), SCREEN)
    assert [[word.text for word in phrase.words if isinstance(word, Word)] for phrase in headline] == [
        ["headroom ", "3.6", " doublings"],
        ["65,536"],
    ]
    assert scale.headline(numerics_views.in_fp32(), SCREEN) == []
    assert len(scale.headline(views.back_in_fp32(), SCREEN)) == 1
