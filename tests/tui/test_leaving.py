"""When and how the screen leaves: asked, detached, interrupted, after a timeout, or with nothing to show."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from amptui.records.control import StopRequest
from amptui.records.run import PauseChanged, PhaseChanged, RunFailed, RunFinished
from tests.tui.watching import ENDED, Screen, awaited, started, steps, watching

FAILURE = RunFailed(time=0.0, step=0, error="no such layer; check build_model()", traceback="Traceback ...")


def over(reason: str = "done") -> RunFinished:
    return RunFinished(time=time.time(), steps=5, seconds=1.0, reason=reason)  # type: ignore[arg-type]


def saving() -> PhaseChanged:
    return PhaseChanged(time=time.time(), phase="stopping", detail="writing the checkpoint")


async def left(screen: Screen) -> str | None:
    """How it left, once it has."""
    await screen.until(lambda: screen.has_left)
    return screen.app.left


# ------------------------------------------------------------------------------ the question


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize(("key", "no"), [("q", "n"), ("ctrl+q", "enter")])
@awaited
async def test_q_asks_and_no_goes_back(key: str, no: str, *, attached: bool) -> None:
    async with watching(started(), *steps(5), attached=attached) as screen:
        await screen.press(key)
        await screen.until(lambda: "Stop it or detach?" in screen.text)
        await screen.press(no)
        assert "Stop it" not in screen.text
        assert screen.control.stop_reason is None
        assert not screen.has_left


@pytest.mark.parametrize(("attached", "yes"), [(False, "y"), (True, "y")])
@awaited
async def test_yes_stops_and_leaves_once_the_trainer_has(yes: str, *, attached: bool) -> None:
    async with watching(started(), *steps(5), attached=attached) as screen:
        await screen.press("q", yes)
        assert screen.control.stop_reason == "stopped by the user"
        await screen.until(lambda: "stopping" in screen.header)
        assert not screen.has_left
        await screen.end(over("stopped"))
        assert await left(screen) == "stopped"


@pytest.mark.parametrize(("attached", "key"), [(False, "d"), (True, "d")])
@awaited
async def test_the_question_offers_to_detach(key: str, *, attached: bool) -> None:
    async with watching(started(), *steps(5), attached=attached) as screen:
        await screen.press("q", key)
        assert await left(screen) == "detached"
        assert screen.control.stop_reason is None


@awaited
async def test_the_end_of_the_run_closes_the_question() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("q")
        await screen.end(over())
        await screen.until(lambda: "Stop it" not in screen.text)
        assert not screen.has_left


# -------------------------------------------------------------------------- leaving the run to itself


@pytest.mark.parametrize("state", ["starting", "running", "at the floor", "stopping"])
@awaited
async def test_d_leaves_at_once_and_sends_no_request(state: str) -> None:
    async with watching() as screen:
        if state != "starting":
            await screen.feed(started(), *steps(5))
        if state == "at the floor":
            await screen.feed(PauseChanged(time=time.time(), step=5, paused=True, reason="collapsed"))
            assert "training is paused" in screen.text
        if state == "stopping":
            await screen.press("q", "y")
        stop_reason = screen.control.stop_reason
        await screen.press("d")
        assert await left(screen) == "detached"
        assert screen.control.stop_reason == stop_reason


@awaited
async def test_ctrl_c_in_an_attached_screen_detaches() -> None:
    async with watching(started(), *steps(5), attached=True) as screen:
        await screen.press("ctrl+c")
        assert await left(screen) == "detached"
        assert screen.control.stop_reason is None


# ---------------------------------------------------------------------------------- stopping


@awaited
async def test_a_run_that_was_asked_to_stop_and_is_silent_is_left_after_a_while() -> None:
    silence = "no response from the run for 10 s"
    async with watching(started(), *steps(5), patience_seconds=0.2, why_silent=lambda: silence) as screen:
        began = time.monotonic()
        await screen.press("q", "y")
        assert await left(screen) == "stopped"
        assert time.monotonic() - began >= 0.2
        assert not screen.ended.is_set()


@awaited
async def test_a_run_that_is_heard_of_is_waited_for_however_long_its_step_takes() -> None:
    async with watching(started(), *steps(5), patience_seconds=0.0) as screen:
        await screen.press("q", "y")
        for _ in range(3):  # a frame each
            await screen.feed(*steps(5))
            assert not screen.has_left
        await screen.end(over("stopped"))
        assert await left(screen) == "stopped"


@awaited
async def test_a_stop_from_outside_leaves_too() -> None:
    async with watching(started(), *steps(5)) as screen:
        screen.control.ask(StopRequest("SIGTERM"))
        await screen.until(lambda: "stopping" in screen.header)
        screen.ended.set()
        assert await left(screen) == "stopped"


@awaited
async def test_a_stop_requested_on_another_screen_is_shown_and_the_screen_stays() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.feed(saving())
        assert "stopping" in screen.header
        assert "writing the checkpoint" in screen.header
        await screen.end(over("stopped"))
        assert "stopped" in screen.header
        assert "writing" not in screen.header
        assert not screen.has_left


@awaited
async def test_ctrl_c_stops_without_asking_twice_at_once_and_three_times_leaves_without_waiting() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("ctrl+c")
        assert screen.control.stop_reason == "stopped by the user"
        assert not screen.control.ends_at_once
        await screen.press("ctrl+c")
        assert screen.control.ends_at_once
        assert not screen.has_left
        await screen.press("ctrl+c")
        assert screen.has_left
        assert screen.app.left == "interrupted"


@pytest.mark.parametrize("opened", ["question_mark", "m", "e", "q"])
@awaited
async def test_ctrl_c_works_over_every_overlay(opened: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press(opened, "ctrl+c")
        assert screen.control.stop_reason == "stopped by the user"
        screen.ended.set()
        assert await left(screen) == "interrupted"


# ------------------------------------------------------------------------------- after the end


@pytest.mark.parametrize(("key", "how"), [("q", ""), ("d", ""), ("ctrl+c", "interrupted")])
@awaited
async def test_after_the_end_the_screen_stays_and_quits_without_a_question(key: str, how: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.end(over())
        assert "finished" in screen.header
        assert "p bf16" not in screen.footer
        assert "q quit" in screen.footer
        await screen.press("l")
        assert not screen.has_left
        await screen.press(key)
        assert screen.has_left
        assert screen.app.left == how


@awaited
async def test_a_run_that_ended_is_not_detached_from() -> None:
    async with watching(started(), *steps(5), attached=True) as screen:
        await screen.end(over())
        await screen.press("ctrl+c")
        assert screen.has_left
        assert screen.app.left == ""


@awaited
async def test_a_failure_before_the_first_step_closes_the_screen() -> None:
    async with watching(PhaseChanged(time=0.0, phase="model", detail="building the model")) as screen:
        await screen.end(FAILURE)
        await screen.until(lambda: screen.has_left)


@awaited
async def test_a_failure_after_steps_keeps_the_screen_open() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.end(replace(FAILURE, time=time.time(), step=6))
        assert "✖ failed at step 6: no such layer; check build_model()" in screen.text
        await screen.press("e", "escape")
        assert not screen.has_left
        await screen.press("q")
        assert screen.has_left


@pytest.mark.parametrize("size", [(80, 24), (60, 18)], ids=str)
@awaited
async def test_the_footer_of_a_failed_run_names_the_key_of_its_traceback(size: tuple[int, int]) -> None:
    async with watching(started(), *steps(5), size=size) as screen:
        await screen.end(replace(FAILURE, time=time.time(), step=6))
        assert "t traceback" in screen.footer
        assert "? help  q quit" in screen.footer
        await screen.press("t")
        assert "Traceback" in screen.text


# ------------------------------------------------------------------------- without a last word


@pytest.mark.parametrize("width", [80, 120])
@awaited
async def test_a_run_that_ended_without_its_last_record_is_shown_as_lost(width: int) -> None:
    async with watching(started(), *steps(5), size=(width, 30)) as screen:
        screen.ended.set()
        await screen.until(lambda: "lost" in screen.header)
        assert "the training process exited unexpectedly: see `amptui runs`" in screen.footer
        assert "q quit" in screen.footer
        assert "ETA" not in screen.header
        await screen.press("p")
        assert ENDED in screen.notice
        assert screen.wanted is None
        screen.app._message_until = 0.0
        await screen.until(lambda: "exited unexpectedly" in screen.footer)
        assert not screen.has_left
        await screen.press("q")
        assert screen.has_left
        assert screen.app.left == ""


@awaited
async def test_the_reason_of_its_end_is_asked_for_once_and_shown() -> None:
    calls: list[str] = []

    def why() -> str:
        calls.append("why")
        return "the run is of another version"

    async with watching(why_ended=why) as screen:
        screen.ended.set()
        await screen.until(lambda: "the run is of another version" in screen.footer)
        assert "waiting" not in screen.text
        await screen.press("e")
        assert "the run is of another version" in screen.lines[-1]
        assert calls == ["why"]


@awaited
async def test_in_a_lost_run_nothing_is_pending() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("p", "x", "s")
        assert "switching" in screen.header
        screen.ended.set()
        await screen.until(lambda: "lost" in screen.header)
        assert "switching" not in screen.header
        assert "…" not in screen.footer


@awaited
async def test_a_run_that_recorded_its_end_is_not_lost() -> None:
    async with watching(started(), *steps(5)) as screen:
        screen.session.fold([over()])
        screen.ended.set()
        await screen.until(lambda: "finished" in screen.header)
        await screen.press("l")
        assert screen.state.lost == ""


# ---------------------------------------------------------------------------------- hanging up


@awaited
async def test_a_screen_that_hangs_up_leaves_and_stops_nothing() -> None:
    async with watching(started(), *steps(5)) as screen:
        screen.app.hang_up()
        assert await left(screen) == "hung up"
        assert screen.control.stop_reason is None


@awaited
async def test_it_can_hang_up_from_another_thread_and_while_it_waits_for_a_stop() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("ctrl+c")
        thread = threading.Thread(target=screen.app.hang_up)
        thread.start()
        assert await left(screen) == "hung up"
        thread.join()


@awaited
async def test_a_screen_hung_up_before_its_start_never_opens() -> None:
    screen = Screen()
    screen.app.hang_up()
    async with screen.app.run_test() as pilot:
        screen.pilot = pilot
        assert await left(screen) == "hung up"


def test_hanging_up_an_ended_screen_is_no_error() -> None:
    screen = Screen()

    async def come_and_go() -> None:
        async with screen.app.run_test():
            pass

    asyncio.run(come_and_go())
    screen.app.hang_up()
