"""The whole screen over a real session: what it shows, and what each key requests."""

import threading
import time
from dataclasses import replace

import pytest

from amptui.diagnosis.speed import why_no_ratio
from amptui.records.control import REQUESTS, PauseRequest, PrecisionRequest, XRayRequest
from amptui.records.run import PRECISIONS, PauseChanged, PhaseChanged, PrecisionChanged, RunFinished
from amptui.tui import screen as screen_module
from amptui.tui.app import MAX_ZOOM
from amptui.tui.keyboard import MouseReported, Pointing
from amptui.tui.keys import ENDED_KEYS, KEYS, RUN_KEYS
from amptui.tui.layout import PANELS, RANKED_PANELS
from tests.tui.overlays.opened import xray
from tests.tui.watching import ENDED, awaited, started, step, steps, watching


@awaited
async def test_the_screen_is_there_before_the_training_starts() -> None:
    async with watching() as screen:
        (first_frame,) = screen.seen_at_start
        assert "╭ loss" in first_frame
        assert "amptui" in first_frame


@awaited
async def test_panels_show_records_as_they_arrive() -> None:
    async with watching(PhaseChanged(time=0.0, phase="importing", detail="importing torch")) as screen:
        assert "importing torch" in screen.text
        await screen.feed(started(), *steps(40))
        assert "mnist-deep" in screen.header
        assert "FP32" in screen.header
        assert "running" in screen.header
        assert "40/2,350" in screen.header.replace(" ", "")
        await screen.feed(PauseChanged(time=time.time(), step=40, paused=True))
        assert "paused" in screen.header


@awaited
async def test_frames_and_their_cost_are_measured() -> None:
    async with watching(started(), *steps(3)) as screen:
        await screen.until(lambda: " fps" in screen.footer)
        assert "% cpu" in screen.footer


@awaited
async def test_a_tiny_terminal_says_so_and_keys_do_no_harm() -> None:
    async with watching(started(), *steps(3), size=(20, 5)) as screen:
        assert "too small" in " ".join(screen.text.split())
        for key in KEYS:
            if key.action not in ("interrupt", "detach"):
                await screen.press(*key.presses)
        assert all(screen.app._dashboard.render_line(y).cell_length == 20 for y in range(5))


@pytest.mark.ci
@awaited
async def test_the_size_may_change_between_any_two_frames() -> None:
    async with watching(started(), *steps(50)) as screen:
        for number, (width, height) in enumerate(((80, 24), (200, 60), (1, 1), (40, 12), (100, 16)), 51):
            await screen.pilot.resize_terminal(width, height)
            await screen.press("l")
            await screen.feed(step(number))
            dashboard = screen.app._dashboard
            assert [dashboard.render_line(y).cell_length for y in range(height)] == [width] * height
        assert "FP32" in screen.header


# --------------------------------------------------------------------------------- precisions


@awaited
async def test_p_asks_for_amp_and_says_switching_until_the_engine_confirms() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("p")
        assert screen.wanted == "bf16"
        assert "switching" in screen.header
        await screen.feed(
            PrecisionChanged(time=time.time(), step=6, previous="fp32", current="bf16"), step(6, "bf16")
        )
        await screen.answer(PrecisionRequest)
        assert "AMP bf16" in screen.header
        assert "switching" not in screen.header


@awaited
async def test_p_twice_returns_to_the_first_precision() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("p", "p")
        assert screen.wanted == "fp32"
        assert "switching" not in screen.header


@awaited
async def test_p_returns_to_the_precision_before_amp() -> None:
    change = PrecisionChanged(time=time.time(), step=6, previous="ieee", current="bf16")
    async with watching(started(precision="ieee"), *steps(5, "ieee"), change, step(6, "bf16")) as screen:
        await screen.press("p")
        assert screen.wanted == "ieee"


@awaited
async def test_p_in_a_run_that_began_in_amp_asks_for_fp32() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        await screen.press("p")
        assert screen.wanted == "fp32"


@awaited
async def test_a_precision_can_be_chosen_before_the_run_has_begun() -> None:
    async with watching() as screen:
        await screen.press("m", "4")
        assert screen.wanted == "fp16"
        assert "first step in AMP fp16" in screen.footer


@awaited
async def test_an_unsupported_precision_is_refused_with_the_reason() -> None:
    refusals = {"bf16": "no bfloat16", "tf32": "no TF32"}
    async with watching(started(unsupported=refusals), *steps(5)) as screen:
        assert screen.footer.startswith(" space pause")
        assert "press p" not in screen.text
        await screen.press("p")
        assert "AMP bf16: no bfloat16" in screen.notice
        await screen.press("m", "3")
        assert "TF32: no TF32" in screen.notice
        assert screen.wanted is None
        assert "switching" not in screen.header


SWITCH_HINT = f"enter or 1-{len(PRECISIONS)}: switch"


@awaited
async def test_m_opens_a_menu_that_asks_for_the_chosen_precision() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("m")
        assert SWITCH_HINT in screen.text
        await screen.press("down", "enter")
        assert SWITCH_HINT not in screen.text
        assert screen.wanted == "ieee"
        await screen.press("m", "escape")
        assert SWITCH_HINT not in screen.text
        assert screen.wanted == "ieee"


@awaited
async def test_keys_that_need_an_unsupported_precision_are_not_offered() -> None:
    async with watching(started(unsupported={"bf16": "no bfloat16 here"}), *steps(5)) as screen:
        await screen.press("question_mark")
        meanings = {key.label: key.meaning for key in KEYS}
        assert [key for key in meanings if meanings[key] not in screen.text] == ["p", "c"]


@pytest.mark.ci
@awaited
async def test_keys_that_a_lost_connection_refuses_are_not_offered() -> None:
    away = threading.Event()
    lost = "connection to box lost; reconnecting (Connection refused)"
    options = {"is_away": away.is_set, "why_silent": lambda: lost if away.is_set() else ""}
    async with watching(started(), *steps(3), size=(120, 40), **options) as screen:
        await screen.until(lambda: screen.footer.startswith(" p bf16  space pause  d detach"))
        away.set()
        await screen.until(lambda: lost in screen.footer)
        assert "d detach" in screen.footer
        assert "q quit" in screen.footer
        assert "p bf16" not in screen.footer
        assert "space" not in screen.footer
        away.clear()
        await screen.until(lambda: screen.footer.startswith(" p bf16  space pause  d detach"))


@pytest.mark.parametrize(
    ("precisions", "target"), [(["fp32"], "bf16"), (["fp32", "bf16"], "FP32"), (["ieee", "bf16"], "ieee")]
)
@awaited
async def test_the_footer_names_the_precision_that_p_switches_to(precisions: list[str], target: str) -> None:
    first, *others = precisions
    async with watching(started(precision=first), *steps(5, first), size=(80, 24)) as screen:
        for number, precision in enumerate(others, 6):
            change = PrecisionChanged(time=time.time(), step=number, previous=first, current=precision)
            await screen.feed(change, step(number, precision))
        assert screen.footer.startswith(f" p {target} ")
        await screen.press("p")  # asked for, it is the other way that the key leads
        assert not screen.footer.startswith(f" p {target} ")


@awaited
async def test_a_refusal_leaves_the_keys_where_they_are() -> None:
    detail = "CUDA out of memory in the X-ray, of which the last words need a second line of this screen"
    async with watching(started(), *steps(5), size=(80, 24)) as screen:
        await screen.press("x")
        await screen.answer(XRayRequest, "failed", detail)
        assert screen.notice == f"no X-ray: {detail}"
        assert screen.footer.startswith(" p bf16  space pause  d detach  s save  ? help  q quit ")


@awaited
async def test_at_the_end_of_the_run_a_pending_switch_is_no_longer_shown() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("p")
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        await screen.until(lambda: "switching" not in screen.header)


@pytest.mark.parametrize("keys", [("p",), ("space",), ("m", "2"), ("s",), ("c",), ("x",), ("n",)], ids=str)
@awaited
async def test_after_the_end_keys_send_no_requests(keys: tuple[str, ...]) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        await screen.press(*keys)
        assert ENDED in screen.notice
        assert [screen.control.newest(kind) for kind in REQUESTS.values()] == [None] * len(REQUESTS)


@awaited
async def test_a_switch_requested_on_another_screen_is_shown() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("p")
        assert "→ AMP bf16 switching" in screen.header
        screen.control.ask(PrecisionRequest("tf32"))
        await screen.feed()
        assert "→ TF32 switching" in screen.header
        change = PrecisionChanged(time=time.time(), step=6, previous="fp32", current="tf32")
        await screen.feed(change, step(6, "tf32"))
        await screen.answer(PrecisionRequest)
        assert "switching" not in screen.header
        assert not screen.state.message


@awaited
async def test_a_failed_switch_is_reported_where_it_was_requested() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("p")
        await screen.answer(PrecisionRequest, "failed", "the first step failed")
        assert "the first step failed" in screen.notice
        assert "switching" not in screen.header
        screen.control.ask(PrecisionRequest("tf32"))
        await screen.answer(PrecisionRequest, "unavailable", "no TF32 here")
        assert "no TF32 here" not in screen.notice


@awaited
async def test_a_notice_disappears_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen_module, "MESSAGE_SECONDS", 0.05)
    async with watching(started(), *steps(5)) as screen:
        await screen.press("o")
        assert "this run has one optimizer" in screen.notice
        await screen.until(lambda: "one optimizer" not in screen.notice)
        assert "p bf16" in screen.footer


# -------------------------------------------------------------------------------- other keys


@awaited
async def test_space_pauses_and_resumes() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("space")
        assert screen.control.newest(PauseRequest) == PauseRequest(True)
        assert "pausing" in screen.header
        await screen.press("space")
        assert screen.control.newest(PauseRequest) == PauseRequest(False)
        assert "running" in screen.header


@awaited
async def test_space_resumes_a_run_that_was_paused_before_the_screen_opened() -> None:
    async with watching(started(), *steps(5), PauseChanged(time=time.time(), step=5, paused=True)) as screen:
        await screen.press("space")
        assert screen.control.newest(PauseRequest) == PauseRequest(False)
        assert "resuming" in screen.header
        await screen.press("space")  # the run has not gone on yet: never mind
        assert screen.control.newest(PauseRequest) == PauseRequest(True)
        assert "paused" in screen.header


@awaited
async def test_after_another_screen_resumed_space_pauses_again() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("space")
        await screen.feed(PauseChanged(time=time.time(), step=5, paused=True))
        await screen.answer(PauseRequest)
        screen.control.ask(PauseRequest(False))
        await screen.feed(PauseChanged(time=time.time(), step=5, paused=False))
        await screen.answer(PauseRequest)
        await screen.press("space")
        assert screen.control.newest(PauseRequest) == PauseRequest(True)


@awaited
async def test_l_changes_the_axis_and_back() -> None:
    async with watching(started(), *steps(200)) as screen:
        linear = screen.text
        await screen.press("l")
        assert screen.state.log_y
        assert screen.text != linear
        await screen.press("l")
        assert not screen.state.log_y


@awaited
async def test_zoom_has_two_limits_and_can_be_reset() -> None:
    async with watching(started(), *steps(200)) as screen:
        await screen.press("minus")
        assert screen.state.zoom == 0
        await screen.press("plus", "equals_sign", "minus")
        assert screen.state.zoom == 1
        screen.app._state = replace(screen.state, zoom=MAX_ZOOM - 1)
        await screen.press("plus", "plus")
        assert screen.state.zoom == MAX_ZOOM
        await screen.press("0")
        assert screen.state.zoom == 0


@awaited
async def test_tab_goes_through_the_panels_and_escape_shows_all() -> None:
    async with watching(started(), *steps(20)) as screen:
        walked = []
        for _ in PANELS:
            await screen.press("tab")
            walked.append(screen.state.focus)
            assert screen.text.count("╭") == 1
        assert tuple(walked) == PANELS
        await screen.press("tab")
        assert screen.state.focus is None
        await screen.press("tab", "escape")
        assert screen.state.focus is None


@awaited
async def test_tab_goes_to_the_ranks_of_a_distributed_run() -> None:
    async with watching(started(world_size=8), *steps(20)) as screen:
        walked = []
        for _ in RANKED_PANELS:
            await screen.press("tab")
            walked.append(screen.state.focus)
        assert tuple(walked) == RANKED_PANELS
        screen.app._state = replace(screen.state, focus="ranks")
        screen.session.fold([started(world_size=1)])
        await screen.press("tab")
        assert screen.state.focus == PANELS[0]


@awaited
async def test_e_opens_all_events_while_training_continues() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("e")
        assert "events (1)" in screen.text
        await screen.feed(PauseChanged(time=time.time(), step=5, paused=True))
        assert "events (2)" in screen.text
        await screen.press("p")  # no key of this list: it does nothing
        assert screen.wanted is None
        await screen.press("escape")
        assert "╭ loss" in screen.text


PAGES = {
    "e": "events",
    "t": "output",
    "i": "configuration",
    "g": "metrics",
    "question_mark": "help",
    "x": "x-ray",
}


@pytest.mark.ci
@awaited
async def test_every_page_leads_to_every_other_and_esc_back_to_the_panels() -> None:
    paused = PauseChanged(time=time.time(), step=5, paused=True)
    async with watching(started(), *steps(5), xray(), paused) as screen:
        for key, name in PAGES.items():
            for other, other_name in PAGES.items():
                if key != other:
                    await screen.press(key)
                    assert screen.overlay == name
                    await screen.press(other)
                    assert screen.overlay == other_name
                    await screen.press("escape")
                    assert screen.overlay is None


@pytest.mark.parametrize("key", [key for key in PAGES if key != "x"])
@awaited
async def test_f_leads_from_a_page_to_the_float16_panel(key: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("f", key, "f")
        assert (screen.overlay, screen.state.focus) == (None, "numerics")


@awaited
async def test_x_asked_for_on_a_page_closes_it_so_that_the_x_ray_opens() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("e", "x")
        assert screen.overlay is None
        await screen.feed(xray())
        await screen.answer(XRayRequest)
        assert screen.overlay == "x-ray"


@pytest.mark.parametrize("opens", [("m",), ("q",), ("t", "slash"), ("g", "slash")], ids=str)
@awaited
async def test_a_question_and_a_search_lead_nowhere(opens: tuple[str, ...]) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press(*opens)
        before = screen.overlay
        await screen.press("e", "i")
        assert screen.overlay == before


@awaited
async def test_help_opens_and_any_key_closes_it() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("question_mark")
        assert all(key.meaning in screen.text for key in KEYS)
        await screen.press("p")
        assert KEYS[0].meaning not in screen.text
        assert screen.wanted is None


@awaited
async def test_a_run_that_is_only_observed_shows_the_keys_that_work() -> None:
    why = "this run is only observed"
    refuses = {kind: why for kind in REQUESTS if kind != "stop"}
    async with watching(started(observed=True, refuses=refuses), *steps(5), size=(200, 60)) as screen:
        assert why_no_ratio(screen.session.view().comparison) in screen.text
        assert "press p" not in screen.text
        words = {f" {key.label} {key.hint}" for key in KEYS if key.hint}
        assert {words_of_key.split()[0] for words_of_key in words if words_of_key in screen.footer} == {
            *"dflgte?q"
        }
        await screen.press("question_mark")
        shown = {key.label for key in KEYS if key.meaning in screen.text}
        assert shown == {key.label for key in KEYS} - {*"psmcxn", "space"}


@awaited
async def test_the_help_after_the_end_lists_what_still_works() -> None:
    async with watching(started(), *steps(5)) as screen:
        view = screen.session.view()
        assert "precision" in view.accepts
        assert why_no_ratio(view.comparison, view.accepts) in screen.text
        assert "press p" in screen.text
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        assert "press p" not in screen.text
        await screen.press("question_mark")
        assert [key.label for key in RUN_KEYS if key.meaning in screen.text] == []
        assert all(key.meaning in screen.text for key in ENDED_KEYS)


@awaited
async def test_an_unknown_key_does_nothing() -> None:
    async with watching(started(), *steps(5)) as screen:
        before = replace(screen.state, now=0.0, frames_per_second=None, frame_cpu_percent=None)
        await screen.press("z", "f5", "ctrl+p", "pageup", "up")
        after = replace(screen.state, now=0.0, frames_per_second=None, frame_cpu_percent=None)
        assert after == before
        assert not screen.has_left


@awaited
async def test_a_locale_without_utf8_gets_a_screen_of_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    async with watching(started(), *steps(100)) as screen:
        for keys in (("q",), ("escape", "m"), ("escape", "e"), ("escape", "question_mark")):
            await screen.press(*keys)
            assert screen.text.isascii()


# -------------------------------------------------------------------------- charts and cursors


@awaited
async def test_g_opens_the_charts_and_escape_closes_them() -> None:
    async with watching(started(), *steps(40)) as screen:
        await screen.press("g")
        assert "╭─ metrics (" in screen.text
        assert "learning rate" in screen.text
        await screen.press("slash", "r", "a", "t", "e", "enter", "enter", "left")
        assert "step 40  0.00100  ■ FP32" in screen.text
        await screen.press("escape", "escape", "escape", "escape")
        assert "╭ loss" in screen.text


@awaited
async def test_zoom_and_axis_keys_reach_the_charts() -> None:
    async with watching(started(), *steps(40)) as screen:
        await screen.press("g", "plus", "l")
        assert (screen.state.zoom, screen.state.log_y) == (1, True)


@pytest.mark.ci
@awaited
async def test_the_enlarged_loss_has_a_cursor() -> None:
    async with watching(started(), *steps(400)) as screen:
        await screen.press("left")
        assert screen.state.cursor is None, "no chart is enlarged"
        while screen.state.focus != "loss":
            await screen.press("tab")
        assert "← → values" in screen.text
        await screen.press("home")
        assert "step 1  1.00  ■ FP32" in screen.text
        await screen.press("plus", "plus")
        assert screen.state.zoom == 0, "the cursor zooms around itself"
        await screen.feed(step(401))
        assert "step 1  1.00  ■ FP32" in screen.text
        await screen.press("escape")
        assert (screen.state.cursor, screen.state.focus) == (None, "loss")
        await screen.press("escape")
        assert screen.state.focus is None


@pytest.mark.ci
@awaited
async def test_a_click_moves_the_cursor_of_an_enlarged_chart() -> None:
    async with watching(started(), *steps(400)) as screen:

        async def point(what: Pointing, x: int, line: int = 10) -> None:
            screen.app.post_message(MouseReported(what, x, line))
            await screen.pilot.pause()

        await point("press", 60)
        assert screen.state.cursor is None, "no chart is enlarged"
        while screen.state.focus != "loss":
            await screen.press("tab")
        await point("press", 10)
        assert screen.state.cursor is not None
        first = screen.state.cursor.step
        assert first <= 4
        assert "step " in screen.text
        await point("drag", 64)
        middle = screen.state.cursor.step
        assert first < middle < 400
        for x, line in ((5, 10), (119, 10), (30, 0), (30, 39)):
            await point("drag", x, line)
            assert screen.state.cursor.step == middle, "not on the curves"
        await point("wheel up", 64)
        assert screen.state.cursor.window is not None
        await screen.press("escape", "g", "enter")
        await point("press", 64)
        assert "esc no cursor" in screen.text


@awaited
async def test_space_pins_two_charts_beside_the_loss_for_the_next_screen_too() -> None:
    kept: list[tuple[tuple[str, str], ...]] = []

    def write_pins(pins: tuple[tuple[str, str], ...]) -> str:
        kept.append(pins)
        return "" if len(kept) < 4 else "the disk is full"

    lr, norm, panel = ("step", "lr"), ("step", "grad_norm"), ("panel", "samples/s")
    async with watching(
        started(), *steps(40), read_pins=lambda: (("part", "gone"), norm, panel), write_pins=write_pins
    ) as screen:
        assert screen.state.pinned == (norm, panel), "two at most"
        await screen.until(lambda: "gradient norm" in screen.text)
        await screen.press("g", "slash", *"learning", "enter", "space")
        assert kept[-1] == (panel, lr)
        await screen.press("space")
        assert list(kept[-1]) == [panel]
        await screen.press("space", "escape", "escape")
        assert kept[-1] == screen.state.pinned == (panel, lr)
        await screen.until(lambda: "learning rate" in screen.text and "gradient norm" not in screen.text)
        await screen.press("g", "space")
        assert "not remembered for the next screen: the disk is full" in screen.text
        assert screen.state.pinned == (lr, ("panel", "loss")), "on this one it is"
