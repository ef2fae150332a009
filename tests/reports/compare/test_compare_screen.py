"""The comparison's screen at work: its keys, what it follows, and how it is left."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amptui.records import codec
from amptui.reports.compare import compare_screen
from amptui.reports.compare import following as module
from amptui.reports.compare.compare_frame import KEYS
from amptui.reports.compare.compare_screen import CompareApp
from amptui.reports.compare.following import Following
from amptui.tui.keyboard import MouseReported
from tests.reports.compare.compared_runs import BF16, FP32, folder, trained, whole_run
from tests.tui.watching import ENOUGH_SECONDS, awaited

if TYPE_CHECKING:
    from textual.pilot import Pilot


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(compare_screen, "FRAME_SECONDS", 0.02)


class Screen:
    def __init__(self, journals: list[Path]) -> None:
        self.following = Following(journals, target=None)
        self.app = CompareApp(self.following)
        self.pilot: Pilot[None]

    @property
    def text(self) -> str:
        dashboard = self.app._dashboard
        return "\n".join(dashboard.render_line(y).text for y in range(dashboard.size.height))

    async def shows(self, words: str) -> None:
        for _ in range(int(ENOUGH_SECONDS / 0.02)):
            if words in self.text:
                return
            await self.pilot.pause(0.02)
        raise AssertionError(f"{words!r} never stood on the screen:\n{self.text}")


@asynccontextmanager
async def shown(journals: list[Path], size: tuple[int, int] = (120, 40)) -> AsyncIterator[Screen]:
    screen = Screen(journals)
    async with screen.app.run_test(size=size) as screen.pilot:
        yield screen
        screen.following.stop()


@pytest.mark.ci
@awaited
async def test_keys_change_what_is_drawn() -> None:
    async with shown([*FP32, *BF16], (80, 24)) as screen:
        await screen.shows("training loss by step")
        await screen.pilot.press("x")
        assert "training loss by samples" in screen.text
        await screen.pilot.press("x")
        assert "training loss by training time" in screen.text
        await screen.pilot.press("x")
        assert "training loss by step" in screen.text
        await screen.pilot.press("r")
        assert "A fp32-seed1" in screen.text
        assert not screen.app.choice.log_y
        await screen.pilot.press("l")
        assert screen.app.choice.log_y
        await screen.pilot.press("v")
        assert not screen.app.choice.validation
        assert "no run has a validation" in screen.text
        await screen.pilot.press("down", "j", "k")
        assert screen.app.choice.top == 1
        await screen.pilot.press("up", "up")
        assert screen.app.choice.top == 0
        await screen.pilot.press("question_mark")
        assert "compare keys" in screen.text
        await screen.pilot.press("x")  # closes the help, and nothing else
        assert "compare keys" not in screen.text
        assert screen.app.choice.axis == "steps"


@pytest.mark.ci
@awaited
async def test_the_help_scrolls_where_not_all_of_it_fits() -> None:
    async with shown([*FP32, *BF16], (40, 12)) as screen:
        await screen.shows("training loss by step")
        await screen.pilot.press("question_mark")
        assert "quit; running trainings continue" not in screen.text
        seen = first = screen.text
        for _ in range(6):
            await screen.pilot.press("pagedown")
            seen += screen.text
        words = " ".join(seen.replace("│", " ").split())
        for end in ("or by training time", "quit; running trainings continue", "NaN or Inf."):
            assert end in words
        assert screen.app.choice.shows_help
        await screen.pilot.press("escape")
        assert not screen.app.choice.shows_help
        await screen.pilot.press("question_mark")
        assert screen.text == first, "it opens at its beginning again"


@pytest.mark.ci
@awaited
async def test_a_cursor_reads_the_curves() -> None:
    async with shown([*FP32, *BF16], (80, 24)) as screen:
        await screen.shows("training loss by step")
        await screen.pilot.press("left")
        assert "step 60, smoothed  A " in screen.text
        assert "+ - zoom" in screen.text
        await screen.pilot.press("home")
        assert "step 1, smoothed  A " in screen.text
        await screen.pilot.press("right", "right", "left_square_bracket", "shift+right", "plus", "plus")
        assert "step 11, smoothed  A " in screen.text
        assert screen.app.choice.cursor is not None
        assert screen.app.choice.cursor.window is not None
        await screen.pilot.press("r")
        assert "step 11, smoothed  A " in screen.text
        await screen.pilot.press("down")
        assert screen.app.choice.top == 1
        await screen.pilot.press("0")
        assert screen.app.choice.cursor.window is None
        await screen.pilot.press("escape")
        assert screen.app.choice.cursor is None
        assert screen.app.left is None
        assert "smoothed  A " not in screen.text
        await screen.pilot.press("end", "x")
        assert screen.app.choice.cursor is None


@pytest.mark.ci
@awaited
async def test_the_mouse_moves_the_cursor_and_scrolls() -> None:
    async with shown([*FP32, *BF16], (80, 24)) as screen:
        await screen.shows("training loss by step")
        screen.app.post_message(MouseReported("press", 30, 3))
        await screen.pilot.pause()
        assert screen.app.choice.cursor is None, "text can be selected until there is one"
        await screen.pilot.press("end")
        for x, line, words in ((10, 3, "step 1,"), (44, 3, "step 31,"), (77, 3, "step 60,")):
            screen.app.post_message(MouseReported("press", x, line))
            await screen.shows(f"{words} smoothed  A ")
        for x, line in ((9, 3), (78, 3), (44, 0), (44, 20)):
            screen.app.post_message(MouseReported("drag", x, line))
            await screen.pilot.pause()
            assert "step 60, smoothed  A " in screen.text
        screen.app.post_message(MouseReported("wheel down", 44, 20))
        await screen.pilot.pause()
        assert screen.app.choice.top == 1


@pytest.mark.parametrize(
    ("key", "left"), [("q", ""), ("escape", ""), ("ctrl+q", ""), ("ctrl+c", "interrupted")]
)
def test_keys_that_leave(key: str, left: str) -> None:
    @awaited
    async def leave() -> None:
        async with shown([*FP32]) as screen:
            await screen.shows("one group")
            await screen.pilot.press(key)
            assert screen.app.left == left

    leave()


@awaited
async def test_a_running_run_is_followed(tmp_path: Path) -> None:
    runs = [whole_run()[:-1], whole_run(2.0, precision="bf16")]
    journals = [folder(tmp_path / f"r{i}", records) / "journal.jsonl" for i, records in enumerate(runs)]
    async with shown(journals) as screen:
        await screen.shows("A FP32")
        with journals[0].open("a") as file:
            file.writelines(f"{codec.dumps(step)}\n" for step in trained([1.0] * 47, first=31))
        await screen.shows("77")


@awaited
async def test_a_journal_that_cannot_be_read_ends_the_screen(tmp_path: Path) -> None:
    async with shown([FP32[0], tmp_path / "none"]) as screen:
        for _ in range(int(ENOUGH_SECONDS / 0.02)):
            if screen.app.left is not None:
                break
            await screen.pilot.pause(0.02)
        assert screen.app.left == ""
        assert screen.following.failure is not None


def test_each_key_has_an_action() -> None:
    for key in KEYS:
        assert callable(getattr(CompareApp, f"action_{key.action}"))
    presses = [press for key in KEYS for press in key.presses]
    assert len(presses) == len(set(presses))
