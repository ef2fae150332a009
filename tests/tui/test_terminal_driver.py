"""The screen on real terminals that stall, disappear or are light: its first frame, and how it leaves."""

import os
import pty
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from amptui.tui import terminal_driver
from amptui.tui.style import Background, assumed_background, background_in
from amptui.tui.terminal_driver import Outlet
from tests.terminal import BACKGROUND_QUESTION, Terminal
from tests.warm import WarmSource

PROGRAM = """
import signal, sys, threading
from pathlib import Path
from amptui.records.control import Control
from amptui.telemetry.session import Session
from amptui.tui import terminal_driver
from amptui.tui.run_screen import Parts, RunScreen

result, hangup = Path(sys.argv[1]), sys.argv[2]
terminal_driver._LEAVING_SECONDS = 0.5
session = Session("runs/x")

parts = Parts(look=session.view, control=Control(), ended=threading.Event(), start=lambda: None,
              patience_seconds=1.0)
app = RunScreen(parts, attached=True)
signal.signal(signal.SIGHUP, signal.SIG_IGN if hangup == "ignored" else lambda *_: app.hang_up())
app.run()
result.write_text(f"{app.left}, {app.return_code}")
"""

LEFT_ON_PURPOSE = "detached, 0"
HUNG_UP = "hung up, 0"

CORNER = "╭".encode()
"""Of six panels; frames that change nothing there do not write it again."""


def screen(warm: WarmSource, tmp_path: Path, hangup: str = "heard") -> Terminal:
    return Terminal([sys.executable, "-c", PROGRAM, str(tmp_path / "result"), hangup], warm=warm)


def wait_for_result(terminal: Terminal, tmp_path: Path) -> str:
    """Until the program has ended, without reading the terminal."""
    assert terminal.process.wait(timeout=60) == 0
    return (tmp_path / "result").read_text()


def stop_output(terminal: Terminal) -> None:
    """As Ctrl+S does where the terminal's own flow control is on."""
    termios.tcflow(terminal.slave, termios.TCOOFF)


@pytest.mark.ci
def test_a_screen_on_a_stalled_terminal_can_be_left(warm: WarmSource, tmp_path: Path) -> None:
    with screen(warm, tmp_path) as terminal:
        terminal.wait_for("╭ loss")
        stop_output(terminal)
        terminal.press("l?d")
        terminal.press("d")
        assert wait_for_result(terminal, tmp_path) == LEFT_ON_PURPOSE
        assert terminal.modes == terminal.modes_before


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP])
def test_a_stopped_screen_is_redrawn_when_it_continues(
    number: signal.Signals, warm: WarmSource, tmp_path: Path
) -> None:
    with screen(warm, tmp_path) as terminal:
        terminal.wait_for("╭ loss")
        terminal.process.send_signal(number)
        terminal.wait_until(lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
        drawn = terminal.written.count(CORNER)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_until(lambda: terminal.written.count(CORNER) > drawn)
        terminal.press("d")
        assert terminal.wait() == 0
        assert (tmp_path / "result").read_text() == LEFT_ON_PURPOSE
        assert terminal.modes == terminal.modes_before
        assert not re.search(rb"\x1b\[\?100[0236]h", terminal.written), "the mouse selects text"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("hangup", "by_signal", "stopped"),
    [("heard", True, True), ("heard", False, False), ("ignored", False, True)],
)
def test_closing_the_terminal_ends_it(
    hangup: str, warm: WarmSource, tmp_path: Path, *, by_signal: bool, stopped: bool
) -> None:
    with screen(warm, tmp_path, hangup) as terminal:
        terminal.wait_for("╭ loss")
        if stopped:
            stop_output(terminal)
        if by_signal:
            terminal.process.send_signal(signal.SIGHUP)
        else:
            terminal.hang_up()
        assert wait_for_result(terminal, tmp_path) == HUNG_UP
        assert not by_signal or terminal.modes == terminal.modes_before


# ------------------------------------------------------------------------ what writes to a terminal
ENOUGH_SECONDS = 60.0
MUCH = "frame " * 50_000
"""Many times what a terminal's own buffer takes."""


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A terminal's two ends: the one at which somebody may read, and the program's."""
    reader, terminal = pty.openpty()
    tty.setraw(terminal)
    yield reader, terminal
    for descriptor in (reader, terminal):
        with suppress(OSError):
            os.close(descriptor)


def read(reader: int, size: int) -> bytes:
    """So many bytes, as they come."""
    data, limit = b"", time.monotonic() + ENOUGH_SECONDS
    while len(data) < size:
        assert time.monotonic() < limit, f"only {len(data)} of {size} bytes came"
        if select.select([reader], [], [], 0.1)[0]:
            data += os.read(reader, min(65536, size - len(data)))
    return data


@pytest.mark.parametrize(
    ("texts", "encoding"),
    [
        ([f"{number} äöü 漢\n" for number in range(500)], "utf-8"),
        (["漢x"], "ascii"),
        ([MUCH, "end"], "utf-8"),
    ],
    ids=["many", "not in the encoding", "more than it takes at once"],
)
@pytest.mark.parametrize("blocking", [True, False])
def test_texts_arrive_complete_and_in_order_also_while_the_outlet_closes(
    texts: list[str], encoding: str, *, blocking: bool, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_driver, "_LEAVING_SECONDS", ENOUGH_SECONDS)
    reader, terminal = ends
    os.set_blocking(terminal, blocking)  # another program may have left it so
    outlet = Outlet(terminal, encoding)
    for text in texts:
        outlet.write(text)
    closing = threading.Thread(target=outlet.close)
    closing.start()
    whole = "".join(texts).encode(encoding, "replace")
    assert read(reader, len(whole)) == whole
    closing.join(ENOUGH_SECONDS)
    assert (closing.is_alive(), outlet.broken) == (False, False)


# --------------------------------------------------- the first frame, and the terminal's background
FOLLOWED = """
from amptui.tui.opening import Opening
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


def assert_restored(terminal: Terminal) -> None:
    assert terminal.modes == terminal.modes_before
    assert (terminal.written.count(ENTERED), terminal.written.count(LEFT)) == (1, 1)
    assert terminal.written.rindex(b"\x1b[?25h") > terminal.written.rindex(b"\x1b[?25l")


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
watch_run(run, attached=False, quiet=True, phase=phase)
"""


@pytest.mark.ci
@pytest.mark.parametrize("size", [(60, 18), (120, 40)], ids=str)
def test_the_first_frame_says_what_starts_and_a_failure_after_it_restores_the_terminal(
    size: tuple[int, int],
) -> None:
    with Terminal([sys.executable, "-c", STARTING], size=size) as terminal:
        terminal.wait_for("waiting for the first step: importing torch")
        assert re.match(r" mnist-deep .*\bstarting\b", terminal.text)
        terminal.press("xyz\n")
        assert terminal.wait() == 1
        assert "early []" in terminal.text
        assert b"xyz" not in terminal.written, "keys typed meanwhile are not echoed"
        assert_restored(terminal)


# -------------------------------------------------------------------------------- the background


def answering(answers: dict[bytes, bytes], env: dict[str, str] | None = None) -> Terminal:
    plain = {"COLORFGBG": "", "COLORTERM": "", "AMPTUI_BACKGROUND": ""}
    return Terminal([sys.executable, "-c", FOLLOWED], env={**plain, **(env or {})}, answers=answers)


def leave(terminal: Terminal) -> None:
    """Press d; the only key that the screen got, and no byte of an answer on the terminal."""
    terminal.press("d")
    assert terminal.wait() == 0
    assert "keys ['d'] left detached" in " ".join(terminal.text.split())
    assert not re.search(r"rgb|ffff|62;22|]11", terminal.text)
    assert_restored(terminal)


@pytest.mark.ci
def test_a_light_background_is_noticed_after_the_first_frame() -> None:
    with answering({BACKGROUND_QUESTION: WHITE_ANSWER}) as terminal:
        terminal.wait_until(lambda: LIGHT_GREY in terminal.written)
        terminal.wait_for("╭ loss")
        assert terminal.written.index(DARK_GREY) < terminal.written.index(LIGHT_GREY)
        leave(terminal)


@pytest.mark.ci
@pytest.mark.parametrize("answers", [{}, {b"\x1b[c": DA1}], ids=["nothing", "no colour"])
def test_a_terminal_that_names_no_colour_is_left_as_it_is(answers: dict[bytes, bytes]) -> None:
    with answering(answers) as terminal:
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
    with answering({BACKGROUND_QUESTION: WHITE_ANSWER}, env) as terminal:
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
