from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.bottleneck import evidence, limit
from amptui.diagnosis.speed import NO_STEPS
from amptui.diagnosis.tensor_cores import flops_line
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.panels import step_time_breakdown
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.panels.throughput import ThroughputPanel
from amptui.tui.style import Style
from tests.telemetry import record_samples
from tests.tui import timing_views, views
from tests.tui.panels.drawing import draw_alone

FOCUSED = ScreenState(now=views.NOW, focus="throughput")
TITLE = "where a step's time goes"


def lines(view: SessionView, width: int = 76, height: int = 20) -> list[str]:
    return [line.rstrip() for line in draw_alone(ThroughputPanel().draw, view, width, height).lines()]


def screen(view: SessionView, width: int, height: int, focus: str | None = "throughput") -> str:
    canvas = Canvas(width, height)
    Frame().draw(canvas, view, ScreenState(now=views.NOW, focus=focus))
    return "\n".join(canvas.lines())


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_a_focused_panel_shows_bars_legend_verdicts_and_limits(width: int, height: int) -> None:
    view = timing_views.compute_bound()
    text = screen(view, width, height)
    assert f"{TITLE}  medians of 200 FP32, 173 AMP fp16 steps" in text
    for clock in ("■ host", "■ device", "▲ host", "▲ device"):
        assert f"{clock:<9}░█" in text
    assert "░ input    █ forward    ▓ backward    ▞ clip    ▒ optimizer" in text
    assert "■ FP32  ✔ compute-bound: the GPU is busy 97% of the time" in text
    limits = [limit(timing) for timing in view.timings]
    assert [at_most for at_most in limits if at_most in text] == limits
    assert ["10.0×" in limits[0], "4.8×" in limits[1]] == [True, True]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_beside_others_the_panel_stays_as_it_is(width: int, height: int) -> None:
    view = timing_views.compute_bound()
    texts = [screen(timed_view, width, height, None) for timed_view in (view, replace(view, timings=()))]
    with_times, without = ([line for line in text.splitlines() if "limit" not in line] for text in texts)
    assert with_times == without


def test_a_large_panel_says_what_is_achieved_and_what_holds_it_back() -> None:
    run = record_samples.run()
    odd = record_samples.flops("fp16", flops=10**12, unaligned_flops=10**12)
    odd = replace(odd, unaligned=(record_samples.product("head"),))
    flops = (flops_now(record_samples.flops(flops=10**12), 0.02, run), flops_now(odd, 0.0025, run))
    text = screen(replace(timing_views.compute_bound(), flops=flops), 120, 40)
    for counted in flops:
        assert flops_line(counted) in text
    assert "head (256 × 10 × 512)" in text


def test_before_a_step_was_timed_the_curve_has_all_the_room() -> None:
    assert TITLE not in "\n".join(lines(views.compared()))
    assert lines(SessionView())[9].strip() == NO_STEPS


def test_large_screens_have_the_figures_below_the_names_of_the_parts() -> None:
    rows = lines(timing_views.launch_bound(), 116, 36)
    legend = next(i for i, line in enumerate(rows) if "░ input" in line)
    assert rows[legend + 1].split()[2:] == ["0.110", "ms", "0.710", "ms", "0.920", "ms", "–", "0.210", "ms"]
    ends = [rows[legend].index(name) + len(name) for name in ("input", "forward", "backward", "optimizer")]
    assert all(rows[legend + 1][end - 2 : end] == "ms" for end in ends)


def test_a_faster_step_has_a_shorter_bar() -> None:
    rows = {line[:8]: line for line in lines(timing_views.compute_bound()) if "█" in line}
    full, half = (sum(cell in "░█▓▞▒" for cell in rows[f"{sign} device"]) for sign in "■▲")
    assert half == pytest.approx(full * 2.02 / 3.91, abs=1)


def test_a_bar_has_the_ink_of_its_precision() -> None:
    canvas = draw_alone(ThroughputPanel().draw, timing_views.compute_bound(), 76, 20)
    for sign, style in (("■", Style.FP32), ("▲", Style.FP16)):
        y = next(y for y, line in enumerate(canvas.lines()) if line.startswith(f"{sign} device"))
        assert {int(i) for i in canvas.styles[y, 9:30]} == {style}


def test_a_cpu_has_one_clock() -> None:
    view = timing_views.input_bound()
    text = "\n".join(lines(view))
    assert "device" not in text
    assert f"⚠ input-bound: {evidence(view.timings[0])}" in text


def test_too_few_steps_are_said() -> None:
    assert "■ FP32  · too few steps timed yet" in lines(timing_views.hardly_timed())


def test_where_room_is_short_the_precision_that_runs_keeps_its_verdict_whole() -> None:
    rows = lines(timing_views.every_precision())
    assert rows[-2].startswith("▲ AMP fp16  ✔ compute-bound")
    assert "at most" in rows[-1]
    assert "■ FP32" not in "\n".join(rows)


def test_bars_that_do_not_fit_leave_the_verdicts() -> None:
    rows = lines(timing_views.every_precision(), 76, 16)
    assert not any("█" in line for line in rows)
    assert any(line.startswith("▲ AMP fp16  ✔ compute-bound") for line in rows)


def test_an_ascii_terminal_tells_the_parts_by_letters() -> None:
    canvas = Canvas(80, 24, ascii_only=True)
    Frame().draw(canvas, timing_views.compute_bound(), FOCUSED)
    text = "\n".join(canvas.lines())
    assert text.isascii()
    assert "iFFFFF" in text
    assert "F forward" in text


@given(
    st.sampled_from(sorted(timing_views.ALL)),
    st.integers(0, 200),
    st.integers(0, 60),
    st.booleans(),
)
def test_no_size_is_an_error(name: str, width: int, height: int, ascii_only: bool) -> None:
    canvas = Canvas(width, height, ascii_only=ascii_only)
    Frame().draw(canvas, timing_views.ALL[name](), FOCUSED)
    assert all(len(line) <= width for line in canvas.lines())


@given(st.lists(st.floats(0, 1e3), max_size=5), st.integers(0, 150), st.floats(1.0, 4.0))
def test_segments_are_as_long_together_as_their_sum(parts: list[float], width: int, longer: float) -> None:
    whole = sum(parts) * longer
    cells = step_time_breakdown.segments(parts, whole, width)
    assert len(cells) == len(parts)
    assert min(cells, default=0) >= 0
    if whole > 0:
        assert abs(sum(cells) - sum(parts) / whole * width) <= 0.5 + 1e-6
        for part, count in zip(parts, cells, strict=True):
            assert abs(count - part / whole * width) <= 1 + 1e-6


def test_a_bar_of_nothing_is_empty() -> None:
    assert step_time_breakdown.segments([0.0, 0.0], 0.0, 40) == [0, 0]
