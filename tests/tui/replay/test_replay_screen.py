"""The screen of a replay: driven by keys, moved by the player, and refusing what only a training can do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import question_words, safe_words, worth_words
from amptui.diagnosis.speed import why_no_ratio
from amptui.records.control import REQUESTS, Control
from amptui.records.run import Note, PauseChanged, PrecisionChanged, Record, RunFailed
from amptui.telemetry.view import Comparison
from amptui.tui.keys import KEYS, RUN_KEYS
from amptui.tui.replay.player import Player
from amptui.tui.replay.screen import MOVING, REPLAY_KEYS, ReplayApp
from tests.diagnosis.amp_situations import SITUATIONS, view_of
from tests.reports.export.recorded import write
from tests.telemetry.record_samples import device, float8_window, step, traced, xray
from tests.telemetry.record_samples import run as started
from tests.tui.watching import Screen, awaited

LEAVING = {"ask_quit", "interrupt"}


class Replay(Screen):
    """A replay in place of a training: its player stands still until keys move it."""

    def __init__(self, folder: Path, records: list[Record]) -> None:
        super().__init__()
        self.player = Player(write(folder, records) / "journal.jsonl", speed=1.0)
        self.player.toggle_pause()
        self.control = Control()
        self.app = ReplayApp(self.player, self.control)

    def is_at(self, step: int, words: str) -> bool:
        """Whether it has come there and says so."""
        return self.app._view.step == step and words in self.footer and "seeking" not in self.footer


def recorded(steps: int) -> list[Record]:
    """A second a step."""
    return [started(amp_precision="bf16"), *(step(n, time=100.0 + n) for n in range(1, steps + 1))]


@asynccontextmanager
async def replaying(
    folder: Path, *records: Record, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[Replay]:
    screen = Replay(folder, [*recorded(100), *records])
    async with screen.app.run_test(size=size) as pilot:
        screen.pilot = pilot
        await screen.until(lambda: "replay paused" in screen.footer)
        yield screen
    screen.player.stop()


@awaited
async def test_the_footer_says_where_it_is_and_what_the_keys_do(tmp_path: Path) -> None:
    async with replaying(tmp_path) as screen:
        assert screen.footer.startswith(
            " replay paused 0:00 of 1:40  space play  . faster  , slower  > ahead"
        )
        assert "q quit" in screen.footer
        await screen.press("full_stop", "full_stop", "space")
        await screen.until(lambda: "replay ×4 0:00 of 1:40  space pause" in screen.footer)
        await screen.press("end")
        await screen.until(lambda: "replay ended 1:40 of 1:40  space restart" in screen.footer)


@awaited
async def test_the_help_lists_the_keys_of_a_replay(tmp_path: Path) -> None:
    async with replaying(tmp_path) as screen:
        await screen.press("question_mark")
        assert all(key.meaning in screen.text for key in REPLAY_KEYS)
        assert "switch the running training" not in screen.text


@pytest.mark.ci
@awaited
async def test_keys_move_it_through_the_run(tmp_path: Path) -> None:
    async with replaying(tmp_path) as screen:
        for key, where in (
            ("greater_than_sign", (5, "0:05 of 1:40")),
            ("right", (10, "0:10 of 1:40")),
            ("left", (5, "0:05 of 1:40")),
            ("end", (100, "1:40 of 1:40")),
            ("less_than_sign", (95, "1:35 of 1:40")),
            ("home", (0, "0:00 of 1:40")),
        ):
            await screen.press(key)
            await screen.until(partial(screen.is_at, *where))


@pytest.mark.ci
@awaited
async def test_no_key_asks_anything_of_the_run(tmp_path: Path) -> None:
    async with replaying(tmp_path) as screen:
        await screen.press("end")
        await screen.until(lambda: "replay ended" in screen.footer)
        for press in (press for key in KEYS for press in key.presses if key.action not in LEAVING):
            await screen.press(press, "escape")
        control = screen.control
        assert control.stop_reason is None
        assert [control.newest(kind) for kind in REQUESTS.values()] == [None] * len(REQUESTS)
        assert not screen.has_left


@awaited
async def test_what_only_a_training_can_do_is_refused_in_words(tmp_path: Path) -> None:
    async with replaying(tmp_path) as screen:
        for key in ("p", "m", "d", "s"):
            await screen.press(key)
            assert "this is a replay: the recorded run cannot change" in screen.notice


@awaited
async def test_x_shows_the_x_ray_that_was_taken_up_to_here(tmp_path: Path) -> None:
    async with replaying(tmp_path, xray(101, time=201.0)) as screen:
        await screen.press("x")
        assert "no X-ray was recorded up to this point" in screen.notice
        await screen.press("end")
        await screen.until(lambda: screen.app._view.numerics.xray is not None)
        await screen.press("x")
        assert "X-ray" in screen.lines[0]
        assert "replay ended" not in screen.lines[-1], "an overlay says there what its own keys do"
        await screen.press("escape")
        assert "replay ended" in screen.footer


@awaited
async def test_f_shows_float8s_operands_where_the_run_was_in_fp8(tmp_path: Path) -> None:
    switched = PrecisionChanged(time=201.0, step=101, previous="fp32", current="fp8")
    in_fp8 = step(101, precision="fp8", time=201.5)
    records = switched, in_fp8, replace(float8_window(101), time=202.0)
    async with replaying(tmp_path, *records) as screen:
        await screen.press("f")
        assert screen.state.focus == "numerics"
        await screen.press("f", "end")
        await screen.until(lambda: screen.app._view.numerics.float8_window is not None)
        await screen.press("f")
        assert screen.overlay == "float8"
        assert "float8 operands of step 101" in screen.lines[0]
        await screen.press("f")
        assert screen.overlay is None


@awaited
async def test_pages_lead_to_each_other_and_stay_where_there_is_nothing_to_show(tmp_path: Path) -> None:
    async with replaying(tmp_path, xray(101, time=201.0), traced(101, time=202.0)) as screen:
        await screen.press("t")
        for key in ("x", "n"):
            await screen.press(key)
            assert screen.overlay == "output"
        await screen.press("escape", "end")
        await screen.until(lambda: screen.app._view.numerics.trace is not None)
        for key, name in {"t": "output", "x": "x-ray", "n": "events", "g": "metrics"}.items():
            await screen.press(key)
            assert screen.overlay == name
        await screen.press("escape")
        assert screen.overlay is None


@pytest.mark.ci
@awaited
async def test_n_shows_the_trace_that_was_recorded_up_to_here(tmp_path: Path) -> None:
    later = Note(time=202.0, severity="info", text="later")
    async with replaying(tmp_path, traced(101, time=201.0), later) as screen:
        await screen.press("n")
        assert "no trace was recorded up to this point" in screen.notice
        await screen.press("end")
        await screen.until(lambda: screen.app._view.numerics.trace is not None)
        await screen.press("n")
        assert "event 2 of" in screen.lines[0]
        assert "features.12.conv" in screen.text


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
@awaited
async def test_it_is_left_without_a_question(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path) as screen:
        await screen.press(key)
        assert screen.has_left
        assert screen.app.left == ("interrupted" if key == "ctrl+c" else "")


@awaited
async def test_a_run_that_failed_or_paused_to_ask_is_only_looked_at(tmp_path: Path) -> None:
    pause = PauseChanged(time=200.5, step=100, paused=True, reason="the loss scale fell below its floor")
    failed = RunFailed(time=201.0, step=0, error="out of memory", traceback="Traceback")
    async with replaying(tmp_path, pause, failed) as screen:
        await screen.press("end")
        await screen.until(lambda: "replay ended" in screen.footer)
        assert "out of memory" in screen.text
        assert "failed" in screen.header
        assert not screen.has_left


@awaited
async def test_a_recorded_answer_on_fp8_is_that_of_the_training(tmp_path: Path) -> None:
    name = "emulated_fp8_with_an_outlier"
    screen = Replay(tmp_path, [*SITUATIONS[name]()])
    answer = amp_answer(view_of(name))
    async with screen.app.run_test(size=(200, 60)) as pilot:
        screen.pilot = pilot
        await screen.until(lambda: "replay paused" in screen.footer)
        await screen.press("end")
        await screen.until(lambda: "replay ended" in screen.footer)
        assert worth_words(answer) in screen.lines[1]
        assert safe_words(answer) in screen.lines[1]
        assert question_words(answer.precision) in screen.text
    screen.player.stop()


@awaited
async def test_nothing_tells_to_press_a_key_of_a_training(tmp_path: Path) -> None:
    async with replaying(tmp_path, device(200.5, "fp32", 5), size=(200, 60)) as screen:
        await screen.press("end")
        await screen.until(lambda: "replay ended" in screen.footer)
        assert why_no_ratio(Comparison(missing="low")) in screen.text
        assert "press " not in screen.text
        assert screen.app._view.device is not None
        assert "old" not in screen.text, "samples are as old as they were then"


def test_every_key_of_the_screen_views_moves_quits_or_is_refused() -> None:
    asking = {key.action for key in RUN_KEYS} - {key.action for key in MOVING}
    assert {"toggle_precision", "choose_precision", "detach", "write_checkpoint"} <= asking
    presses = [press for key in REPLAY_KEYS for press in key.presses]
    assert len(presses) == len(set(presses))


@pytest.mark.ci
@awaited
async def test_an_enlarged_chart_takes_the_arrows(tmp_path: Path) -> None:
    async with replaying(tmp_path) as screen:
        await screen.press("end")
        await screen.until(partial(screen.is_at, 100, "1:40 of 1:40"))
        await screen.press("g", "enter", "left", "left")
        assert "step 99 " in screen.text
        await screen.press("escape", "escape", "escape")
        while screen.state.focus != "loss":
            await screen.press("tab")
        await screen.press("home")
        assert "step 1 " in screen.text
        assert screen.is_at(100, "1:40 of 1:40"), "the replay has not moved"
        await screen.press("escape", "escape", "left")
        await screen.until(partial(screen.is_at, 95, "1:35 of 1:40"))
