"""The key that asks for a checkpoint: what it asks for, says meanwhile, and tells when it came or failed."""

import time
from typing import Any

import pytest

from amptui.records import CheckpointWritten, Note, PauseChanged, PhaseChanged, RunFinished
from tests.tui.watching import Screen, awaited, started, step, steps, watching

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


def trouble(text: str = "no checkpoint: the disk is full") -> Note:
    return Note(time=time.time(), severity="warning", text=text)


async def ask(screen: Screen) -> bool:
    await screen.press("s")
    return screen.control.take_checkpoint()


@pytest.mark.parametrize("width", [80, 120])
@awaited
async def test_s_asks_for_one_and_says_so_until_it_is_there(width: int) -> None:
    async with watching(started(), *steps(5), size=(width, 30)) as screen:
        assert await ask(screen)
        assert WAITING in screen.footer
        assert "? help  q quit" in screen.footer
        await screen.feed(step(6))
        assert WAITING in screen.footer
        await screen.feed(written(6))
        assert WAITING not in screen.footer
        assert "checkpoint step-000000006.pt: 12.0 MiB" in screen.footer


@awaited
async def test_asked_twice_before_it_came_it_is_one() -> None:
    async with watching(started(), *steps(5), written(3)) as screen:
        assert await ask(screen)
        await screen.feed(written(5))
        await screen.feed(step(6))
        await ask(screen)
        await screen.press("s")
        await screen.feed(written(6))
        assert WAITING not in screen.footer


@awaited
async def test_one_that_was_being_written_is_not_the_one_asked_for() -> None:
    async with watching(started(), *steps(5)) as screen:
        await ask(screen)
        await screen.feed(written(4, reason="interval"))
        assert WAITING in screen.footer
        await screen.feed(step(6), written(6, reason="epoch"))
        assert WAITING not in screen.footer


@awaited
async def test_a_disk_that_refuses_it_is_told() -> None:
    async with watching(started(), *steps(5), trouble("no checkpoint: an old trouble")) as screen:
        await ask(screen)
        assert WAITING in screen.footer
        await screen.feed(trouble())
        assert "no checkpoint: the disk is full" in screen.footer
        assert not screen.state.waiting


@awaited
async def test_other_notes_do_not_answer_it() -> None:
    async with watching(started(), *steps(5)) as screen:
        await ask(screen)
        await screen.feed(trouble("a checkpoint does not hold the order of the batches"))
        await screen.feed(Note(time=time.time(), severity="info", text="checkpoints are kept again"))
        assert WAITING in screen.footer


@awaited
async def test_while_training_is_paused_one_can_be_had() -> None:
    async with watching(started(), *steps(5), PauseChanged(time=time.time(), step=5, paused=True)) as screen:
        assert await ask(screen)
        await screen.feed(written(5))
        assert "checkpoint step-000000005.pt" in screen.footer


@awaited
async def test_it_is_refused_before_training_began_while_it_stops_and_after_its_end() -> None:
    async with watching() as screen:
        assert not await ask(screen)
        assert "not yet: training has not begun" in screen.footer
        await screen.feed(started(), *steps(5), PhaseChanged(time=time.time(), phase="stopping"))
        assert not await ask(screen)
        assert "it writes a checkpoint at its end" in screen.footer
        await screen.end(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="stopped"))
        assert not await ask(screen)
        assert "the run has ended" in screen.footer


@awaited
async def test_the_end_of_the_run_ends_the_waiting() -> None:
    async with watching(started(), *steps(5)) as screen:
        await ask(screen)
        await screen.feed(RunFinished(time=time.time(), steps=5, seconds=1.0, reason="done"))
        assert WAITING not in screen.footer
