"""When and how the screen leaves: asked, detached, interrupted, after a timeout, or with nothing to show."""

import threading
import time

import pytest

from amptui.records.run import RunFinished
from tests.tui.watching import Screen, awaited, started, steps, watching


def over(reason: str = "done") -> RunFinished:
    return RunFinished(time=time.time(), steps=5, seconds=1.0, reason=reason)  # type: ignore[arg-type]


async def left(screen: Screen) -> str | None:
    """How it left, once it has."""
    await screen.until(lambda: screen.has_left)
    return screen.app.left


@pytest.mark.parametrize("silence", ["no response from the run for 10 s", ""])
@awaited
async def test_a_run_that_was_asked_to_stop_is_left_after_a_while_only_if_it_is_silent(silence: str) -> None:
    async with watching(started(), *steps(5), patience_seconds=0.0, why_silent=lambda: silence) as screen:
        await screen.press("q", "y")
        if not silence:
            for _ in range(3):  # a frame each
                await screen.feed(*steps(5))
                assert not screen.has_left
            await screen.end(over("stopped"))
        assert await left(screen) == "stopped"
        assert screen.ended.is_set() == (not silence)


@awaited
async def test_it_can_hang_up_from_another_thread_and_while_it_waits_for_a_stop() -> None:
    async with watching(started(), *steps(5)) as screen:
        await screen.press("ctrl+c")
        thread = threading.Thread(target=screen.app.hang_up)
        thread.start()
        assert await left(screen) == "hung up"
        thread.join()
