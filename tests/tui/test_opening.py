"""The first frame: there before Textual is imported, and removed whatever happens then."""

import sys

import pytest

from tests.terminal import Terminal

BEGIN = """
import sys
from amptui.base.terminal import HeldTerminal
from amptui.tui.opening import Opening

def wait():
    sys.stdin.readline()

"""

ALONE = """
with HeldTerminal() as terminal, Opening(terminal):
    early = [name for name in ("textual", "torch", "amptui.telemetry") if name in sys.modules]
    wait()
print("early", early)
"""

FAILING = """
with HeldTerminal() as terminal, Opening(terminal):
    wait()
    raise SystemExit("textual is not there")
"""

FOLLOWED = """
with HeldTerminal() as terminal, Opening(terminal) as opening:
    import threading
    from amptui.records.control import Control
    from amptui.telemetry.session import Session
    from amptui.tui.app import WatchApp
    app = WatchApp(look=Session("x").view, control=Control(), ended=threading.Event(), start=lambda: None,
                   patience_seconds=1.0, attached=True, opening=opening)
    app.run()
print("left", app.left)
"""

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


def program(text: str, size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None) -> Terminal:
    return Terminal([sys.executable, "-c", BEGIN + text], size=size, env=env)


def assert_restored(terminal: Terminal) -> None:
    assert terminal.modes == terminal.modes_before
    assert (terminal.written.count(ENTERED), terminal.written.count(LEFT)) == (1, 1)
    assert terminal.written.rindex(b"\x1b[?25h") > terminal.written.rindex(b"\x1b[?25l")


@pytest.mark.ci
def test_the_panels_are_there_before_textual_is_imported() -> None:
    with program(ALONE, (120, 40)) as terminal:
        for title in ("loss", "comparison", "throughput", "loss scale", "memory", "events"):
            terminal.wait_for(f"╭ {title} ─")
        assert terminal.text.startswith(" amptui")
        terminal.press("\n")
        assert terminal.wait() == 0
        assert "early []" in terminal.text
        assert_restored(terminal)


@pytest.mark.ci
def test_keys_typed_meanwhile_are_not_echoed() -> None:
    with program(ALONE) as terminal:
        terminal.wait_for("╭ loss")
        terminal.press("xyz\n")
        assert terminal.wait() == 0
        assert b"xyz" not in terminal.written
        assert_restored(terminal)


@pytest.mark.ci
def test_a_failure_before_the_screen_restores_the_terminal() -> None:
    with program(FAILING) as terminal:
        terminal.wait_for("╭ loss")
        terminal.press("\n")
        assert terminal.wait() == 1
        assert "textual is not there" in terminal.text
        assert_restored(terminal)


@pytest.mark.ci
def test_a_screen_takes_it_over() -> None:
    with program(FOLLOWED) as terminal:
        terminal.wait_for("q quit")
        terminal.press("d")
        assert terminal.wait() == 0
        assert b"left detached" in terminal.written  # pyte has no second screen: it may break the line
        assert_restored(terminal)


@pytest.mark.ci
@pytest.mark.parametrize("env", [{"LC_ALL": "C"}, {"NO_COLOR": "1"}], ids=str)
def test_poor_terminals_get_what_they_can_show(env: dict[str, str]) -> None:
    with program(ALONE, env=env) as terminal:
        terminal.wait_for(r"\+ loss" if "LC_ALL" in env else "╭ loss")
        written = bytes(terminal.written)
        assert written.isascii() is ("LC_ALL" in env)
        assert (b"\x1b[90m" in written) is ("NO_COLOR" not in env)
        terminal.press("\n")
        assert terminal.wait() == 0


@pytest.mark.ci
def test_a_terminal_that_is_too_small_shows_no_panels() -> None:
    with program(ALONE, (20, 5)) as terminal:
        terminal.wait_for("amptui")
        assert "╭" not in terminal.text
        terminal.press("\n")
        assert terminal.wait() == 0
