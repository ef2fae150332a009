"""When the screen leaves: asked, interrupted, out of patience, or with nothing to show."""

import time
from dataclasses import replace

import pytest

from amptui.records import PhaseChanged, RunFailed, RunFinished
from tests.tui.watching import awaited, started, steps, watching

FAILURE = RunFailed(time=0.0, step=0, error="no such layer; check build_model()", traceback="Traceback ...")


@pytest.mark.parametrize("key", ["q", "ctrl+q"])
@awaited
async def test_q_asks_and_no_goes_back(key: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press(key)
        await screen.until(lambda: "Stop it and leave?" in screen.text)
        await screen.press("n")
        assert "Stop it and leave?" not in screen.text
        assert screen.control.stop_reason is None
        assert not screen.has_left


@pytest.mark.parametrize("yes", ["enter", "y"])
@awaited
async def test_yes_stops_and_leaves_once_the_trainer_has(yes: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("q", yes)
        assert screen.control.stop_reason == "stopped by the user"
        await screen.until(lambda: "stopping" in screen.header)
        assert not screen.has_left
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="stopped"))
        await screen.until(lambda: screen.has_left)
        assert not screen.app.interrupted


@awaited
async def test_a_trainer_that_does_not_stop_is_left_when_patience_ends() -> None:
    async with watching(started(), *steps(5), patience_seconds=0.2) as screen:
        began = time.monotonic()
        await screen.press("q", "y")
        await screen.until(lambda: screen.has_left)
        assert time.monotonic() - began >= 0.2
        assert not screen.ended.is_set()


@awaited
async def test_a_stop_from_outside_leaves_too() -> None:
    async with watching(started(), *steps(5)) as screen:
        screen.control.request_stop("SIGTERM")
        await screen.until(lambda: "stopping" in screen.header)
        screen.ended.set()
        await screen.until(lambda: screen.has_left)


@awaited
async def test_ctrl_c_stops_without_asking_and_twice_leaves_without_waiting() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("ctrl+c")
        assert screen.control.stop_reason == "stopped by the user"
        assert screen.app.interrupted
        assert not screen.has_left
        await screen.press("ctrl+c")
        assert screen.has_left


@pytest.mark.parametrize("opened", ["question_mark", "m", "e", "q"])
@awaited
async def test_ctrl_c_is_heard_whatever_is_open(opened: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press(opened, "ctrl+c")
        assert screen.app.interrupted
        screen.ended.set()
        await screen.until(lambda: screen.has_left)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
@awaited
async def test_a_run_that_ended_stays_to_be_looked_at_and_is_left_without_a_question(key: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        assert "finished" in screen.header
        await screen.press("l")
        assert not screen.has_left
        await screen.press(key)
        assert screen.has_left


@awaited
async def test_a_failure_before_the_first_step_leaves_by_itself() -> None:
    async with watching(PhaseChanged(time=0.0, phase="model", detail="building the model")) as screen:
        await screen.end(FAILURE)
        await screen.until(lambda: screen.has_left)


@awaited
async def test_a_failure_after_steps_stays_until_it_was_read() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.end(replace(FAILURE, time=time.time(), step=6))
        assert "✖ step 6: no such layer; check build_model()" in screen.text
        await screen.press("e", "escape")
        assert not screen.has_left
        await screen.press("q")
        assert screen.has_left
