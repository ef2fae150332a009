"""The screen on real terminals that stall or disappear: it leaves, says how, and without a traceback."""

import signal
import sys
import termios
from pathlib import Path

import psutil
import pytest

from tests.terminal import Terminal
from tests.warm import WarmSource

PROGRAM = """
import signal, sys, threading, traceback
from pathlib import Path
from amptui.records.control import Control
from amptui.telemetry.session import Session
from amptui.tui import terminal_driver
from amptui.tui.run_screen import Parts, RunScreen

result, hangup = Path(sys.argv[1]), sys.argv[2]
terminal_driver._LEAVING_SECONDS = 0.5
session = Session("runs/x")

def look(front):
    assert not (result.parent / "raise").exists()
    return session.view(front)

parts = Parts(look=look, control=Control(), ended=threading.Event(), start=lambda: None,
              patience_seconds=1.0, frames_per_second=20)
app = RunScreen(parts, attached=True)
signal.signal(signal.SIGHUP, signal.SIG_IGN if hangup == "ignored" else lambda *_: app.hang_up())
try:
    app.run()
    said = f"{app.left}, {app.return_code}"
except BaseException:
    said = traceback.format_exc()
result.write_text(said)
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


MOUSE_ON, MOUSE_OFF = b"\x1b[?1006h\x1b[?1002h", b"\x1b[?1002l\x1b[?1006l"


def has_the_mouse(terminal: Terminal) -> bool:
    return terminal.written.rfind(MOUSE_ON) > terminal.written.rfind(MOUSE_OFF)


def enlarge_the_loss(terminal: Terminal) -> None:
    terminal.wait_for("╭ loss")
    assert MOUSE_ON not in terminal.written
    terminal.press("\t")
    terminal.wait_until(lambda: has_the_mouse(terminal))


@pytest.mark.ci
@pytest.mark.parametrize("keys", ["\t\t\t", "\x1b", "?"])
def test_only_an_enlarged_chart_has_the_mouse(keys: str, warm: WarmSource, tmp_path: Path) -> None:
    with screen(warm, tmp_path) as terminal:
        enlarge_the_loss(terminal)
        terminal.press(keys)
        terminal.wait_until(lambda: not has_the_mouse(terminal))
        terminal.press("qqd")
        assert terminal.wait() == 0
        assert not has_the_mouse(terminal)
        assert b"\x1b[?1000h" not in terminal.written
        assert b"\x1b[?1003h" not in terminal.written


@pytest.mark.ci
def test_every_way_out_gives_the_mouse_back(warm: WarmSource, tmp_path: Path) -> None:
    for leave in ("d", "\x03", "raise", "hang up"):
        (tmp_path / "raise").unlink(missing_ok=True)
        with screen(warm, tmp_path) as terminal:
            enlarge_the_loss(terminal)
            terminal.answer(b"\x1b[<0;40;10M\x1b[<32;41;10M\x1b[<0;41;10m")
            if leave == "hang up":
                terminal.process.send_signal(signal.SIGHUP)
            elif leave == "raise":
                (tmp_path / "raise").touch()
            else:
                terminal.press(leave)
            assert terminal.wait() == 0
            assert not has_the_mouse(terminal), leave
            assert terminal.modes == terminal.modes_before


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
        enlarge_the_loss(terminal)
        terminal.process.send_signal(number)
        terminal.wait_until(lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
        drawn, had_mouse = terminal.written.count(CORNER), terminal.written.count(MOUSE_ON)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_until(lambda: terminal.written.count(CORNER) > drawn)
        terminal.wait_until(lambda: terminal.written.count(MOUSE_ON) > had_mouse)
        assert has_the_mouse(terminal)
        terminal.press("d")
        assert terminal.wait() == 0
        assert (tmp_path / "result").read_text() == LEFT_ON_PURPOSE
        assert terminal.modes == terminal.modes_before


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
