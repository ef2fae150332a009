"""The keys that look inside mixed precision, over a real session: X-ray, trace, float16, and the floor."""

import time
from dataclasses import replace

import pytest

from amptui.control import Control
from amptui.findings import ModuleRange
from amptui.records import LossScaleChanged, Note, PauseChanged, Record, RunFinished
from amptui.tui import screen as screen_module
from amptui.tui.app import UNANSWERED
from tests.tui.overlays.opened import xray
from tests.tui.test_probing import NO_XRAY, traced
from tests.tui.watching import Screen, awaited, started, step, steps, watching

INF = float("inf")
FIRST = ModuleRange(name="features.3", kind="Conv2d", way="forward", dtype="float16", largest=INF)
REASON = "the loss scale fell to 9.8e-04 after 26 skipped steps in a row"


def paused(reason: str = "") -> PauseChanged:
    return PauseChanged(time=time.time(), step=5, paused=True, reason=reason)


def resumed() -> PauseChanged:
    return PauseChanged(time=time.time(), step=5, paused=False)


def done() -> RunFinished:
    return RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done")


def taken(**changes: object) -> Record:
    return xray(time=time.time(), **changes)


async def at_the_floor(screen: Screen) -> None:
    """The trainer pauses by itself, as at a collapsed loss scale."""
    screen.control.request_pause(True)
    scale = LossScaleChanged(time=time.time(), step=5, previous=2.0**-9, current=2.0**-10, reason="backoff")
    await screen.feed(scale, paused(REASON))


# ------------------------------------------------------------------------------------- X-ray


@awaited
async def test_x_asks_for_an_x_ray_that_opens_by_itself_when_it_is_there() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x")
        assert "X-ray with the next step …" in screen.footer
        assert "help" in screen.footer
        assert screen.control.take_probe("x-ray")
        await screen.feed(step(6))
        assert "╭ loss" in screen.text
        await screen.feed(taken())
        assert "X-ray of step 1,204" in screen.text
        await screen.press("escape")
        await screen.feed(step(7))
        assert "╭ loss" in screen.text
        assert "with the next step" not in screen.footer


@awaited
async def test_an_x_ray_does_not_open_over_what_is_read() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x", "e")
        await screen.feed(taken())
        assert "events (" in screen.text
        await screen.press("escape")
        assert "X-ray of step 1,204" in screen.text
        await screen.press("escape")
        assert "╭ loss" in screen.text


@awaited
async def test_an_x_ray_that_nobody_here_asked_for_does_not_open() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.feed(taken())
        assert "╭ loss" in screen.text


@awaited
async def test_x_in_an_x_ray_takes_a_fresh_one_in_its_place() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x")
        await screen.feed(taken())
        assert screen.control.take_probe("x-ray")
        await screen.press("s", "x")
        assert screen.control.take_probe("x-ray")
        assert "X-ray with the next step …" in screen.footer
        await screen.feed(taken(step=1300))
        assert "X-ray of step 1,300" in screen.text
        assert "model order" in screen.text
        await screen.press("escape")
        await screen.feed(step(6))
        assert "╭ loss" in screen.text


@awaited
async def test_an_x_ray_that_failed_says_why() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x")
        await screen.feed(Note(time=time.time(), severity="warning", text=NO_XRAY.text))
        assert NO_XRAY.text in screen.footer
        assert "with the next step" not in screen.footer


@pytest.mark.parametrize(("key", "name"), [("x", "X-ray"), ("n", "trace")])
@awaited
async def test_a_look_inside_needs_a_step_to_come(key: str, name: str) -> None:
    async with watching() as screen:
        await screen.press(key)
        assert "not yet: training has not begun" in screen.footer
        await screen.feed(started(), *steps(5), paused())
        await screen.press(key)
        assert f"resume first: the {name} needs a step's batch" in screen.footer
        await screen.feed(resumed())
        await screen.end(done())
        await screen.press(key)
        assert "the run has ended" in screen.footer
        assert not screen.control.take_probe("x-ray")
        assert not screen.control.take_probe("trace")


@pytest.mark.parametrize("last", [paused(), done()], ids=["paused", "ended"])
@awaited
async def test_where_no_fresh_one_can_be_taken_x_shows_the_last_one(last: Record) -> None:
    async with watching(started(), *steps(5), taken()) as screen:
        await (screen.end if isinstance(last, RunFinished) else screen.feed)(last)
        await screen.press("x")
        assert "X-ray of step 1,204" in screen.text
        assert ("the run has ended" if isinstance(last, RunFinished) else "resume first") in screen.footer


# ----------------------------------------------------------------------------- trace, float16


@awaited
async def test_n_asks_for_a_trace_and_tells_its_verdict() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("n")
        assert screen.control.take_probe("trace")
        assert "trace with the next step …" in screen.footer
        await screen.feed(replace(traced(time.time()), first=FIRST))
        assert "e tells more" in screen.footer
        assert "Inf in the output of features.3" in screen.footer


@awaited
async def test_a_finding_stands_longer_than_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen_module, "MESSAGE_SECONDS", 0.0)
    async with watching(started(), *steps(5)) as screen:
        await screen.press("n")
        await screen.feed(traced(time.time()))
        await screen.feed(step(6))
        assert "nothing overflowed" in screen.footer


@awaited
async def test_f_gives_float16_the_screen_and_takes_it_back() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("f")
        assert screen.state.focus == "numerics"
        assert screen.text.count("╭") == 1
        await screen.press("f")
        assert screen.state.focus is None
        await screen.press("tab", "f")
        assert screen.state.focus == "numerics"


# --------------------------------------------------------------------------------- the floor


class RememberingControl(Control):
    """What was asked for when the pause ended: the trainer may take its next step at once."""

    precision_on_resuming: str | None = None

    def request_pause(self, paused: bool) -> None:
        if not paused:
            self.precision_on_resuming = self.requested_precision
        super().request_pause(paused)


@pytest.mark.parametrize(("key", "precision"), [("b", "bf16"), ("f", "fp32")])
@awaited
async def test_at_the_floor_a_precision_is_asked_for_and_training_goes_on(key: str, precision: str) -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        control = RememberingControl()
        screen.control = screen.app._control = control
        await at_the_floor(screen)
        assert "training is paused" in screen.text
        assert "The loss scale fell to 9.8e-04" in screen.text
        await screen.press(key)
        assert control.precision_on_resuming == precision
        assert not control.paused
        assert "training is paused" not in screen.text


@awaited
async def test_at_the_floor_one_may_go_on_as_before() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await at_the_floor(screen)
        await screen.press("g")
        assert screen.control.requested_precision is None
        assert not screen.control.paused


@awaited
async def test_the_choice_opens_once_a_pause() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await at_the_floor(screen)
        await screen.press("escape")
        await screen.feed(Note(time=time.time(), severity="info", text="still there"))
        assert "training is paused" not in screen.text
        assert screen.control.paused
        assert UNANSWERED in screen.footer
        await screen.press("space")
        assert screen.control.paused
        assert "training is paused" in screen.text
        await screen.press("escape")
        await screen.press("space", "g")
        assert not screen.control.paused
        assert UNANSWERED not in screen.footer
        await screen.feed(resumed(), step(6, "fp16"))
        await at_the_floor(screen)
        assert "training is paused" in screen.text


@awaited
async def test_the_choice_waits_for_what_is_read_and_closes_with_the_pause() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await screen.press("e")
        await at_the_floor(screen)
        assert "events (" in screen.text
        await screen.press("escape")
        assert "training is paused" in screen.text
        await screen.feed(resumed())
        assert "training is paused" not in screen.text


@awaited
async def test_quitting_at_the_floor_asks_and_comes_back_to_the_choice() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await at_the_floor(screen)
        await screen.press("q")
        assert "Stop it and leave?" in screen.text
        assert screen.control.stop_reason is None
        await screen.press("escape")
        assert "training is paused" in screen.text
        await screen.press("q", "enter")
        assert screen.control.stop_reason == "stopped by the user"
        assert "training is paused" not in screen.text


@awaited
async def test_a_pause_that_a_person_asked_for_offers_nothing() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.feed(paused())
        assert "paused" in screen.header
        assert "training is paused" not in screen.text
