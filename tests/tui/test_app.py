"""The screen over a live session: what needs a clock or another terminal, and how it leaves."""

import threading
import time
from dataclasses import replace

import pytest

from tests.gan_journal import DISCRIMINATOR
from tests.telemetry import record_samples as samples
from tests.tui.special_views import GAN
from tests.tui.watching import STOPPED, Screen, awaited, started, steps, watching


@awaited
async def test_the_screen_is_there_before_the_training_starts() -> None:
    async with watching() as screen:
        (first_frame,) = screen.seen_at_start
        assert "╭ loss" in first_frame


@awaited
async def test_what_textual_draws_again_by_itself_is_the_newest_frame() -> None:
    async with watching(started(), *steps(3)) as screen:
        for key, shows_all in (("f5", True), ("e", False), ("escape", True)):
            await screen.press(key)
            assert ("throughput" in screen.app.export_screenshot()) == shows_all


@pytest.mark.ci
@awaited
async def test_keys_that_a_lost_connection_refuses_are_not_offered() -> None:
    away = threading.Event()
    lost = "the ranks are being started again"
    options = {"is_away": away.is_set, "why_silent": lambda: lost if away.is_set() else ""}
    async with watching(started(), *steps(3), size=(120, 40), **options) as screen:
        await screen.until(lambda: screen.footer.startswith(" p bf16  c compare  f float16"))
        away.set()
        await screen.until(lambda: lost in screen.footer)
        assert "d detach" in screen.footer
        assert "q quit" in screen.footer
        assert "p bf16" not in screen.footer
        assert "space" not in screen.footer
        away.clear()
        await screen.until(lambda: screen.footer.startswith(" p bf16  c compare  f float16"))


# ------------------------------------------------------------------------------------- optimizers


def shown_optimizers(screen: Screen) -> tuple[str, str]:
    """Whose loss is shown, and which is in the line of the others."""
    titles = [name for name in ("generator", "discriminator") if f"loss of {name}" in screen.text]
    return titles[0], screen.lines[2].split()[2]


@awaited
async def test_o_shows_the_next_optimizer_in_all_panels_and_what_was_chosen_stays() -> None:
    late = time.time() - GAN[-1].time
    records = [replace(record, time=record.time + late) for record in GAN]
    async with watching(*records, size=(160, 50)) as screen:
        assert shown_optimizers(screen) == ("generator", DISCRIMINATOR)
        assert "o optimizer" in screen.footer
        await screen.press("o")
        assert shown_optimizers(screen) == ("discriminator", "generator")
        assert "AMP fp16" in screen.header
        for key in ("x", "n", "c"):  # measured in steps of the first, which comes to the front
            await screen.press(key)
            assert screen.app._view.front == ""
            await screen.press("o")
            assert screen.app._view.front == DISCRIMINATOR
        await screen.press("o")
        screen.session.fold(samples.steps(200, 900, optimizer=DISCRIMINATOR))
        await screen.until(lambda: screen.session.view().front == DISCRIMINATOR)
        await screen.until(lambda: any(it.step == 900 for it in screen.app._view.optimizers))
        assert shown_optimizers(screen)[0] == "generator"


# --------------------------------------------------------------------------- when and how it leaves
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
            await screen.end(STOPPED)
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
