"""The key that requests a checkpoint: what is shown until it is written or has failed."""

import time
from typing import Any

import pytest

from amptui.records.control import CheckpointRequest
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import PauseChanged, PhaseChanged, RunFinished
from tests.tui.watching import ENDED, Screen, awaited, started, step, steps, watching

WAITING = "checkpoint after this step …"


def written(number: int, **changes: Any) -> CheckpointWritten:
    fields: dict[str, Any] = {
        "time": time.time(),
        "step": number,
        "name": f"step-{number:09}.pt",
        "size_bytes": 12 * 1024**2,
        "reason": "asked",
        "blocked_seconds": 0.012,
        "seconds": 0.4,
    }
    return CheckpointWritten(**fields | changes)


async def ask(screen: Screen) -> bool:
    before = len(screen.session.view().pending)
    await screen.press("s")
    return len(screen.session.view().pending) > before


@pytest.mark.parametrize("width", [80, 120])
@awaited
async def test_s_asks_for_one_and_says_so_until_it_is_written(width: int) -> None:
    async with watching(started(), *steps(5), size=(width, 30)) as screen:
        assert await ask(screen)
        assert WAITING in screen.footer
        assert "? help  q quit" in screen.footer
        await screen.feed(step(6))
        assert WAITING in screen.footer
        await screen.feed(written(6))
        await screen.answer(CheckpointRequest)
        assert WAITING not in screen.footer
        assert "checkpoint step-000000006.pt: 12.0 MiB" in screen.notice


@awaited
async def test_two_requests_are_shown_as_one() -> None:
    async with watching(started(), *steps(5)) as screen:
        assert await ask(screen)
        assert await ask(screen)
        assert screen.footer.count(WAITING) == 1
        await screen.feed(written(6))
        await screen.answer(CheckpointRequest)
        assert WAITING not in screen.footer


@awaited
async def test_another_checkpoint_does_not_answer_the_request() -> None:
    async with watching(started(), *steps(5)) as screen:
        await ask(screen)
        await screen.feed(written(4, reason="interval"))
        assert WAITING in screen.footer


@awaited
async def test_a_disk_error_is_reported() -> None:
    async with watching(started(), *steps(5)) as screen:
        await ask(screen)
        await screen.answer(CheckpointRequest, "failed", "the disk is full")
        assert "no checkpoint: the disk is full" in screen.notice
        assert not screen.state.waiting


@awaited
async def test_another_screen_s_is_shown_as_pending_and_not_reported() -> None:
    async with watching(started(), *steps(5)) as screen:
        screen.control.ask(CheckpointRequest())
        await screen.feed()
        assert WAITING in screen.footer
        await screen.feed(written(6))
        await screen.answer(CheckpointRequest)
        assert WAITING not in screen.footer
        assert not screen.state.message


@awaited
async def test_one_can_be_written_during_a_pause() -> None:
    async with watching(started(), *steps(5), PauseChanged(time=time.time(), step=5, paused=True)) as screen:
        assert await ask(screen)
        await screen.feed(written(5))
        await screen.answer(CheckpointRequest)
        assert "checkpoint step-000000005.pt" in screen.notice


@awaited
async def test_it_is_refused_while_the_run_stops_and_after_its_end() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.feed(PhaseChanged(time=time.time(), phase="stopping"))
        assert not await ask(screen)
        assert "it writes a checkpoint at its end" in screen.notice
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="stopped"))
        assert not await ask(screen)
        assert ENDED in screen.notice


@awaited
async def test_at_the_end_of_the_run_nothing_is_pending() -> None:
    async with watching(started(), *steps(5)) as screen:
        await ask(screen)
        await screen.feed(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        assert WAITING not in screen.footer
