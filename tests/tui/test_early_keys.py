"""Keys pressed before the run has begun: kept, shown, taken back, and asked for once."""

import time

import pytest

from amptui.records.answers import RequestKind
from amptui.records.control import REQUESTS
from amptui.records.run import PauseChanged, PhaseChanged, RunFailed
from tests.tui.watching import Screen, awaited, started, step, steps, watching

KEPT: dict[str, tuple[RequestKind, str]] = {
    "p": ("precision", "switch"),
    "c": ("comparison", "comparison"),
    "x": ("x-ray", "X-ray"),
    "n": ("trace", "trace"),
    "f": ("histogram", "histogram"),
    "s": ("checkpoint", "checkpoint"),
}


def pending(screen: Screen) -> list[str]:
    """The kinds of request that the run has not answered, in the order in which it got them."""
    return [request.kind for request in screen.session.view().pending]


@pytest.mark.ci
@pytest.mark.parametrize("key", KEPT)
@awaited
async def test_a_key_is_kept_until_the_run_begins_and_asked_for_once(key: str) -> None:
    kind, words = KEPT[key]
    async with watching(PhaseChanged(time=0.0, phase="importing"), size=(80, 24)) as screen:
        await screen.press(key)
        assert f"once training runs: {words}" in screen.footer
        assert "? help  q quit" in screen.footer
        assert pending(screen) == []
        screen.session.fold([started()])
        await screen.until(lambda: pending(screen) == [kind])
        await screen.feed(*steps(3))
        assert "once training runs" not in screen.footer
        await screen.answer(REQUESTS[kind])
        await screen.feed(step(4))
        assert pending(screen) == []


@pytest.mark.parametrize("key", KEPT)
@awaited
async def test_the_same_key_again_takes_it_back(key: str) -> None:
    async with watching() as screen:
        await screen.press(key, key)
        assert "once training runs" not in screen.footer
        screen.session.fold([started(), *steps(3)])
        assert pending(screen) == []


@awaited
async def test_several_are_asked_for_in_the_order_in_which_they_were_typed() -> None:
    async with watching() as screen:
        await screen.press(*KEPT, "n")
        assert "once training runs: switch, comparison, X-ray, histogram, checkpoint" in screen.footer
        screen.session.fold([started()])
        await screen.until(lambda: len(pending(screen)) == 5)
        assert pending(screen) == ["precision", "comparison", "x-ray", "histogram", "checkpoint"]
        assert screen.wanted == "bf16"


@awaited
async def test_in_a_run_that_begins_in_amp_the_kept_switch_is_to_fp32() -> None:
    async with watching() as screen:
        await screen.press("p")
        screen.session.fold([started(precision="bf16")])
        await screen.until(lambda: screen.wanted == "fp32")


@awaited
async def test_f_leads_to_float8_once_the_run_has_begun_in_fp8() -> None:
    async with watching() as screen:
        await screen.press("f")
        assert (screen.overlay, screen.state.focus) == (None, "numerics")
        screen.session.fold([started(precision="fp8-emulated")])
        await screen.until(lambda: screen.overlay == "float8")
        assert screen.state.focus is None
        assert pending(screen) == ["histogram"]


@awaited
async def test_a_comparison_kept_for_a_run_without_tf32_compares_with_that() -> None:
    async with watching() as screen:
        await screen.press("c")
        screen.session.fold([started(precision="ieee")])
        await screen.until(lambda: bool(pending(screen)))
        (request,) = screen.session.view().pending
        assert request.precisions == ("ieee", "bf16")


@awaited
async def test_what_the_device_does_not_support_is_said_when_that_is_known() -> None:
    async with watching() as screen:
        await screen.press("p", "c")
        screen.session.fold([started(unsupported={"bf16": "no bfloat16 here"})])
        await screen.until(lambda: "AMP bf16: no bfloat16 here" in screen.text)
        assert pending(screen) == []
        assert "once training runs" not in screen.footer


@awaited
async def test_a_pause_is_asked_for_at_once_and_keeps_the_others_waiting() -> None:
    async with watching() as screen:
        await screen.press("x", "space")
        assert pending(screen) == ["pause"]
        assert "pausing" in screen.header
        screen.session.fold([started(), PauseChanged(time=time.time(), step=0, paused=True)])
        await screen.until(lambda: pending(screen) == ["pause", "x-ray"])
        assert "X-ray when training resumes" in screen.footer


@pytest.mark.ci
@awaited
async def test_a_run_that_ends_before_it_begins_is_asked_for_nothing() -> None:
    async with watching(PhaseChanged(time=0.0, phase="model")) as screen:
        await screen.press("p", "s")
        await screen.end(RunFailed(time=0.0, step=0, error="no such layer", traceback="Traceback ..."))
        await screen.until(lambda: screen.has_left)
        assert screen.session.view().pending == ()
        assert "once training runs" not in screen.footer


@pytest.mark.parametrize("keys", [("d",), ("q", "d")], ids=str)
@awaited
async def test_detaching_first_says_what_would_not_be_asked_for(keys: tuple[str, ...]) -> None:
    async with watching() as screen:
        await screen.press("p", "x", *keys)
        assert not screen.has_left
        assert "d again detaches without: switch, X-ray" in screen.text
        await screen.press("d")
        await screen.until(lambda: screen.has_left)
        assert screen.app.left == "detached"
        assert pending(screen) == []
