"""The key that compares FP32 and AMP: what it requests, shows and refuses."""

import time
from typing import Any

import pytest

from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.speed import round_words, times_speed
from amptui.records.control import ComparisonRequest, PrecisionRequest
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records.run import PauseChanged, PrecisionChanged, RunFinished
from tests.telemetry import record_samples
from tests.telemetry.record_samples import faster, measured
from tests.tui.watching import ENDED, Screen, awaited, started, step, steps, watching

ROWS = (measured("fp32"), faster())
BEGUN = (measured("fp32", blocks=0), measured("bf16", blocks=0))


def in_turns(
    rounds: int = 0, rows: tuple[PrecisionMeasured, ...] = BEGUN, **changes: Any
) -> PrecisionsCompared:
    progress = {"over": False, "reason": "running", "chosen": "fp32", **changes}
    return record_samples.compared(time=time.time(), rounds=rounds, rows=rows, **progress)


def over(**changes: Any) -> PrecisionsCompared:
    return record_samples.compared(time=time.time(), **changes)


def switched(number: int, previous: str, current: str) -> PrecisionChanged:
    return PrecisionChanged(time=time.time(), step=number, previous=previous, current=current)


async def asked_for(screen: Screen) -> tuple[str, ...] | None:
    await screen.press("c")
    request = screen.control.newest(ComparisonRequest)
    return None if request is None else request.precisions


@awaited
async def test_c_asks_for_a_comparison_of_fp32_and_amp() -> None:
    async with watching(started(), *steps(5)) as screen:
        assert await asked_for(screen) == ("fp32", "bf16")
        assert "comparison starts at the next step …" in screen.footer
        await screen.feed(in_turns())
        await screen.answer(ComparisonRequest)
        assert "comparing: round 1/24, c ends it" in screen.footer
        assert "comparing  ■ FP32 ● AMP bf16" in screen.header
        await screen.feed(in_turns(2, ROWS))
        assert "comparing: round 3/24, c ends it" in screen.footer
        assert "A/B test: round  3 of" in screen.text


@awaited
async def test_c_again_ends_it() -> None:
    async with watching(started(), *steps(5), in_turns(2, ROWS)) as screen:
        assert await asked_for(screen) == ()


@awaited
async def test_its_result_is_reported_and_stays_in_the_panel() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("c")
        await screen.answer(ComparisonRequest)
        await screen.feed(in_turns(2, ROWS))
        await screen.feed(over())
        assert f"AMP fp16 {times_speed(1.71, 'FP32')} (1.68 to 1.74)" in screen.notice
        await screen.feed(step(6))
        assert any(f"AMP fp16 {times_speed(1.71, 'FP32')}" in line for line in screen.lines[:-1])
        assert "FP32" in screen.header
        assert "comparing" not in screen.text


@awaited
async def test_an_earlier_result_is_not_reported_again() -> None:
    async with watching(started(), *steps(5), over()) as screen:
        assert "1.71× the speed" not in screen.notice
        await screen.press("l")
        assert "1.71× the speed" not in screen.notice


@awaited
async def test_a_comparison_of_another_screen_refuses_it() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("c")
        await screen.feed(in_turns())
        await screen.answer(ComparisonRequest, "comparison running")
        assert "already comparing: c ends it" in screen.notice


@awaited
async def test_stopped_before_its_first_pair_it_says_so() -> None:
    async with watching(started(), *steps(5), in_turns()) as screen:
        await screen.feed(over(rows=BEGUN, rounds=0, reason="stopped"))
        assert event_text(screen.session.view().events[0]) in screen.notice
        assert "stopped" in screen.notice


@awaited
async def test_it_compares_the_precisions_in_use() -> None:
    first = (started(precision="ieee"), *steps(5, "ieee"))
    async with watching(*first, switched(6, "ieee", "fp16"), step(6, "fp16")) as screen:
        assert await asked_for(screen) == ("ieee", "fp16")


@awaited
async def test_in_a_run_that_began_in_amp_it_compares_with_fp32() -> None:
    async with watching(started(precision="fp16"), *steps(5, "fp16")) as screen:
        assert await asked_for(screen) == ("fp32", "fp16")


IN_FLOAT8 = (measured("bf16"), measured("fp8", speedup=1.25, speedup_low=1.21, speedup_high=1.29))


@pytest.mark.ci
@awaited
async def test_in_fp8_it_compares_with_bf16_and_p_goes_its_own_way() -> None:
    """``p`` into FP8, ``c``, ``p`` out of the comparison, and ``c`` again: each from where the run is."""
    first = (started(precision="fp8"), *steps(5, "fp8"), switched(6, "fp8", "bf16"), step(6, "bf16"))
    async with watching(*first, size=(200, 60)) as screen:
        assert await asked_for(screen) == ("fp32", "bf16")
        await screen.answer(ComparisonRequest, "unavailable")
        await screen.press("p")
        assert screen.wanted == "fp8"
        await screen.answer(PrecisionRequest)
        await screen.feed(switched(7, "bf16", "fp8"), step(7, "fp8"))
        assert await asked_for(screen) == ("bf16", "fp8")
        await screen.answer(ComparisonRequest)
        test = {"baseline": "bf16", "chosen": "fp8"}
        await screen.feed(in_turns(2, IN_FLOAT8, **test), switched(8, "fp8", "bf16"), step(8, "bf16"))
        assert "comparing  ● AMP bf16 ▼ FP8" in screen.header
        assert f"▼ FP8  {times_speed(1.25, 'AMP bf16')}" in screen.lines[1]
        await screen.press("p")
        assert screen.wanted == "fp32"
        await screen.answer(PrecisionRequest)
        await screen.feed(over(rows=IN_FLOAT8, baseline="bf16", chosen="fp8"), switched(9, "bf16", "fp32"))
        assert f"FP8 {times_speed(1.25, 'AMP bf16')} (1.21 to 1.29)" in screen.text
        await screen.feed(step(9))
        assert await asked_for(screen) == ("fp32", "bf16")


@pytest.mark.ci
@awaited
async def test_emulated_fp8_offers_no_comparison_and_says_why_it_is_refused() -> None:
    async with watching(started(precision="fp32"), *steps(5), size=(200, 60)) as screen:
        assert " c compare" in screen.footer
        await screen.feed(switched(6, "fp32", "fp8-emulated"), step(6, "fp8-emulated"))
        assert " c compare" not in screen.footer
        assert "comparison" not in screen.state.accepts
        assert await asked_for(screen) == ("bf16", "fp8-emulated")
        await screen.answer(ComparisonRequest, "unavailable", "its time says nothing")
        assert "its time says nothing" in screen.notice
        await screen.feed(switched(7, "fp8-emulated", "bf16"), step(7, "bf16"))
        assert " c compare" in screen.footer


@pytest.mark.parametrize("running", ["fp32", "bf16"])
@awaited
async def test_p_during_a_comparison_switches_from_the_precision_before_it(running: str) -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("c")
        await screen.feed(in_turns())
        if running == "bf16":
            await screen.feed(switched(6, "fp32", "bf16"), step(6, "bf16"))
        await screen.press("p")
        assert screen.wanted == "bf16"


@awaited
async def test_it_needs_more_steps() -> None:
    async with watching() as screen:
        await screen.feed(started(), *steps(5), PauseChanged(time=time.time(), step=5, paused=True))
        assert await asked_for(screen) is None
        assert "resume first: a comparison needs steps" in screen.notice
        await screen.feed(PauseChanged(time=time.time(), step=5, paused=False))
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        assert await asked_for(screen) is None
        assert ENDED in screen.notice


@awaited
async def test_unsupported_amp_is_refused_with_the_reason() -> None:
    async with watching(started(unsupported={"bf16": "not here"}), *steps(5)) as screen:
        assert await asked_for(screen) is None
        assert "AMP bf16: not here" in screen.notice
        assert "comparing" not in screen.footer


@awaited
async def test_a_run_that_ends_during_a_comparison_shows_nothing_pending() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("c")
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        await screen.until(lambda: "comparing" not in screen.footer)


@awaited
async def test_on_a_small_screen_one_line_shows_it() -> None:
    async with watching(started(), *steps(5), in_turns(2, ROWS), size=(80, 24)) as screen:
        assert f"{round_words(in_turns(2, ROWS))}  AMP fp16 {times_speed(1.71, 'FP32')}" in screen.text
        assert "c ends it" in screen.footer
        assert "? help  q quit" in screen.footer
