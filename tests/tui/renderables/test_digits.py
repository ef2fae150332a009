import pytest

from amptui.tui.canvas import Canvas
from amptui.tui.renderables.digits import LINES, draw_digits
from amptui.tui.style import Style


def shown(number: str, *, ascii_only: bool = False) -> list[str]:
    canvas = Canvas(24, LINES, ascii_only=ascii_only)
    draw_digits(canvas, 0, 0, number, Style.GOOD)
    return [line.rstrip() for line in canvas.lines()]


def test_a_number_is_three_lines_high() -> None:
    assert shown("-1.6") == [
        "     ▄    ▄▄▄",
        "▄▄▄ ▀█    █▄▄",
        "    ▄█▄ ▄ █▄█",
    ]


def test_no_two_digits_look_alike() -> None:
    assert len({tuple(shown(digit)) for digit in "0123456789.-"}) == 12


@pytest.mark.parametrize("number", ["3.6", "-1.3", "16.0"])
def test_it_ends_where_it_says(number: str) -> None:
    canvas = Canvas(40, LINES)
    end = draw_digits(canvas, 2, 0, number, Style.GOOD)
    assert max(len(line.rstrip()) for line in canvas.lines()) == end


def test_without_utf8_it_is_the_plain_number() -> None:
    assert shown("-1.3", ascii_only=True) == ["", "", "-1.3"]


def test_it_is_clipped_like_all_drawing() -> None:
    canvas = Canvas(5, 2)
    draw_digits(canvas, -2, -1, "888", Style.GOOD)
    assert canvas.lines() == ["█ █▄█", "█ █▄█"]
