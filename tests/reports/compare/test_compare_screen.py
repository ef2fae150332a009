"""The screen of a comparison: what stands where, what its keys do, what it follows, and how it is left."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from amptui.reports.compare import compare_screen
from amptui.reports.compare import following as module
from amptui.reports.compare.compare_frame import Choice, CompareFrame
from amptui.reports.compare.compare_screen import CompareScreen
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.following import Following
from amptui.tui.canvas import Canvas
from amptui.tui.panels.screen_state import ScreenState
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
    CompareFrame().draw(canvas, found, Choice(**choice), ScreenState())
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


def test_scrolling_ends_at_the_last_line() -> None:
    frame = CompareFrame()
    frame.top = 99
    frame.draw(Canvas(80, 24), many_groups(), Choice(), ScreenState())
    assert 0 < frame.top < 99


# ---------------------------------------------------------------------------------------------- keys


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(compare_screen, "FRAMES_PER_SECOND", 50.0)


class Screen(Shown):
    app: CompareScreen

    def __init__(self, journals: list[Path]) -> None:
        self.following = Following(journals, target=None)
        self.app = CompareScreen(self.following)


@asynccontextmanager
async def shown(journals: list[Path], size: tuple[int, int] = (120, 40)) -> AsyncIterator[Screen]:
    screen = Screen(journals)
    async with screen.app.run_test(size=size) as screen.pilot:
        yield screen


SCRIPT: list[tuple[str, str, dict[str, Any]]] = [
    ("right", "training loss by samples", {"axis": "samples"}),
    ("right", "training loss by training time", {"axis": "seconds"}),
    ("left left", "training loss by step", {"axis": "steps"}),
    ("tab", "F fp32-seed1", {"by_run": True}),
    ("l", "│     log ", {"by_run": True}),
    ("v", "no run has a validation", {"validation": False}),
    ("down j k", "compare", {"top": 1}),
    ("up up", "compare", {"top": 0}),
    ("question_mark", "compare keys", {}),
    ("right", "training loss by step", {"axis": "steps"}),
]
"""Keys, what then stands on the screen, and what the screen has chosen."""


@pytest.mark.ci
@awaited
async def test_keys_change_what_is_drawn() -> None:
    async with shown([*FP32, *BF16], (80, 24)) as screen:
        await screen.shows("training loss by step")
        for keys, words, chosen in SCRIPT:
            await screen.pilot.press(*keys.split())
            assert words in screen.text
            assert chosen.items() <= {**asdict(screen.app.choice), "top": screen.app._frame.top}.items()
            assert screen.app.left is None


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
