"""The list on a screen: keys move, filter, select, remove and choose; the cursor stays on its run."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from amptui.base.errors import RunFolderError
from amptui.tui.run_list import screen as run_list_screen
from amptui.tui.run_list.entry import Chosen, RemovalPlan, RunEntry, RunRow
from amptui.tui.run_list.screen import MAX_COMPARED, Place, RunListApp
from tests.tui.run_list.listed import ENTRIES, NOW, FakeSource, entry
from tests.tui.watching import Shown, awaited


@pytest.fixture(autouse=True)
def reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list_screen, "READING_SECONDS", 0.0)


class Screen(Shown):
    """The app over a list that a test may change."""

    app: RunListApp

    def __init__(self, fake: FakeSource, place: Place | None, message: str) -> None:
        self.fake = fake
        self.app = RunListApp(fake.source(), place=place, message=message)

    @property
    def current(self) -> str:
        entries = self.app.state.entries
        return entries[self.app.state.cursor].name if entries else ""

    async def removes(self) -> None:
        """Ask to remove the run under the cursor, and say yes."""
        await self.pilot.press("x")
        await self.shows("remove this run?")
        await self.pilot.press("y")


@asynccontextmanager
async def shown(
    fake: FakeSource | None = None,
    *,
    place: Place | None = None,
    message: str = "",
    size: tuple[int, int] = (120, 40),
) -> AsyncIterator[Screen]:
    screen = Screen(fake or FakeSource(), place, message)
    async with screen.app.run_test(size=size) as screen.pilot:
        if screen.fake.entries and screen.fake.failure is None:
            await screen.until(lambda: screen.app.state.entries)
        yield screen


def many(count: int) -> list[RunEntry]:
    """Ended runs, the newest first."""
    rows = (RunRow(state="finished", written=NOW - number) for number in range(count))
    return [entry(f"run-{number:05}", row, is_live=False) for number, row in enumerate(rows)]


@awaited
async def test_keys_move_the_cursor() -> None:
    async with shown(FakeSource(many(100)), size=(80, 24)) as screen:
        for key, name in (
            *(("down", 1), ("j", 2), ("up", 1), ("k", 0), ("up", 0), ("pagedown", 20), ("pageup", 0)),
            *(("end", 99), ("down", 99), ("home", 0), ("G", 99), ("g", 0)),
        ):
            await screen.pilot.press(key)
            assert screen.current == f"run-{name:05}"
            assert screen.current in screen.text
            assert f"▸ {screen.current}" in screen.text


@pytest.mark.ci
@awaited
async def test_the_cursor_stays_on_its_run_when_the_list_changes() -> None:
    async with shown() as screen:
        await screen.pilot.press("down", "down")
        name = screen.current
        screen.fake.entries.insert(0, entry("new", RunRow(state="starting"), is_live=True))
        await screen.shows("new")
        assert screen.current == name
        screen.fake.entries = [one for one in screen.fake.entries if one.name != name]
        await screen.until(lambda: screen.current != name)
        assert screen.current


@pytest.mark.ci
@awaited
async def test_enter_chooses_what_fits_the_run() -> None:
    for at, action in ((0, "attach"), (3, "replay")):
        async with shown() as screen:
            await screen.pilot.press(*["down"] * at, "enter")
            assert screen.app.chosen == Chosen(action, (ENTRIES[at].run,))  # type: ignore[arg-type]
            assert screen.app.left == ""
            assert screen.app.place.run == ENTRIES[at].run


@pytest.mark.ci
@awaited
async def test_selected_runs_are_compared_in_the_order_in_which_they_were_selected() -> None:
    async with shown() as screen:
        await screen.pilot.press("c")
        await screen.shows("select two runs or more")
        await screen.pilot.press("end", "space", "home", "space", "space", "up", "space", "c")
        assert screen.app.state.selected == (ENTRIES[-1].run, ENTRIES[0].run)
        assert screen.app.chosen == Chosen("compare", (ENTRIES[-1].run, ENTRIES[0].run))


@pytest.mark.ci
@awaited
async def test_no_more_runs_are_selected_than_can_be_compared() -> None:
    async with shown(FakeSource(many(40))) as screen:
        await screen.pilot.press(*["space"] * 30)
        assert len(screen.app.state.selected) == MAX_COMPARED
        assert f"at most {MAX_COMPARED}" in screen.text


@pytest.mark.ci
@awaited
async def test_typing_filters_by_name_and_escape_shows_all_again() -> None:
    async with shown() as screen:
        await screen.pilot.press("slash", *"GPT-2")
        assert [one.name for one in screen.app.state.entries or ()] == ["char-gpt-20261124-091500"]
        await screen.pilot.press(*["backspace"] * 5, *"./", "enter")
        assert [one.name for one in screen.app.state.entries or ()] == ["./runs/mine"]
        assert "1 match /./" in screen.text
        await screen.pilot.press("escape")
        assert len(screen.app.state.entries or ()) == len(ENTRIES)
        await screen.pilot.press("slash", *"qxc", "escape")
        assert screen.app.left is None, "keys are text while a filter is typed"
        assert len(screen.app.state.entries or ()) == len(ENTRIES)


@awaited
async def test_only_a_clear_yes_removes_a_run() -> None:
    async with shown(FakeSource(left=("notes.txt", "a.py"))) as screen:
        await screen.pilot.press("end", "up")
        for key in ("escape", "n", "enter", "Y", "x", "q", "space"):
            await screen.pilot.press("x")
            await screen.shows("remove this run?")
            assert ENTRIES[3].run in screen.text
            await screen.pilot.press(key)
            assert "remove this run?" not in screen.text
            assert screen.app.left is None
        assert screen.fake.removed == []
        await screen.removes()
        await screen.shows(f"removed {ENTRIES[3].run}")
        await screen.shows("2 that are not the run's are kept")
        assert screen.fake.removed == [ENTRIES[3].run]
        await screen.shows("3 live  1 ended")


@awaited
async def test_a_name_that_is_typed_without_the_slash_removes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_list_screen, "READING_SECONDS", 600.0)
    async with shown() as screen:
        await screen.pilot.press("end", *"ox")
        await screen.shows("remove this run?")
        await screen.pilot.press("y")
        await screen.shows("press y again")
        await screen.shows("remove this run?")
        await screen.pilot.press("1")
        assert "remove this run?" not in screen.text
        assert screen.fake.removed == []


@awaited
async def test_a_live_run_is_not_removed() -> None:
    async with shown() as screen:
        await screen.pilot.press("x")
        assert "this run is live" in screen.text
        assert screen.app.state.removal is None


@pytest.mark.ci
@awaited
async def test_a_run_that_is_not_reachable_is_not_touched() -> None:
    entries = [replace(ENTRIES[3], is_reachable=False), ENTRIES[4]]
    async with shown(FakeSource(entries)) as screen:
        for key in ("enter", "space", "x"):
            await screen.pilot.press(key)
            await screen.shows("this run is not reachable")
            await screen.pilot.press("down", "up")
        assert screen.app.chosen is None
        assert screen.app.state.selected == ()
        assert screen.app.state.removal is None


@awaited
async def test_a_removal_that_is_refused_is_told() -> None:
    fake = FakeSource()

    def refuse(run: str) -> None:
        raise RunFolderError(f"{run} has begun again")

    fake.plan = refuse  # type: ignore[method-assign, assignment]
    async with shown(fake) as screen:
        await screen.pilot.press("end", "x")
        await screen.shows("has begun again")


class SlowSource(FakeSource):
    """Its file system answers when a test lets it."""

    def __init__(self) -> None:
        super().__init__(many(9))
        self.plans, self.removals = threading.Event(), threading.Event()
        self.planned: list[str] = []

    def plan(self, run: str) -> RemovalPlan:
        self.planned.append(run)
        self.plans.wait()
        return super().plan(run)

    def remove(self, plan: RemovalPlan) -> RemovalPlan:
        self.removals.wait()
        return super().remove(plan)


@pytest.fixture
def slow() -> Iterator[SlowSource]:
    slow = SlowSource()
    yield slow
    slow.plans.set()
    slow.removals.set()


@pytest.mark.ci
@awaited
async def test_keys_go_on_working_while_a_run_is_removed(slow: SlowSource) -> None:
    async with shown(slow) as screen:
        slow.plans.set()
        await screen.pilot.press("down")
        await screen.removes()
        await screen.shows("▸ run-00001  removing")
        for key in ("x", "enter", "space"):
            await screen.pilot.press(key)
            assert "this run is being removed" in screen.text
        assert (slow.planned, screen.app.left) == ([screen.app.state.entries[1].run], None)  # type: ignore[index]
        await screen.pilot.press("down", "enter")
        assert "a run is being removed" in screen.text
        await screen.pilot.press("space", "j")
        assert (screen.current, len(screen.app.state.selected)) == ("run-00004", 1)
        await screen.removes()
        await screen.until(lambda: len(screen.app.state.removing) == 2)
        assert slow.removed == []
        slow.removals.set()
        await screen.shows("0 live  7 ended")
        assert sorted(slow.removed) == [f"/home/me/runs/run-0000{at}" for at in (1, 4)]


@pytest.mark.ci
@pytest.mark.parametrize("key", ["down", "escape", "y"])
@awaited
async def test_who_goes_on_is_not_asked_any_more(slow: SlowSource, key: str) -> None:
    async with shown(slow) as screen:
        await screen.pilot.press("x", "x", key)
        slow.plans.set()
        await screen.pilot.press("escape", "home")
        await screen.removes()
        slow.removals.set()
        await screen.shows("0 live  8 ended")
        assert (slow.planned, slow.removed) == (["/home/me/runs/run-00000"] * 2, slow.planned[:1])


@pytest.mark.ci
@awaited
async def test_quitting_waits_for_a_removal_and_the_second_time_does_not(slow: SlowSource) -> None:
    slow.plans.set()
    async with shown(slow) as screen:
        await screen.removes()
        await screen.pilot.press("q")
        await screen.shows("quits once 1 run is removed")
        await screen.pilot.press("down", "q")
        assert screen.app.left is None, "another key has taken the first one back"
        slow.removals.set()
        await screen.until(lambda: screen.app.left == "")
        assert len(slow.removed) == 1
    slow.removals.clear()
    async with shown(slow) as screen:
        await screen.removes()
        await screen.pilot.press("q", "q")
        assert screen.app.left == ""
        assert len(slow.removed) == 1


@awaited
async def test_a_removal_that_fails_is_read_before_the_screen_closes(slow: SlowSource) -> None:
    def fail(_plan: RemovalPlan) -> RemovalPlan:
        slow.removals.wait()
        raise RunFolderError("cannot remove it: no answer")

    slow.remove = fail  # type: ignore[method-assign, assignment]
    slow.plans.set()
    async with shown(slow) as screen:
        await screen.removes()
        await screen.pilot.press("q")
        slow.removals.set()
        await screen.shows("cannot remove it: no answer")
        assert (screen.app.left, screen.app.state.removing) == (None, ())


@awaited
async def test_help_is_closed_by_any_key() -> None:
    async with shown() as screen:
        await screen.pilot.press("question_mark")
        assert "show or close this help" in screen.text
        await screen.pilot.press("q")
        assert "show or close this help" not in screen.text
        assert screen.app.left is None


@pytest.mark.parametrize(("keys", "left"), [("q", ""), ("ctrl+q", ""), ("end x ctrl+c", "interrupted")])
@awaited
async def test_keys_that_leave(keys: str, left: str) -> None:
    async with shown() as screen:
        await screen.pilot.press(*keys.split())
        assert screen.app.left == left
        assert screen.app.chosen is None


@awaited
async def test_who_comes_back_is_where_they_were() -> None:
    place = Place(run=ENTRIES[4].run, selected=(ENTRIES[0].run, "gone"), pattern="m")
    async with shown(place=place, message="the run has ended") as screen:
        assert screen.current == ENTRIES[4].name
        assert screen.app.state.selected == (ENTRIES[0].run,), "what is gone is not selected"
        assert len(screen.app.state.entries or ()) == 3
        assert "the run has ended" in screen.text
        assert screen.app.place == replace(place, selected=(ENTRIES[0].run,))


@awaited
async def test_a_list_that_cannot_be_read_ends_the_screen() -> None:
    fake = FakeSource()
    fake.failure = RunFolderError("cannot read the runs")
    async with shown(fake) as screen:
        await screen.until(lambda: screen.app.left is not None)
        assert screen.app.failure is fake.failure


@pytest.mark.ci
@awaited
async def test_a_live_row_is_renewed_and_only_visible_rows_are_read() -> None:
    reads = dict.fromkeys(range(20_000), 0)

    def counted(number: int) -> RunRow:
        reads[number] += 1
        return RunRow(state="running" if number == 0 else "finished", step=reads[number])

    entries = [
        replace(one, is_live=number == 0, read=partial(counted, number))
        for number, one in enumerate(many(20_000))
    ]
    async with shown(FakeSource(entries), size=(80, 24)) as screen:
        await screen.until(lambda: reads[0] > 2)
        assert {number for number, count in reads.items() if count} == set(range(20))
        assert max(count for number, count in reads.items() if number) == 1, "an ended run does not change"
        await screen.pilot.press("end")
        await screen.until(lambda: reads[19_999])
        assert sum(map(bool, reads.values())) == 40
