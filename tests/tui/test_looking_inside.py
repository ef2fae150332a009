"""The keys that look inside mixed precision: X-ray, trace, float16, and the loss scale question."""

import time
from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.float16_verdicts import at_scale, what_overflowed_first
from amptui.records.control import HistogramRequest, PauseRequest, TraceRequest, XRayRequest
from amptui.records.findings import Float16Window, ModuleRange, ModulesTraced
from amptui.records.run import LossScaleChanged, Note, PauseChanged, Record, RunFinished
from amptui.tui import screen as screen_module
from amptui.tui.app import UNANSWERED
from tests.telemetry import record_samples as samples
from tests.tui.overlays.opened import xray
from tests.tui.watching import (
    ENDED,
    WITH_NEXT_STEP,
    Screen,
    awaited,
    started,
    step,
    steps,
    watching,
)

INF = float("inf")
FIRST = ModuleRange(name="features.3", kind="Conv2d", way="forward", dtype="float16", largest=INF)
REASON = "the scale is at its floor"


def paused(reason: str = "") -> PauseChanged:
    return PauseChanged(time=time.time(), step=5, paused=True, reason=reason)


def resumed() -> PauseChanged:
    return PauseChanged(time=time.time(), step=5, paused=False)


def finished() -> RunFinished:
    return RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done")


def traced(first: ModuleRange | None = None) -> ModulesTraced:
    return ModulesTraced(
        time=time.time(),
        step=7,
        precision="fp16",
        loss_scale=65536.0,
        asked=True,
        first=first,
        nearest=(),
        modules=12,
        seconds=None,
    )


def xray_record(**changes: object) -> Record:
    return xray(time=time.time(), **changes)


async def at_the_floor(screen: Screen) -> None:
    """The trainer pauses by itself, as at a collapsed loss scale."""
    scale = LossScaleChanged(time=time.time(), step=5, previous=2.0**-9, current=2.0**-10, reason="backoff")
    await screen.feed(scale, paused(REASON))


def resumes(screen: Screen) -> bool:
    """Whether the run was asked to go on."""
    return screen.control.newest(PauseRequest) == PauseRequest(False)


# ------------------------------------------------------------------------------------- X-ray


@awaited
async def test_x_asks_for_an_x_ray_that_opens_when_it_arrives() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x")
        assert f"X-ray {WITH_NEXT_STEP}" in screen.footer
        assert "help" in screen.footer
        await screen.feed(step(6))
        assert "╭ loss" in screen.text
        await screen.feed(xray_record())
        await screen.answer(XRayRequest)
        assert "X-ray of step 1,204" in screen.text
        await screen.press("escape")
        await screen.feed(step(7))
        assert "╭ loss" in screen.text
        assert WITH_NEXT_STEP not in screen.footer


@awaited
async def test_an_x_ray_does_not_open_over_another_overlay() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x", "e")
        await screen.feed(xray_record())
        await screen.answer(XRayRequest)
        assert "events (" in screen.text
        await screen.press("escape")
        assert "X-ray of step 1,204" in screen.text
        await screen.press("escape")
        assert "╭ loss" in screen.text


@awaited
async def test_where_no_x_ray_can_be_taken_its_key_closes_no_page() -> None:
    async with watching(started(refuses={"x-ray": "this run is only observed"}), *steps(5)) as screen:
        await screen.press("e", "x")
        assert "events (" in screen.text


@awaited
async def test_an_x_ray_requested_on_another_screen_does_not_open() -> None:
    async with watching(started(), *steps(5)) as screen:
        screen.control.ask(XRayRequest())
        await screen.feed()
        assert f"X-ray {WITH_NEXT_STEP}" in screen.footer
        await screen.feed(xray_record())
        await screen.answer(XRayRequest)
        assert WITH_NEXT_STEP not in screen.footer
        assert "╭ loss" in screen.text


@awaited
async def test_x_in_an_x_ray_takes_another_in_its_place() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x")
        await screen.feed(xray_record())
        await screen.answer(XRayRequest)
        await screen.press("s", "x")
        assert f"X-ray {WITH_NEXT_STEP}" in screen.footer
        await screen.feed(xray_record(step=1300))
        await screen.answer(XRayRequest)
        assert "X-ray of step 1,300" in screen.text
        assert "model order" in screen.text
        await screen.press("escape")
        await screen.feed(step(6))
        assert "╭ loss" in screen.text


@awaited
async def test_an_x_ray_that_failed_says_why() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("x")
        await screen.answer(XRayRequest, "failed", "no memory left")
        assert "no X-ray: no memory left" in screen.notice
        assert WITH_NEXT_STEP not in screen.footer


@pytest.mark.parametrize(("key", "name"), [("x", "X-ray"), ("n", "trace")])
@awaited
async def test_x_rays_and_traces_need_a_step(key: str, name: str) -> None:
    async with watching(started(), *steps(5), paused()) as screen:
        await screen.press(key)
        assert f"resume first: the {name} needs a batch" in screen.notice
        await screen.feed(resumed())
        await screen.end(finished())
        await screen.press(key)
        assert ENDED in screen.notice
        assert screen.session.view().pending == ()


@pytest.mark.ci
@pytest.mark.parametrize("last", [paused(), finished()], ids=["paused", "ended"])
@awaited
async def test_if_none_can_be_taken_x_shows_the_last_one(last: Record) -> None:
    async with watching(started(), *steps(5), xray_record()) as screen:
        await (screen.end if isinstance(last, RunFinished) else screen.feed)(last)
        await screen.press("x")
        assert "X-ray of step 1,204" in screen.text
        assert (ENDED if isinstance(last, RunFinished) else "resume first") in screen.footer


# ----------------------------------------------------------------------------- trace, float16


@awaited
async def test_n_asks_for_a_trace_and_shows_its_verdict() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("n")
        assert f"trace {WITH_NEXT_STEP}" in screen.footer
        await screen.press("x")
        assert f"trace and X-ray {WITH_NEXT_STEP}" in screen.footer
        await screen.feed(traced(FIRST))
        await screen.answer(TraceRequest)
        assert "e: details" in screen.notice
        assert what_overflowed_first(traced(FIRST)) in screen.notice


@pytest.mark.ci
@pytest.mark.parametrize("page", ["e", "g", "t", "i", "question_mark"])
@awaited
async def test_a_page_that_is_opened_ends_the_message_before_it(page: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("n")
        await screen.feed(traced(FIRST))
        await screen.answer(TraceRequest)
        assert "e: details" in screen.notice
        await screen.press(page)
        assert "e: details" not in screen.text
        await screen.press("escape")
        assert "e: details" not in screen.text


@pytest.mark.parametrize(("page", "leads_on"), [("e", False), ("g", True)])
@awaited
async def test_a_verdict_names_e_only_where_that_leads_to_the_details(page: str, leads_on: bool) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("n")
        await screen.press(page)
        await screen.feed(traced(FIRST))
        await screen.answer(TraceRequest)
        assert what_overflowed_first(traced(FIRST))[:40] in screen.lines[-1]
        assert ("e: details" in screen.lines[-1]) == leads_on


@awaited
async def test_a_result_is_shown_longer_than_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen_module, "MESSAGE_SECONDS", 0.0)
    async with watching(started(), *steps(5)) as screen:
        await screen.press("n")
        await screen.feed(traced())
        await screen.answer(TraceRequest)
        await screen.feed(step(6))
        assert "nothing overflowed" in screen.notice


@awaited
async def test_f_enlarges_the_float16_panel_and_back() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("f")
        assert screen.state.focus == "numerics"
        assert screen.text.count("╭") == 1
        await screen.press("f")
        assert screen.state.focus is None
        await screen.press("tab", "f")
        assert screen.state.focus == "numerics"


def page_of(screen: Screen) -> tuple[str | None, str | None]:
    """The open overlay and the enlarged panel."""
    return screen.overlay, screen.state.focus


@awaited
async def test_in_fp8_f_measures_and_shows_the_operands_of_float8_which_lead_on_to_float16() -> None:
    async with watching(started(precision="fp8-emulated"), *steps(5, "fp8-emulated")) as screen:
        assert "f float8" in screen.footer
        await screen.press("f")
        assert screen.overlay == "float8"
        assert "measuring …" in screen.text
        assert screen.control.newest(HistogramRequest) is not None
        await screen.feed(step(6, "fp8-emulated"), samples.float8_window(6, channel_error=0.9))
        await screen.answer(HistogramRequest)
        assert "loses most of the input of mlp.fc: channel 17" in screen.text
        assert "measuring" not in screen.text
        await screen.press("f")
        assert page_of(screen) == (None, None)
        await screen.press("e", "f", "h")
        assert page_of(screen) == (None, "numerics")
        await screen.press("f")
        assert page_of(screen) == (None, None)


def window(number: int, **changes: Any) -> Float16Window:
    return samples.window(number, time=time.time(), **changes)


@awaited
async def test_f_measures_now_and_shows_it() -> None:
    async with watching(started(), *steps(200), window(1)) as screen:
        await screen.press("f")
        assert screen.control.newest(HistogramRequest) is not None
        assert "measuring …" in screen.lines[3]
        assert "step 1 " in screen.lines[3]  # what is drawn below it
        assert f"histogram {WITH_NEXT_STEP}" in screen.footer
        await screen.feed(step(201), window(201, loss_scale=1024.0))
        await screen.answer(HistogramRequest)
        title = screen.lines[3]
        assert at_scale(1024.0, hypothetical=True) in title
        assert "step 201" in title
        assert "measuring" not in title
        assert "old" not in title


@awaited
async def test_f_asks_once_and_leaving_the_panel_asks_nothing() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("f", "f", "f")
        pending_requests = screen.control.take(HistogramRequest)
        assert pending_requests is not None
        assert len(pending_requests.records) == 1


@awaited
async def test_a_histogram_that_cannot_be_measured_leaves_the_old_one_and_says_both() -> None:
    async with watching(started(), *steps(200), window(1)) as screen:
        await screen.press("f")
        await screen.answer(HistogramRequest, "failed", "out of memory")
        assert "no histogram: out of memory" in screen.notice
        assert "old: 199 steps ago" in screen.lines[3]


@awaited
async def test_where_none_can_be_measured_f_asks_nothing_and_says_why() -> None:
    refuses = {"histogram": "amptui only observes this script"}
    async with watching(started(refuses=refuses, observed=True), *steps(5), window(3)) as screen:
        await screen.press("f")
        assert screen.control.newest(HistogramRequest) is None
        assert "step 3" in screen.lines[3]
    async with watching(started(refuses=refuses, observed=True), *steps(5)) as screen:
        await screen.feed(replace(step(6), grad_max=0.5))
        await screen.press("f")
        assert "float16 gradients: not measured, amptui only observes this script" in screen.text


@awaited
async def test_a_paused_run_measures_nothing() -> None:
    async with watching(started(), *steps(5), paused()) as screen:
        await screen.press("f")
        assert screen.control.newest(HistogramRequest) is None
        assert "resume first: a histogram needs a batch" in screen.notice
        assert screen.state.focus == "numerics"


# --------------------------------------------------------------------------------- the floor


@pytest.mark.parametrize(("key", "precision"), [("b", "bf16"), ("f", "fp32")])
@awaited
async def test_a_chosen_precision_is_requested_before_the_resume(key: str, precision: str) -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await at_the_floor(screen)
        assert "training is paused" in screen.text
        assert REASON.capitalize() in screen.text
        await screen.press(key)
        # In this order: the trainer may take its next step as soon as the pause ends.
        precise, resumes = screen.session.view().pending
        assert (precise.precision, resumes.paused) == (precision, False)
        assert "training is paused" not in screen.text


@awaited
async def test_g_continues_in_the_same_precision() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await at_the_floor(screen)
        await screen.press("g")
        assert screen.wanted is None
        assert resumes(screen)


@pytest.mark.ci
@awaited
async def test_the_question_opens_once_for_each_pause() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await at_the_floor(screen)
        await screen.press("escape")
        await screen.feed(Note(time=time.time(), severity="info", text="still there"))
        assert "training is paused" not in screen.text
        assert not resumes(screen)
        assert UNANSWERED in screen.footer
        await screen.press("space")
        assert not resumes(screen)
        assert "training is paused" in screen.text
        await screen.press("escape")
        await screen.press("space", "g")
        assert resumes(screen)
        assert UNANSWERED not in screen.footer
        await screen.feed(resumed(), step(6, "fp16"))
        await screen.answer(PauseRequest)
        await at_the_floor(screen)
        assert "training is paused" in screen.text


@awaited
async def test_the_question_waits_for_the_open_overlay_and_closes_with_the_pause() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await screen.press("e")
        await at_the_floor(screen)
        assert "events (" in screen.text
        await screen.press("escape")
        assert "training is paused" in screen.text
        await screen.feed(resumed())
        assert "training is paused" not in screen.text


@awaited
async def test_quitting_in_the_question_asks_and_returns_to_it() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await at_the_floor(screen)
        await screen.press("q")
        assert "Stop it or detach?" in screen.text
        assert screen.control.stop_reason is None
        await screen.press("escape")
        assert "training is paused" in screen.text
        await screen.press("q", "y")
        assert screen.control.stop_reason is not None
        assert "training is paused" not in screen.text


@pytest.mark.ci
@awaited
async def test_a_pause_by_a_user_opens_no_question() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.feed(paused())
        assert "paused" in screen.header
        assert "training is paused" not in screen.text
