"""What the doctor says of terminals: real ones of several sizes, and the environment that describes them."""

import sys

import pytest

from amptui.reports.doctor.terminal_checks import (
    check_characters,
    check_colours,
    check_kind,
    check_size,
    terminal_checks,
)
from amptui.tui.layout import SMALLEST
from tests import terminal as pseudo

LOOK = """
from amptui.reports.doctor.terminal_checks import terminal_checks
for check in terminal_checks():
    print(check.name, check.severity)
"""


def test_a_small_dumb_terminal_is_told_so() -> None:
    environment = {
        "TERM": "dumb",
        "LC_ALL": "C",
        "NO_COLOR": "1",
    }
    with pseudo.Terminal([sys.executable, "-c", LOOK], size=(30, 11), env=environment) as terminal:
        terminal.wait_for(r"colours \w+")
    named = ("terminal", "size", "characters", "colours")
    assert terminal.text.split() == [word for name in named for word in (name, "warning")]


def test_without_a_terminal_plain_lines_are_as_it_should_be() -> None:
    checks = {check.name: check for check in terminal_checks()}
    assert checks["terminal"].severity == "info"
    assert "plain lines" in checks["terminal"].text
    assert "size" not in checks


@pytest.mark.parametrize(
    ("size", "severity", "word"),
    [
        ((0, 0), "warning", "does not report its size"),
        ((SMALLEST[0] - 1, 50), "warning", "too small"),
        (SMALLEST, "warning", "collapse"),
        ((79, 24), "warning", "collapse"),
        ((80, 24), "info", "80 × 24"),
    ],
)
def test_a_window_is_judged_by_what_the_screen_can_show_in_it(
    size: tuple[int, int], severity: str, word: str
) -> None:
    check = check_size(*size)
    assert check.severity == severity
    assert word in check.text


def test_a_terminal_without_a_name_gets_plain_lines() -> None:
    check = check_kind("", is_terminal=True)
    assert check.severity == "warning"
    assert check.text == "TERM is not set: amptui writes plain lines instead of the screen"


def test_a_common_terminal_has_no_problem() -> None:
    term = "xterm-256color"
    assert check_kind(term, is_terminal=True).severity == check_colours(term, "").severity == "info"


@pytest.mark.parametrize(("term", "no_color"), [("vt100", ""), ("xterm-m", ""), ("xterm", "1")])
def test_a_terminal_without_colours_is_told_so(term: str, no_color: str) -> None:
    assert check_colours(term, no_color).severity == "warning"


def test_what_is_drawn_in_ascii_is_told_with_its_reason() -> None:
    assert check_characters("xterm", utf8=True).severity == "info"
    assert "locale" in check_characters("xterm", utf8=False).text
    assert "Linux console" in check_characters("linux", utf8=False).text
