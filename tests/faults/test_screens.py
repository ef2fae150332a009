"""Screens that fail, are stopped and killed while a training goes on, and trainings that are killed."""

import os
import random
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median_low

import pytest

from amptui.records.run import EpochFinished, RunFinished
from tests.living import (
    Lives,
    assert_restored,
    changed_program,
    ended_afterwards,
    headless_run,
    last_step,
    lost,
    outcome,
    records_of,
    screens,
    shown_step,
    steps_of,
    stop,
    train_arguments,
    wait_for_more,
    wait_until,
    witnessed_arguments,
)
from tests.recipes.witness import witnessed
from tests.terminal import Terminal, amptui_command
from tests.warm import PATIENCE_SECONDS, WarmSource


@pytest.mark.ci
def test_a_screen_that_is_stopped_goes_on_where_the_run_is(
    lives: Lives, warm: WarmSource, tmp_path: Path
) -> None:
    with headless_run(lives, tmp_path / "run") as run:
        attach = amptui_command("attach", str(run))
        with Terminal(attach, warm=warm) as stopped, Terminal(attach, size=(80, 24), warm=warm) as other:
            for terminal in (stopped, other):
                terminal.wait_for(r"step\s+[\d,]+")
            os.kill(stopped.process.pid, signal.SIGSTOP)
            wait_for_more(run, steps=300)
            os.kill(stopped.process.pid, signal.SIGCONT)
            reached = last_step(run)
            wait_until(lambda: shown_step(stopped) >= reached, "the screen does not go on")
            os.kill(other.process.pid, signal.SIGKILL)
            assert stopped.leave("d") == 0
        wait_until(lambda: not screens(run), "that both screens have left")
        wait_for_more(run, steps=20)
        stop(run)
        assert lost(run) == (0, 0)


BROKEN = """
from amptui.tui import frame, terminal_driver

def fail(*_, calls=[]):
    calls.append(1)
    if len(calls) > {good_calls}:
        raise ZeroDivisionError("a fault of the screen")

{what} = fail
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("what", "good_calls"),
    [("frame.Frame.draw", 0), ("frame.Frame.draw", 8), ("terminal_driver.Keyboard.take", 0)],
)
def test_a_fault_of_the_screen_or_of_its_thread_that_reads_keys_does_not_cost_the_run(
    what: str, good_calls: int, warm: WarmSource, tmp_path: Path
) -> None:
    run, program = tmp_path / "run", changed_program(BROKEN.format(what=what, good_calls=good_calls))
    # A traceback's frames hold much more where torch is loaded, and are all written out.
    source = None if good_calls else warm
    command = [sys.executable, "-c", program, *train_arguments(run)]
    # A terminal that answers nothing: else it is not the key that the thread falls over.
    with ended_afterwards(run), Terminal(command, warm=source, answers={}) as terminal:
        if "Keyboard" in what:
            terminal.wait_for(r"step\s+[1-9]")
            terminal.press("q")
        terminal.wait_for(r"ZeroDivisionError: a fault of the screen\s+amptui: the screen crashed")
        assert terminal.wait(seconds=60) == 1
        assert "to watch it again: amptui attach" in terminal.text
        assert terminal.modes == terminal.modes_before
        wait_for_more(run, steps=20)
        stop(run)
    assert outcome(run) is RunFinished


DEAF_SCREEN = """
import threading
from amptui.tui.run_screen import RunScreen

RunScreen._follow_up = RunScreen._look_again = lambda self: None
RunScreen._redraw = lambda self: threading.Event().wait()
"""


@pytest.mark.ci
def test_a_screen_that_hears_no_key_is_left_with_ctrl_c(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", changed_program(DEAF_SCREEN), *train_arguments(run)]
    with ended_afterwards(run), Terminal(command, warm=warm) as terminal:
        terminal.wait_for("╭ loss")
        wait_until(lambda: last_step(run) > 0, "training did not begin")
        terminal.press("l")
        limit = time.monotonic() + 60
        while terminal.process.poll() is None:
            assert time.monotonic() < limit, terminal.text
            terminal.press("\x03")
            terminal.read(0.5)
        assert terminal.wait() == 130
        assert_restored(terminal)


LIFE_SECONDS = (0.05, 0.7)
"""From the start of a process to its end: some do not get to a step, most write a checkpoint or several."""

LOST_SECONDS = 1.0
"""What a kill may cost of the journal."""


def lived(folder: Path) -> list[tuple[int, int, str, float | None, float | None, int | None]]:
    return [(r.step, r.epoch, r.precision, r.loss, r.loss_scale, r.growth_tracker) for r in steps_of(folder)]


def epochs(folder: Path) -> list[tuple[int, int, float | None]]:
    return [(r.epoch, r.step, r.mean_loss) for r in records_of(folder) if isinstance(r, EpochFinished)]


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.ci), pytest.param(50, marks=pytest.mark.nightly)]
)
def test_kills_at_random_moments_cost_no_step(kills: int, lives: Lives, tmp_path: Path) -> None:
    moments, run = random.Random(20), tmp_path / "run"
    losses = list[float]()
    for _ in range(kills):
        before, began = len(witnessed(tmp_path / "run.steps")), time.time()
        options = ("--resume", "--checkpoint-every", "7", "--set", "step_ms=1")
        process = lives.start(*witnessed_arguments(run, *options))
        time.sleep(moments.uniform(*LIFE_SECONDS))
        killed = time.time()
        process.kill()
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, lives.log.read_text()
        # Of the steps that this life computed, those that the journal does not hold were lost with it.
        computed = witnessed(tmp_path / "run.steps")[before:]
        lost = computed[sum(r.time >= began for r in steps_of(run)) :]
        losses.append(max((killed - moment for moment, _ in lost), default=0.0))
    steps = max((r.step for r in steps_of(run)), default=0) + 50
    for folder, more in ((run, ["--resume", "--set", "step_ms=1"]), (tmp_path / "straight", list[str]())):
        whole = lives.start(*witnessed_arguments(folder, "--steps", str(steps), *more))
        assert whole.wait(PATIENCE_SECONDS) == 0, lives.log.read_text()
    assert lived(run) == lived(tmp_path / "straight")
    assert epochs(run) == epochs(tmp_path / "straight")
    if kills > 2:  # on a machine that has more to do any one kill may cost more
        assert median_low(losses) <= LOST_SECONDS
    assert [r.step for r in steps_of(run)] == list(range(1, steps + 1))
    assert outcome(run) is RunFinished
    times = [r.time for r in steps_of(run)]
    assert all(early <= late for early, late in pairwise(times))
