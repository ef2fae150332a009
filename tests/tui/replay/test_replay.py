"""A replay as a program, in a real terminal and without torch, and the recorded run that ships with it."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RunFolderError, UsageError
from amptui.diagnosis.event_words import event_text
from amptui.process.viewer import replay
from amptui.records.findings import ModulesTraced, XRayTaken
from amptui.records.run import Note, PauseChanged, PrecisionChanged, Record, RunFinished
from amptui.runs.journal import JournalReader
from amptui.telemetry.health import judge_xray
from amptui.tui.replay import LONGEST_WAIT_SECONDS, Player
from tests.builders import StepRow, one_by_one, view_of
from tests.builders import write_journal as write
from tests.checkout import ROOT
from tests.golden import Goldens
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step
from tests.terminal import Terminal
from tests.warm import WarmSource

JOURNAL = ROOT / "demo" / "mnist-deep.jsonl"

PROGRAM = """
import sys
from pathlib import Path
from amptui.process.viewer import replay
status = replay(Path(sys.argv[1]), speed=float(sys.argv[2]))
print("loaded", [name for name in ("torch", "psutil", "pynvml") if name in sys.modules])
sys.exit(status)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write(tmp_path / "run", [started(), *(step(n, time=100.0 + n) for n in range(1, 101))])
    with (folder / "journal.jsonl").open("a") as file:
        file.write("{half")
    return folder


def playing(run: Path, speed: float, warm: WarmSource | None = None, *, patch: str = "") -> Terminal:
    return Terminal([sys.executable, "-c", patch + PROGRAM, str(run), str(speed)], warm=warm)


@pytest.mark.ci
def test_a_run_is_played_moved_and_left(run: Path) -> None:
    with playing(run, 1000) as terminal:
        terminal.wait_for("replay ended 1:40 of 1:40")
        terminal.wait_for(r"step\s+100/")
        # At that speed its next end would come before anybody sees it play.
        terminal.press(",,,,,,,,,\x1b[H")
        terminal.wait_for(r"replay ×1\.95312 [01]:\d\d of 1:40")
        terminal.press("\x1b[F")
        terminal.wait_for("replay ended 1:40 of 1:40")
        terminal.press("q")
        assert terminal.wait() == 0
        assert re.search(r"amptui: passed over: .*cut off", terminal.text)
        assert "loaded []" in terminal.text
        assert terminal.modes == terminal.modes_before


@pytest.mark.ci
def test_a_journal_that_cannot_be_read_on_ends_the_replay_with_the_reason(run: Path) -> None:
    with playing(run, 1000) as terminal:
        terminal.wait_for("replay ended 1:40 of 1:40")
        (run / "journal.jsonl").unlink()
        terminal.press("\x1b[H")
        assert terminal.wait() == 1
        assert re.search(rb"cannot read the journal", terminal.written)
        assert terminal.modes == terminal.modes_before


@pytest.mark.ci
def test_a_fault_of_the_screen_is_a_failure(run: Path) -> None:
    broken = "from amptui.tui.frame import Frame\nFrame.draw = None\n"
    # A traceback's frames hold much more where torch is loaded, and are all written out.
    with playing(run, 1, patch=broken) as terminal:
        assert terminal.wait() == 1
        assert terminal.modes == terminal.modes_before


def test_without_a_terminal_it_says_what_else_there_is(run: Path) -> None:
    with pytest.raises(UsageError, match="a replay needs a terminal; `amptui export` writes a run to a file"):
        replay(run, speed=1.0)


def test_a_folder_without_a_run_is_told_before_the_screen_comes(tmp_path: Path) -> None:
    with pytest.raises((RunFolderError, UsageError)):
        replay(tmp_path, speed=1.0)


def test_the_demo_is_whole_and_small_and_ends_with_an_answer() -> None:
    reader = JournalReader(JOURNAL)
    records = list(one_by_one(reader))
    assert (reader.damaged_lines, reader.torn) == (0, False)
    assert JOURNAL.stat().st_size < 1_000_000
    assert sum(isinstance(record, StepRow) for record in records) == 190
    record_steps = {
        type(r): r.step for r in records if isinstance(r, PrecisionChanged | XRayTaken | ModulesTraced)
    }
    assert record_steps == {PrecisionChanged: 52, XRayTaken: 116, ModulesTraced: 166}
    view = view_of(*records)
    assert view.state == "finished"
    assert (view.comparison.speedup or 0) > 1
    assert view.numerics.xray is not None
    assert judge_xray(view.numerics.xray).state == "agree"


# --------------------------------------------------------------------------------------- the player
def recorded(steps: int) -> list[Record]:
    """A run that takes a second a step: it begins at 100 and its step n ends n seconds later."""
    return [started(), *(step(n, time=100.0 + n, precision="fp32") for n in range(1, steps + 1))]


Move = float | str
"""Seconds that go by, or what is asked of the player."""


class Clock:
    """A player, and the monotonic clock that it is told."""

    def __init__(self, folder: Path, records: list[Record]) -> None:
        self.player = Player(write(folder, records) / "journal.jsonl", speed=1.0)
        self.now = 1000.0
        self.settle()

    @property
    def step(self) -> int:
        return self.player.look().step

    @property
    def state(self) -> str:
        return self.player.state

    def settle(self) -> float:
        """Let it fold until nothing is due at this moment; when there will be more."""
        for _ in range(100_000):
            if wait := self.player.advance(self.now):
                return wait
        raise AssertionError("it never settles")

    def run(self, seconds: float) -> None:
        """Time goes by, a tenth of a second at a time."""
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            self.settle()

    def do(self, move: Move) -> None:
        """Let time go by, or ask the player for something."""
        if isinstance(move, float):
            self.run(move)
            return
        what, _, number = move.partition(" ")
        match what:
            case "speed":
                self.player.change_speed(float(number))
            case "pause":
                self.player.toggle_pause()
            case "skip":
                self.player.skip(int(number))
            case "suspend":
                self.now += float(number)
        self.settle()

    def said(self) -> str:
        """Where it is, what a screen shows of it, and when there is more to do."""
        at, view, wait = self.player, self.player.look(), self.settle()
        newest = event_text(view.events[0]) if view.events else "nothing"
        return (
            f"{at.state} ×{at.speed:g} {at.seconds:.1f} of {at.total_seconds:g} s, at {self.player.now:.1f}, "
            f"more in {wait:.2f} s; step {view.step}, {view.state}{view.pause_reason}, newest: {newest}"
        )


NEXT_DAY = Note(time=100.0 + 90_000, severity="info", text="the next day")
END = RunFinished(time=103.5, steps=3, seconds=3.5, reason="done")
ASKED = PauseChanged(time=101.0, step=1, paused=True, reason="at the floor")

PLAYED: dict[str, tuple[list[Record], Sequence[Move]]] = {
    "it plays at the pace of the recorded run": (recorded(20), [3.2, 4.0]),
    "speed changes by factors within bounds": (
        recorded(100),
        [*("speed 4", 2.2), *["speed 2"] * 12, *["speed 0.5"] * 18, 1.0],
    ),
    "a pause stands still for as long as it lasts": (recorded(20), [2.2, "pause", 60.0, "pause", 1.0]),
    "at the end it stays until it is begun again": ([*recorded(3), END], [10.0, "pause"]),
    "a long silence is passed over": (
        [*recorded(2), NEXT_DAY, step(3, time=NEXT_DAY.time + 1)],
        [2 + LONGEST_WAIT_SECONDS - 0.5, 1.0, 1.0],
    ),
    "a process that was suspended goes on where it was": (recorded(100), ["suspend 3600"]),
    "skipping goes by twentieths and stops at the ends": (
        recorded(200),
        ["skip 1", "skip 3", "skip -1", "skip -9", "skip 100"],
    ),
    "what the recorded run paused to ask is not asked again": ([*recorded(1), ASKED], [3.0]),
}


def test_it_plays_as_was_approved(tmp_path: Path, goldens: Goldens) -> None:
    lines = []
    for number, (name, (records, moves)) in enumerate(PLAYED.items()):
        clock = Clock(tmp_path / str(number), records)
        lines += [f"== {name}", clock.said()]
        for move in moves:
            clock.do(move)
            lines.append(f"{move}: {clock.said()}")
    goldens.check("scripts/player", "\n".join(lines))


@given(
    moves=st.lists(st.floats(-5, 55) | st.just("pause") | st.floats(0.1, 3).map(lambda s: (s,)), max_size=8)
)
def test_wherever_it_went_it_shows_what_a_screen_had_shown_then(
    tmp_path_factory: pytest.TempPathFactory, moves: list[object]
) -> None:
    records = recorded(50)
    clock = Clock(tmp_path_factory.mktemp("run"), records)
    for move in moves:
        if isinstance(move, float):
            clock.player.seek(move)
        elif isinstance(move, tuple):
            clock.run(move[0])
        else:
            clock.player.toggle_pause()
        clock.settle()
        seconds = clock.player.seconds
        expected = view_of(*(record for record in records if record.time - 100.0 <= seconds))
        view = clock.player.look()
        assert (view.step, view.state, view.events) == (expected.step, expected.state, expected.events)
        assert view.loss.recent.tolist() == expected.loss.recent.tolist()
