"""The player: what is due is folded, at any speed, and the clock can be set to any moment."""

import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RunFolderError
from amptui.diagnosis.event_words import event_text
from amptui.records.run import Note, PauseChanged, Record, RunFinished
from amptui.telemetry.session import Session
from amptui.tui.replay.player import FASTEST, LONGEST_WAIT_SECONDS, SLOWEST, Player
from tests.gan_journal import DISCRIMINATOR, write_gan_journal
from tests.reports.export.recorded import write
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step


def recorded(steps: int) -> list[Record]:
    """A run that takes a second a step: it begins at 100 and its step n ends n seconds later."""
    return [started(), *(step(n, time=100.0 + n, precision="fp32") for n in range(1, steps + 1))]


class Clock:
    """A player, and the monotonic clock that it is told."""

    def __init__(self, folder: Path, records: list[Record], *, speed: float = 1.0) -> None:
        self.player = Player(write(folder, records) / "journal.jsonl", speed=speed)
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


def test_it_plays_at_the_pace_of_the_recorded_run(tmp_path: Path) -> None:
    clock = Clock(tmp_path, recorded(20))
    assert (clock.step, clock.state) == (0, "playing")
    clock.run(3.2)
    assert clock.step == 3
    clock.run(4)
    assert clock.step == 7
    assert clock.player.now == pytest.approx(107.2)


def test_it_says_when_there_is_more_to_do(tmp_path: Path) -> None:
    clock = Clock(tmp_path, recorded(3), speed=4.0)
    assert clock.settle() == pytest.approx(0.25)


def test_speed_changes_by_factors_within_bounds(tmp_path: Path) -> None:
    clock = Clock(tmp_path, recorded(100))
    clock.player.change_speed(4)
    clock.run(2)
    assert clock.step in (7, 8)
    for _ in range(30):
        clock.player.change_speed(2)
    assert clock.player.position.speed == FASTEST
    for _ in range(30):
        clock.player.change_speed(1 / 2)
    assert clock.player.position.speed == SLOWEST


def test_a_pause_stands_still_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    clock = Clock(tmp_path, recorded(20))
    clock.run(2.2)
    clock.player.toggle_pause()
    clock.run(60)
    assert (clock.step, clock.state) == (2, "paused")
    assert math.isinf(clock.settle())
    clock.player.toggle_pause()
    clock.run(1)
    assert (clock.step, clock.state) == (3, "playing")


def test_at_the_end_it_stays_until_it_is_begun_again(tmp_path: Path) -> None:
    end = RunFinished(time=103.5, steps=3, seconds=3.5, reason="done")
    clock = Clock(tmp_path, [*recorded(3), end])
    clock.run(10)
    assert (clock.step, clock.state, clock.player.look().state) == (3, "ended", "finished")
    assert clock.player.position.seconds == clock.player.position.total_seconds == 3.5
    assert math.isinf(clock.settle())
    clock.player.toggle_pause()
    clock.settle()
    assert (clock.step, clock.state, clock.player.look().state) == (0, "playing", "running")


def test_a_long_silence_is_passed_over(tmp_path: Path) -> None:
    later = Note(time=100.0 + 90_000, severity="info", text="the next day")
    clock = Clock(tmp_path, [*recorded(2), later, step(3, time=later.time + 1)])
    clock.run(2 + LONGEST_WAIT_SECONDS - 0.5)
    assert clock.player.look().events[0].about != later
    clock.run(1)
    assert clock.player.look().events[0].about == later
    clock.run(1)
    assert (clock.step, clock.state) == (3, "ended")


def test_a_process_that_was_suspended_goes_on_where_it_was(tmp_path: Path) -> None:
    clock = Clock(tmp_path, recorded(100))
    clock.now += 3600
    clock.settle()
    assert clock.step == 1


def test_seeking_goes_on_and_back_and_the_old_view_stands_until_the_new_one_is_there(tmp_path: Path) -> None:
    clock = Clock(tmp_path, recorded(4000))
    clock.player.seek(3500.0)
    assert clock.state == "seeking"
    clock.settle()
    assert (clock.step, clock.state) == (3500, "playing")
    clock.player.seek(2000.0)
    steps_shown = set()
    while clock.state == "seeking":
        steps_shown.add(clock.step)
        clock.player.advance(clock.now)
    assert steps_shown == {3500}
    assert clock.step == 2000


def test_skipping_goes_by_twentieths_and_stops_at_the_ends(tmp_path: Path) -> None:
    clock = Clock(tmp_path, recorded(200))
    for shares, step_after in ((1, 10), (3, 40), (-1, 30), (-9, 0), (100, 200)):
        clock.player.skip(shares)
        clock.settle()
        assert clock.step == step_after
    assert clock.state == "ended"


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
        session = Session()
        session.fold(record for record in records if record.time - 100.0 <= clock.player.position.seconds)
        expected, view = session.view(), clock.player.look()
        assert (view.step, view.state, view.events) == (expected.step, expected.state, expected.events)
        assert view.loss.recent.tolist() == expected.loss.recent.tolist()


@pytest.mark.parametrize("content", ["", "nonsense\n", '{"type":"FromTheFuture","time":1}\n'])
def test_a_journal_without_a_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "journal.jsonl").write_text(content)
    with pytest.raises(RunFolderError, match="holds no records"):
        Player(tmp_path / "journal.jsonl", speed=1.0)


def test_a_thread_plays_until_it_is_stopped(tmp_path: Path) -> None:
    player = Player(write(tmp_path, recorded(5)) / "journal.jsonl", speed=1.0)
    player.stop()
    player = Player(tmp_path / "journal.jsonl", speed=1000.0)
    player.start()
    while player.position.state != "ended":
        pass
    assert player.look().step == 5
    player.stop()
    assert player.failure is None


def test_what_the_recorded_run_paused_to_ask_is_not_asked_again(tmp_path: Path) -> None:
    pause = PauseChanged(time=101.0, step=1, paused=True, reason="at the floor")
    clock = Clock(tmp_path, [*recorded(1), pause])
    clock.run(3)
    view = clock.player.look()
    assert (view.state, view.pause_reason) == ("paused", "")
    assert "at the floor" in event_text(view.events[0])


def test_a_replay_shows_whichever_optimizer_is_chosen(tmp_path: Path) -> None:
    player = Player(write_gan_journal(tmp_path / "gan", 60) / "journal.jsonl", speed=1.0)
    player.seek(1000.0)
    moment = time.monotonic()
    while not player.advance(moment):
        pass
    assert player.look().front == ""
    assert player.look(DISCRIMINATOR).step == 118
    player.seek(0.0)
    player.advance(moment)
    assert player.look(DISCRIMINATOR).front == "", "it has not come yet"
