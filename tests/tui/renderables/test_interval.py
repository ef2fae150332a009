import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Canvas
from amptui.tui.renderables.interval import LINES, draw_interval
from amptui.tui.style import Style


def drawn(ratio: float, low: float | None, high: float | None, width: int = 31) -> list[str]:
    canvas = Canvas(width, LINES)
    draw_interval(canvas, ratio, low, high, style=Style.FP16)
    return canvas.lines()


def test_a_faster_one_stands_right_of_1() -> None:
    marks, labels = drawn(1.71, 1.5, 1.9)
    assert marks == "───────────────│────────├━━●━┤─"
    assert marks.index("│") == labels.index("1×") == 15
    assert labels.split() == ["0.50×", "1×", "2.00×"]


def test_a_slower_one_is_its_mirror_image() -> None:
    faster, slower = drawn(1.71, 1.5, 1.9)[0], drawn(1 / 1.71, 1 / 1.9, 1 / 1.5)[0]
    assert slower == faster[::-1].translate(str.maketrans("├┤", "┤├"))


def test_an_interval_around_1_crosses_it() -> None:
    assert "┼" in drawn(1.02, 0.97, 1.06)[0]


def test_without_an_interval_there_is_only_the_dot() -> None:
    assert set(drawn(1.71, None, None)[0]) == set("─│●")


def test_whiskers_too_long_for_the_axis_end_in_arrows() -> None:
    marks = drawn(1.71, 0.01, 90.0)[0]
    assert (marks[0], marks[-1]) == ("←", "→")
    assert "●" in marks


@pytest.mark.parametrize("width", [0, 1, 2, 3, 9, 14])
def test_little_room_does_no_harm(width: int) -> None:
    assert all(len(line) == width for line in drawn(1.71, 1.6, 1.8, width))


@given(
    st.floats(1e-3, 1e3),
    st.floats(1.0, 10.0),
    st.floats(1.0, 10.0),
    st.integers(3, 120),
)
def test_the_dot_is_on_the_side_of_the_ratio_and_within_its_whiskers(
    ratio: float, below: float, above: float, width: int
) -> None:
    marks = drawn(ratio, ratio / below, ratio * above, width)[0].rstrip()
    middle, dot = len(marks) // 2, marks.index("●")
    assert (dot - middle) * math.log(ratio) >= 0
    ends = [i for i, mark in enumerate(marks) if mark in "├┤←→"]
    assert all(min([dot, *ends]) <= i <= max([dot, *ends]) for i, mark in enumerate(marks) if mark == "━")


@given(st.floats(1.0, 50.0), st.floats(1.0, 10.0))
def test_the_axis_does_not_follow_the_interval(ratio: float, reach: float) -> None:
    wide, narrow = drawn(ratio, ratio / reach, ratio * reach), drawn(ratio, ratio, ratio)
    assert wide[1] == narrow[1]
    assert wide[0].index("●") == narrow[0].index("●")
