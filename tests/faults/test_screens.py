"""Screens that are closed, stopped, killed or no screens at all, while a training goes on."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amptui.runs.socket_place import connect
from tests.faults.watched import Lives, headless_run, lost, shown_step, stop, train_arguments
from tests.living import ended_afterwards, last_step, outcome, run_pid, screens_told, wait_until
from tests.terminal import FRAMES, Terminal, amptui_command
from tests.warm import WarmSource

if TYPE_CHECKING:
    import socket

LONGEST_WATCH_SECONDS = 0.8
"""From the start of a screen to its end: some are closed before they drew a frame, most while they watch."""

GARBAGE = 100


@pytest.mark.ci
@pytest.mark.parametrize("closings", [2, 20])
def test_closed_terminals_cost_no_step(closings: int, warm: WarmSource, tmp_path: Path) -> None:
    moments, run = random.Random(5), tmp_path / "run"
    with ended_afterwards(run):
        for closing in range(closings):
            command = train_arguments(run) if closing == 0 else ["attach", str(run)]
            with Terminal(amptui_command(*command), warm=warm) as terminal:
                if closing == 0:
                    wait_until(lambda: run_pid(run), "the run did not begin")
                if closing == closings - 1:
                    terminal.wait_for(r"step\s+[\d,]+")
                closed = time.monotonic() + moments.uniform(0, LONGEST_WATCH_SECONDS)
                while (left := closed - time.monotonic()) > 0:
                    terminal.read(left)
                terminal.hang_up()
                assert terminal.wait() in (128 + signal.SIGHUP, -signal.SIGHUP)
        before = last_step(run)
        wait_until(lambda: last_step(run) > before + 20, "training did not go on")
        wait_until(lambda: "hung up" in screens_told(run), "no screen told that it hung up")
        stop(run)
    steps_lost, records_lost = lost(run)
    assert (steps_lost, records_lost) == (0, 0)
    assert outcome(run) is not None


@pytest.mark.ci
def test_a_screen_that_is_stopped_goes_on_where_the_run_is(
    lives: Lives, warm: WarmSource, tmp_path: Path
) -> None:
    with headless_run(lives, tmp_path / "run") as run:
        attach = amptui_command("attach", str(run), *FRAMES)
        with Terminal(attach, warm=warm) as stopped, Terminal(attach, size=(80, 24), warm=warm) as other:
            for terminal in (stopped, other):
                terminal.wait_for(r"step\s+[\d,]+")
            os.kill(stopped.process.pid, signal.SIGSTOP)
            before = last_step(run)
            wait_until(
                lambda: last_step(run) > before + 300, "training did not go on beside a stopped screen"
            )
            os.kill(stopped.process.pid, signal.SIGCONT)
            reached = last_step(run)
            wait_until(lambda: shown_step(stopped) >= reached, "the screen does not go on")
            os.kill(other.process.pid, signal.SIGKILL)
            stopped.press("d")
            assert stopped.wait() == 0
        left = ["attached", "attached", "detached", "lost"]
        wait_until(lambda: sorted(screens_told(run)) == left, "that both screens have left")
        before = last_step(run)
        wait_until(lambda: last_step(run) > before + 20, "training did not go on")
        stop(run)
        steps_lost, records_lost = lost(run)
    assert (steps_lost, records_lost) == (0, 0)


@pytest.mark.ci
def test_garbage_on_the_socket_costs_nobody_anything(lives: Lives, warm: WarmSource, tmp_path: Path) -> None:
    noise = random.Random(7)
    with (
        headless_run(lives, tmp_path / "run") as run,
        Terminal(amptui_command("attach", str(run), *FRAMES), warm=warm) as screen,
    ):
        screen.wait_for(r"step\s+[\d,]+")
        half_open: list[socket.socket] = []
        for number in range(GARBAGE):
            with suppress(OSError):
                connection = connect(run)
                connection.setblocking(False)
                connection.send(noise.randbytes(noise.choice([0, 1, 100, 100_000])))
                if number % 10 == 0:
                    half_open.append(connection)
                else:
                    connection.close()
        before = last_step(run)
        wait_until(lambda: last_step(run) > before + 50, "training did not go on beside garbage")
        wait_until(lambda: shown_step(screen) > before, "the screen does not go on beside garbage")
        screen.press("d")
        assert screen.wait() == 0
        for connection in half_open:
            connection.close()
        stop(run)
        steps_lost, records_lost = lost(run)
    assert (steps_lost, records_lost) == (0, 0)
