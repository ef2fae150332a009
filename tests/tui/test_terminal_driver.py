"""The screen on real terminals that stall or disappear: it leaves, says how, and without a traceback."""

import os
import pty
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
from amptui.tui.terminal_driver import Outlet
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


# -------------------- Writing to terminals that stall, disappear, or are closed during a write
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


def test_the_descriptor_may_be_closed_and_used_for_something_else(
    ends: tuple[int, int], tmp_path: Path
) -> None:
    outlet = Outlet(ends[1], "utf-8")
    other = os.open(tmp_path / "journal", os.O_CREAT | os.O_WRONLY)
    os.dup2(other, ends[1])
    os.close(other)
    outlet.write("frame")
    assert read(ends[0], 5) == b"frame"
    outlet.close()
    assert (tmp_path / "journal").read_bytes() == b""
