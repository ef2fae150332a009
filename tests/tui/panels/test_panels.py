"""What holds for every panel whatever it shows: nothing moves, nothing is torn, all is in proportion."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.labels import precision_glyph
from amptui.diagnosis.run_facts import run_facts
from amptui.telemetry.view import NumericsView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import (
    ab_comparison,
    header,
    loss,
    memory_table,
    numerics_panel,
    precision_table,
    step_time_breakdown,
    throughput,
    verdicts,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style
from tests.telemetry import record_samples
from tests.telemetry.memory_samples import memory as breakdown_of
from tests.telemetry.whole_runs import session_of
from tests.tui import numerics_views, rank_views, views
from tests.tui.panels.drawing import SCREEN, draw_alone, line_text
from tests.tui.special_views import GAN, in_turns, over, with_memory

# -------------------------------------------------------------------------------- nothing moves


def test_from_step_to_step_nothing_moves_in_the_header() -> None:
    view = views.compared()
    early = replace(view, step=9, epoch=1, epoch_step=9)
    before, after = (draw_alone(header.draw, one, 160).lines()[0] for one in (early, view))
    for word in ("epoch", "step", "ETA", "running", "▲"):
        assert before.index(word) == after.index(word)


@pytest.mark.parametrize("width", [30, 60, 118])
def test_from_round_to_round_nothing_moves_in_a_comparison(width: int) -> None:
    places = set()
    for rounds in (2, 12, 23):
        lines = draw_alone(precision_table.draw, in_turns(rounds), width, 22).lines()
        marks = [
            (y, line.index(word))
            for y, line in enumerate(lines)
            for word in ("of at most", "●")
            if word in line
        ]
        assert len(marks) == 2
        places.add(tuple(marks))
    assert len(places) == 1


@pytest.mark.parametrize("draw", [header.draw, throughput.draw_line])
@pytest.mark.parametrize("width", [80, 120, 160])
def test_whichever_block_of_a_comparison_runs_the_line_is_the_same(
    width: int, draw: Callable[[Canvas, SessionView, ScreenState], None]
) -> None:
    views_in_turns = [replace(in_turns(), precision=precision) for precision in ("fp32", "fp16")]
    one, other = (draw_alone(draw, view, width) for view in views_in_turns)
    assert one.lines() == other.lines()
    assert (one.styles == other.styles).all()


def test_limits_are_sticky_from_frame_to_frame() -> None:
    panel, view = loss.LossPanel(), views.fp32_only()
    labels = [line[:8] for line in draw_alone(panel.draw, view, 60, 12).lines()]
    quieter = replace(view, loss=views.series([value * 0.9 for value in views.losses(1204)]))
    assert [line[:8] for line in draw_alone(panel.draw, quieter, 60, 12).lines()] == labels


def test_one_more_step_changes_few_cells_of_the_float16_panel() -> None:
    view = numerics_views.healthy()
    later = replace(view, numerics=replace(view.numerics, headroom=3.4, measured_step=1205, grad_norm=1.04))
    before, after = (draw_alone(numerics_panel.NumericsPanel().draw, one, 76, 20) for one in (view, later))
    assert sum(span.stop - span.start for span in after.changes_since(before)) <= 12


# ----------------------------------------------------------------------------- nothing is torn


@pytest.mark.parametrize("width", range(40, 200, 7))
def test_the_header_never_touches_the_edges(width: int) -> None:
    for build in (*views.ALL.values(), rank_views.unsampled):
        line = draw_alone(header.draw, build(), width).lines()[0]
        assert (line[0], line[-1]) == (" ", " ")


@pytest.mark.parametrize(("total_steps", "is_full"), [(217, True), (None, False), (20_000, False)])
def test_the_bar_of_a_run_that_ends_within_an_epoch_is_full_at_its_end_and_then_gone(
    total_steps: int | None, is_full: bool
) -> None:
    view, words = views.finished(), {True: "217, 2,000 an epoch", False: "10 of 2,000 steps"}
    assert view.run is not None
    run = replace(view.run, total_steps=total_steps, steps_per_epoch=2000, total_epochs=10)
    over = replace(view, run=run, step=217, epoch=1, epoch_step=217)
    canvas = draw_alone(header.draw, replace(over, state="running", outcome=None), 160)
    assert (canvas.lines()[0].count("━") == 10) == is_full
    assert "━" not in draw_alone(header.draw, over, 160).lines()[0]
    assert words[is_full] in dict(run_facts(run).pairs).values()


def test_a_run_that_ended_in_the_middle_of_a_comparison_compares_no_more() -> None:
    assert ab_comparison.running(in_turns()) is not None
    assert ab_comparison.running(replace(in_turns(), state="failed")) is None
    assert ab_comparison.running(over()) is None


# -------------------------------------------------------------------------- everything in proportion


@given(st.lists(st.floats(0, 1e3), max_size=5), st.integers(0, 150), st.floats(1.0, 4.0))
def test_the_parts_of_a_step_are_as_long_together_as_their_sum(
    parts: list[float], width: int, longer: float
) -> None:
    whole = sum(parts) * longer
    cells = step_time_breakdown.segments(parts, whole, width)
    assert len(cells) == len(parts)
    assert min(cells, default=0) >= 0
    if whole > 0:
        assert abs(sum(cells) - sum(parts) / whole * width) <= 0.5 + 1e-6
        for part, count in zip(parts, cells, strict=True):
            assert abs(count - part / whole * width) <= 1 + 1e-6
    assert step_time_breakdown.segments([0.0, 0.0], 0.0, 40) == [0, 0]


@pytest.mark.parametrize(
    ("headroom", "text", "style"),
    [
        (3.59, "3.6 doublings", Style.GOOD),
        (1.0, "1.0 doublings", Style.GOOD),
        (0.99, "1.0 doublings", Style.WARNING),
        (-0.01, "0.0 doublings", Style.ERROR),
        (-math.inf, "none: NaN or Inf", Style.ERROR),
    ],
)
def test_headroom_is_a_warning_before_the_next_doubling_overflows(
    headroom: float, text: str, style: int
) -> None:
    words = verdicts.headroom_words(NumericsView(headroom=headroom))
    assert "".join(word.text for word in words) == text
    assert words[0].style == style | BOLD


@given(st.floats(allow_nan=False))
def test_the_gauge_of_headroom_is_empty_without_any_and_never_shrinks_with_more(headroom: float) -> None:
    fraction = verdicts.headroom_gauge(NumericsView(headroom=headroom), 16).fraction
    assert fraction is not None
    assert (fraction == 0) == (headroom <= 0) or 0 < headroom < 1e-300
    assert fraction <= (verdicts.headroom_gauge(NumericsView(headroom=headroom + 1), 16).fraction or 0)


# ---------------------------------------------------------------------------------- the memory


SIZES = st.none() | st.integers(0, 2**45)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2**45), SIZES, SIZES), min_size=1, max_size=4),
    width=st.integers(36, 120),
    height=st.integers(9, 40),
)
def test_whatever_was_measured_of_memory_can_be_drawn(
    sizes: list[tuple[int, int | None, int | None]], width: int, height: int
) -> None:
    breakdowns = [
        replace(
            breakdown_of(precision, peak=peak),
            kinds=breakdown_of(precision, activations=activations, copies=copies).kinds[5 * (whole % 2) :],
        )
        for precision, (whole, activations, copies), peak in zip(
            ("fp32", "tf32", "fp16", "bf16"), sizes, (None, 0, 2**20, 2**45), strict=False
        )
    ]
    canvas = draw_alone(memory_table.draw, with_memory(*breakdowns), width, height)
    for y, breakdown in enumerate(breakdowns, 1):
        assert precision_glyph(breakdown.precision) in canvas.lines()[y]


# ------------------------------------------------------------------------------ other optimizers


def test_a_stale_loss_is_not_shown_as_the_newest() -> None:
    stale = record_samples.steps(31, 32, loss=None, loss_form="scaled")
    view = session_of([GAN[0], *record_samples.steps(1, 30, loss=0.5), *stale]).view()
    assert "0.5" not in line_text(loss.headline(view, SCREEN)[:1])
