"""What holds for every panel whatever it shows: nothing moves, nothing is torn, all is in proportion."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import (
    header,
    loss,
    precision_table,
    step_time_breakdown,
)
from amptui.tui.panels.screen_state import ScreenState
from tests.tui import views
from tests.tui.special_views import in_turns


def draw_alone(
    draw: Callable[[Canvas, SessionView, ScreenState], None], view: SessionView, width: int, height: int = 1
) -> Canvas:
    """What a panel leaves on a blank canvas."""
    canvas = Canvas(width, height)
    draw(canvas, view, ScreenState(now=views.NOW))
    return canvas


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


def test_limits_are_sticky_from_frame_to_frame() -> None:
    panel, view = loss.LossPanel(), views.fp32_only()
    labels = [line[:8] for line in draw_alone(panel.draw, view, 60, 12).lines()]
    quieter = replace(view, loss=views.series([value * 0.9 for value in views.losses(1204)]))
    assert [line[:8] for line in draw_alone(panel.draw, quieter, 60, 12).lines()] == labels


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
