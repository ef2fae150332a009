"""What holds for panels whatever they show: nothing moves, and nothing is left out in silence."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import header, optimizer_line
from amptui.tui.panels.phrases import whole_words
from amptui.tui.panels.screen_state import ScreenState
from tests.tui import views
from tests.tui.special_views import seven_optimizers


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


def test_how_many_optimizers_have_no_room_is_always_told() -> None:
    for width in range(34, 160):
        line = draw_alone(optimizer_line.draw, seven_optimizers(), width).lines()[0]
        assert len(re.findall("critic", line)) == 6 or re.search(r" \+\d", line), width


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (30, "loss scale 65,536 after a skip"),
        (29, "loss scale 65,536 after a…"),
        (24, "loss scale 65,536 after…"),
        (23, "loss scale…"),  # never "65,536…", as if more digits followed
        (10, "loss…"),
        (3, "loss scale 65,536 after a skip"),  # a canvas cuts the only word
    ],
)
def test_whole_words_are_kept_and_no_number_looks_cut(width: int, words: str) -> None:
    assert whole_words("loss scale 65,536 after a skip", width) == words


def test_wide_characters_count_twice() -> None:
    assert whole_words("漢字 漢字 漢字", 11) == "漢字 漢字…"
    assert whole_words("漢字 漢字 漢字", 9) == "漢字…"
