"""The player: what is due is folded, at any speed, and the clock can be set to any moment."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.event_words import event_text
from amptui.records.run import Note, PauseChanged, Record, RunFinished
from amptui.tui.replay.player import LONGEST_WAIT_SECONDS, Player
from tests.builders import view_of
from tests.builders import write_journal as write
from tests.golden import Goldens
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step


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
        return self.player.position.state

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
        at, view, wait = self.player.position, self.player.look(), self.settle()
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
        seconds = clock.player.position.seconds
        expected = view_of(*(record for record in records if record.time - 100.0 <= seconds))
        view = clock.player.look()
        assert (view.step, view.state, view.events) == (expected.step, expected.state, expected.events)
        assert view.loss.recent.tolist() == expected.loss.recent.tolist()
