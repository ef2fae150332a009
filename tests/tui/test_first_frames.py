"""The first frame, before Textual is there, and the terminal's background: late, in pieces or never."""

import re
import sys

import pytest

from amptui.tui.background import Background, assumed_background, background_in
from tests.terminal import BACKGROUND_QUESTION, Terminal

BEGIN = """
import sys
from amptui.tui.opening import Opening

"""

ALONE = """
with Opening():
    early = [name for name in ("textual", "torch", "amptui.telemetry") if name in sys.modules]
    sys.stdin.readline()
    sys.exit(f"early {early}")
"""

FOLLOWED = """
with Opening() as opening:
    import threading
    from amptui.records.control import Control
    from amptui.telemetry.session import Session
    from amptui.tui.run_screen import Parts, RunScreen
    class Listening(RunScreen):
        keys = []
        async def action_press(self, key):
            self.keys.append(key)
            await super().action_press(key)
    parts = Parts(look=Session("x").view, control=Control(), ended=threading.Event(), start=lambda: None,
                  patience_seconds=1.0, opening=opening)
    app = Listening(parts, attached=True)
    app.run()
print("keys", app.keys, "left", app.left)
"""

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
DA1 = b"\x1b[?62;22c"
WHITE_ANSWER = b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\" + DA1
LIGHT_GREY = b"\x1b[38;5;241m"
DARK_GREY = b"\x1b[38;5;245m"


def program(text: str, size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None) -> Terminal:
    return Terminal([sys.executable, "-c", BEGIN + text], size=size, env=env)


def assert_restored(terminal: Terminal) -> None:
    assert terminal.modes == terminal.modes_before
    assert (terminal.written.count(ENTERED), terminal.written.count(LEFT)) == (1, 1)
    assert terminal.written.rindex(b"\x1b[?25h") > terminal.written.rindex(b"\x1b[?25l")


@pytest.mark.ci
def test_the_panels_are_there_before_textual_is_imported_and_a_failure_there_restores_the_terminal() -> None:
    with program(ALONE, (120, 40)) as terminal:
        for title in ("loss", "comparison", "device", "throughput", "events"):
            terminal.wait_for(f"╭ {title} ─")
        assert terminal.text.startswith(" amptui")
        terminal.press("xyz\n")
        assert terminal.wait() == 1
        assert "early []" in terminal.text
        assert b"xyz" not in terminal.written, "keys typed meanwhile are not echoed"
        assert_restored(terminal)


STARTING = """
import socket, sys
from pathlib import Path
from types import SimpleNamespace
from amptui.process.viewer import watch_run
from amptui.process.followers import LocalFollower
from amptui.records.run import PhaseChanged

def watch(*_args, **_options):
    early = [name for name in ("textual", "torch") if name in sys.modules]
    sys.stdin.readline()
    sys.exit(f"early {early}")

sys.modules["amptui.tui.run_screen"] = SimpleNamespace(Parts=dict, RunScreen=watch)  # the screen never comes
ours, theirs = socket.socketpair()
phase = PhaseChanged(time=0.0, phase="importing", detail="importing torch")
run = LocalFollower(ours, Path("runs/mnist-deep-20261128-094441"))
watch_run(run, None, attached=False, quiet=True, phase=phase)
"""


@pytest.mark.ci
@pytest.mark.parametrize("size", [(60, 18), (80, 24), (120, 40)], ids=str)
def test_the_first_frame_says_what_starts(size: tuple[int, int]) -> None:
    with Terminal([sys.executable, "-c", STARTING], size=size) as terminal:
        terminal.wait_for("waiting for the first step: importing torch")
        assert re.match(r" mnist-deep .*\bstarting\b", terminal.text)
        terminal.press("\n")
        assert terminal.wait() == 1
        assert "early []" in terminal.text
        assert_restored(terminal)


# -------------------------------------------------------------------------------- the background


def screen(answers: dict[bytes, bytes], env: dict[str, str] | None = None) -> Terminal:
    plain = {"COLORFGBG": "", "COLORTERM": "", "AMPTUI_BACKGROUND": ""}
    return Terminal([sys.executable, "-c", BEGIN + FOLLOWED], env={**plain, **(env or {})}, answers=answers)


def leave(terminal: Terminal) -> None:
    """Press d; the only key that the screen got, and no byte of an answer on the terminal."""
    terminal.press("d")
    assert terminal.wait() == 0
    assert "keys ['d'] left detached" in " ".join(terminal.text.split())
    assert not re.search(r"rgb|ffff|62;22|]11", terminal.text)
    assert_restored(terminal)


@pytest.mark.ci
def test_a_light_background_is_noticed_after_the_first_frame() -> None:
    with screen({BACKGROUND_QUESTION: WHITE_ANSWER}) as terminal:
        terminal.wait_until(lambda: LIGHT_GREY in terminal.written)
        terminal.wait_for("╭ loss")
        assert terminal.written.index(DARK_GREY) < terminal.written.index(LIGHT_GREY)
        leave(terminal)


@pytest.mark.ci
def test_an_answer_in_pieces_with_pauses_is_no_key() -> None:
    with screen({}) as terminal:
        terminal.wait_until(lambda: BACKGROUND_QUESTION in terminal.written)
        for piece in (b"\x1b", b"]1", b"1;rgb:f", b"fff/ffff/ffff\x1b", b"\\\x1b", b"[?62;2", b"2c"):
            terminal.read(0.7)  # longer than an incomplete sequence is waited for
            terminal.answer(piece)
        terminal.wait_until(lambda: LIGHT_GREY in terminal.written)
        leave(terminal)


@pytest.mark.ci
@pytest.mark.parametrize("answers", [{}, {b"\x1b[c": DA1}], ids=["nothing", "no colour"])
def test_a_terminal_that_names_no_colour_is_left_as_it_is(answers: dict[bytes, bytes]) -> None:
    with screen(answers) as terminal:
        terminal.wait_for("q quit")
        leave(terminal)
        assert LIGHT_GREY not in terminal.written


@pytest.mark.ci
@pytest.mark.parametrize(
    ("env", "grey"),
    [
        ({"AMPTUI_BACKGROUND": "light"}, LIGHT_GREY),
        ({"AMPTUI_BACKGROUND": "dark", "COLORFGBG": "0;15"}, DARK_GREY),
        ({"NO_COLOR": "1"}, None),
        ({"TERM": "linux"}, None),
    ],
    ids=str,
)
def test_what_is_decided_is_not_asked(env: dict[str, str], grey: bytes | None) -> None:
    with screen({BACKGROUND_QUESTION: WHITE_ANSWER}, env) as terminal:
        terminal.wait_for("q quit")
        assert BACKGROUND_QUESTION not in terminal.written
        greys = {it for it in (LIGHT_GREY, DARK_GREY) if it in terminal.written}
        assert greys == ({grey} if grey else set())
        leave(terminal)


@pytest.mark.parametrize(
    ("environment", "background"),
    [
        ({}, "dark"),
        ({"COLORFGBG": "0;15"}, "light"),
        ({"COLORFGBG": "15;default;0"}, "dark"),
        ({"AMPTUI_BACKGROUND": "light", "COLORFGBG": "15;0"}, "light"),
        ({"AMPTUI_BACKGROUND": "puce", "COLORFGBG": "0;15"}, "light"),
    ],
    ids=str,
)
def test_the_environment_says_it(environment: dict[str, str], background: Background) -> None:
    assert assumed_background(environment) == background


@pytest.mark.parametrize(
    ("sequence", "background"),
    [
        ("\x1b]11;rgb:fdfd/f6f6/e3e3\x1b\\", "light"),
        ("\x1b]11;rgb:1e/1E/2e\x07", "dark"),
        ("\x1b]11;rgb:f/e/8\x07", "light"),
        ("\x1b]11;rgba:0000/8080/ffff/ffff\x07", "dark"),
        ("\x1b]11;rgb:ffff/ffff\x07", None),
    ],
)
def test_answers(sequence: str, background: Background | None) -> None:
    assert background_in(sequence) == background
