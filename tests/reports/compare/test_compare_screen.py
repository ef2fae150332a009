"""The screen of a comparison: what stands where, what its keys do, what it follows, and how it is left."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from amptui.reports.compare import compare_screen
from amptui.reports.compare import following as module
from amptui.reports.compare.axis_cursor import AxisCursor
from amptui.reports.compare.compare_frame import Choice, CompareFrame
from amptui.reports.compare.compare_screen import CompareApp
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.following import Following
from amptui.tui.canvas import Canvas
from amptui.tui.keyboard import MouseReported
from tests.golden import Goldens
from tests.reports.compare.compared_runs import (
    BF16,
    FP32,
    figures,
    many_groups,
    started,
    trained,
    validating,
    whole_run,
)
from tests.tui.watching import Shown, awaited

# ------------------------------------------------------------------------------------- what is drawn


def drawn(found: Compared | None, size: tuple[int, int] = (80, 24), **choice: Any) -> str:
    canvas = Canvas(*size)
    CompareFrame().draw(canvas, found, Choice(**choice))
    return "\n".join(line.rstrip() for line in canvas.lines())


def without_times() -> Compared:
    return compared(
        [
            figures([started(precision=name), *trained([1.0] * 5, precision=name, step_seconds=None)])
            for name in ("fp32", "bf16")
        ]
    )


def test_unusual_runs_are_drawn(goldens: Goldens) -> None:
    """Usual ones are among the surfaces that `tests/tui/test_goldens.py` holds."""
    broken = figures(whole_run([1.0] * 30 + [math.nan] * 30))
    silent = [figures([started()], name="one"), figures([started(precision="bf16")], name="two")]
    frames = {
        "nothing read yet": drawn(None),
        "no steps": drawn(compared(silent)),
        "no step times": drawn(without_times(), axis="seconds"),
        "NaN": drawn(compared([broken, figures(whole_run([2.0] * 60, precision="bf16"))])),
        "validations": drawn(
            compared([validating(50.0), validating(50.0, 40.0, precision="bf16")]), validation=True
        ),
        "ten groups": drawn(many_groups(), (100, 40)),
        "ten groups, small": drawn(many_groups(), (80, 18)),
    }
    pictures = "\n".join(f"== {name}\n{text}" for name, text in frames.items())
    goldens.check("reports/compare screen, unusual runs", pictures)


# ---------------------------------------------------------------------------------------------- keys


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(compare_screen, "FRAME_SECONDS", 0.02)


class Screen(Shown):
    app: CompareApp

    def __init__(self, journals: list[Path]) -> None:
        self.following = Following(journals, target=None)
        self.app = CompareApp(self.following)


@asynccontextmanager
async def shown(journals: list[Path], size: tuple[int, int] = (120, 40)) -> AsyncIterator[Screen]:
    screen = Screen(journals)
    async with screen.app.run_test(size=size) as screen.pilot:
        yield screen
        screen.following.stop()


SCRIPTS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "what is drawn": [
        ("x", "training loss by samples", {}),
        ("x", "training loss by training time", {}),
        ("x", "training loss by step", {}),
        ("r", "A fp32-seed1", {"log_y": False}),
        ("l", "A fp32-seed1", {"log_y": True}),
        ("v", "no run has a validation", {"validation": False}),
        ("down j k", "compare", {"top": 1}),
        ("up up", "compare", {"top": 0}),
        ("question_mark", "compare keys", {"shows_help": True}),
        ("x", "training loss by step", {"axis": "steps", "shows_help": False}),
    ],
    "a cursor": [
        ("left", "step 60, smoothed  A ", {}),
        ("home", "step 1, smoothed  A ", {}),
        ("right right left_square_bracket shift+right plus plus", "step 11, smoothed  A ", {}),
        ("minus", "step 11, smoothed  A ", {}),
        ("plus", "step 11, smoothed  A ", {}),
        ("r", "step 11, smoothed  A ", {"by_run": True}),
        ("down", "step 11, smoothed  A ", {"top": 1}),
        ("0", "step 11, smoothed  A ", {"cursor": AxisCursor(11.0)}),
        ("escape", "", {"cursor": None}),
        ("end x", "", {"cursor": None}),
    ],
}
"""Keys, what then stands on the screen, and what the screen has chosen."""


@pytest.mark.ci
@pytest.mark.parametrize("name", SCRIPTS)
def test_keys_change_what_is_drawn(name: str, goldens: Goldens) -> None:
    pictures: list[str] = []

    @awaited
    async def press() -> None:
        async with shown([*FP32, *BF16], (80, 24)) as screen:
            await screen.shows("training loss by step")
            for keys, words, chosen in SCRIPTS[name]:
                await screen.pilot.press(*keys.split())
                assert words in screen.text
                assert {what: getattr(screen.app.choice, what) for what in chosen} == chosen
                assert screen.app.left is None
                pictures.extend([f"== {keys}", *(line.rstrip() for line in screen.text.splitlines())])

    press()
    goldens.check(f"reports/compare keys, {name}", "\n".join(pictures))


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
    ("key", "left"),
    [
        ("q", ""),
        pytest.param("escape", "", marks=pytest.mark.ci),
        pytest.param("ctrl+q", "", marks=pytest.mark.ci),
        ("ctrl+c", "interrupted"),
    ],
)
def test_keys_that_leave(key: str, left: str) -> None:
    @awaited
    async def leave() -> None:
        async with shown([*FP32]) as screen:
            await screen.shows("one group")
            await screen.pilot.press(key)
            assert screen.app.left == left

    leave()
