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


def line_of(draw: Callable[[Canvas, SessionView, ScreenState], None], view: SessionView, width: int) -> str:
    canvas = Canvas(width, 1)
    draw(canvas, view, ScreenState(now=views.NOW))
    return canvas.lines()[0]


def test_from_step_to_step_nothing_moves_in_the_header() -> None:
    view = views.compared()
    early = replace(view, step=9, epoch=1, epoch_step=9)
    before, after = (line_of(header.draw, one, 160) for one in (early, view))
    for word in ("epoch", "step", "ETA", "running", "▲"):
        assert before.index(word) == after.index(word)


def test_how_many_optimizers_have_no_room_is_always_told() -> None:
    for width in range(34, 160):
        line = line_of(optimizer_line.draw, seven_optimizers(), width)
        assert len(re.findall("critic", line)) == 6 or re.search(r" \+\d", line), width


SKIP, WIDE = "loss scale 65,536 after a skip", "漢字 漢字 漢字"


@pytest.mark.parametrize(
    ("text", "width", "words"),
    [
        (SKIP, 30, SKIP),
        (SKIP, 29, "loss scale 65,536 after a…"),
        (SKIP, 24, "loss scale 65,536 after…"),
        (SKIP, 23, "loss scale…"),  # never "65,536…", as if more digits followed
        (SKIP, 10, "loss…"),
        (SKIP, 3, SKIP),  # a canvas cuts the only word
        (WIDE, 11, "漢字 漢字…"),
        (WIDE, 9, "漢字…"),
    ],
)
def test_whole_words_are_kept_and_no_number_looks_cut(text: str, width: int, words: str) -> None:
    assert whole_words(text, width) == words
