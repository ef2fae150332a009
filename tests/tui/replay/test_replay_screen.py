"""The screen of a replay: driven by keys, moved by the player, and refusing what only a training can do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from amptui.records.answers import REQUEST_KINDS
from amptui.records.control import Control
from amptui.records.run import PauseChanged, Record, RunFailed
from amptui.tui.keys import KEYS
from amptui.tui.replay import Player, ReplayScreen
from amptui.tui.run_screen import RunScreen
from tests.builders import write_journal as write
from tests.golden import Goldens
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step, xray
from tests.tui.watching import SIZE, Action, Screen, Script, awaited, said_after

LEAVING = {"leave", "interrupt"}


class Replay(Screen):
    """A replay in place of a training: its player stands still until keys move it."""

    def __init__(self, folder: Path, records: list[Record]) -> None:
        super().__init__()
        self.player = Player(write(folder, records) / "journal.jsonl", speed=1.0)
        self.player.toggle_pause()
        self.control = Control()
        self.app = ReplayScreen(self.player, self.control)

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
    async with screen.app.run_test(size=size) as screen.pilot:
        await screen.until(lambda: "replay paused" in screen.footer)
        yield screen
    screen.player.stop()


async def _seek_the_end(screen: Screen) -> None:
    assert isinstance(screen, Replay)
    await screen.press("end")
    await screen.until(lambda: screen.player.state == "ended")
    last = screen.player.look()
    await screen.until(lambda: screen.app._view is last and "replay ended" in screen.footer)


END = Action("seek the end", _seek_the_end)
ASKED = PauseChanged(time=200.5, step=100, paused=True, reason="the loss scale fell below its floor")
FAILED = RunFailed(time=201.0, step=0, error="out of memory", traceback="Traceback")

SCRIPTS = {
    "what only a training can do is refused": Script([], ["p", "m", "d", "s", "n"]),
    "x shows the X-ray that was taken up to here": Script([xray(101, time=201.0)], ["x", END, "x", "escape"]),
    "pages lead to each other and stay where there is nothing to show": Script(
        [xray(101, time=201.0)], ["t", "x", "escape", END, "t", "x", "g", "escape"]
    ),
    "a run that failed or paused to ask is only looked at": Script([ASKED, FAILED], [END, "t"]),
    "keys that only look do what they do beside a training": Script([], ["l plus tab"]),
    **{f"{key} leaves without a question": Script([], [key]) for key in ("q", "ctrl+q", "ctrl+c")},
}


def test_a_replay_says_what_was_approved(
    tmp_path: Path, goldens: Goldens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunScreen, "MESSAGE_SECONDS", 3600.0)

    async def play(script: Script, folder: Path) -> str:
        async with replaying(folder, *script.before, size=SIZE) as screen:
            return await said_after(["f5", *script.actions], screen)

    transcripts = []
    for number, (name, script) in enumerate(SCRIPTS.items()):
        (folder := tmp_path / str(number)).mkdir()
        transcripts.append(f"# {name}\n{asyncio.run(play(script, folder))}")
    goldens.check("scripts/replay", "\n\n".join(transcripts))


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
        await screen.press("full_stop", "full_stop", "space")
        await screen.until(lambda: "replay ×4 0:00 of 1:40  space pause" in screen.footer)
        await screen.press("end")
        await screen.until(lambda: "replay ended 1:40 of 1:40  space restart" in screen.footer)


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
        assert [control.newest(kind) for kind in REQUEST_KINDS] == [None] * len(REQUEST_KINDS)
        assert not screen.has_left


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
