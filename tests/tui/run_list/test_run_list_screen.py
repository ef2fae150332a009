"""The list on a screen: keys move, filter, select and choose; the cursor stays on its run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RunFolderError
from amptui.records.ranks import RankLost
from amptui.records.run import PRECISIONS, Note, Record, RunFailed, RunFinished
from amptui.runs.find import RunEntry
from amptui.runs.kept_run import KeptRun, look_at
from amptui.runs.rundir import RunDir
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.help import Help
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.run_list.frame import ListState, detail_of, draw, page_rows
from amptui.tui.run_list.screen import RunListScreen
from tests.builders import write_journal
from tests.golden import Goldens
from tests.telemetry.record_samples import run, steps
from tests.tui.run_list.listed import ENTRIES, NOW, ROWS, STATE, FakeSource, entry, row
from tests.tui.watching import Shown, awaited


class Screen(Shown):
    """The app over a list that a test may change."""

    app: RunListScreen

    def __init__(self, fake: FakeSource, before: ListState | None, message: str) -> None:
        self.fake = fake
        self.app = RunListScreen(fake.list_runs, before=before, message=message)

    @property
    def current(self) -> str:
        entries = self.app.list_state.entries
        return entries[self.app.list_state.cursor].name if entries else ""


@asynccontextmanager
async def shown(
    fake: FakeSource | None = None,
    *,
    before: ListState | None = None,
    message: str = "",
    size: tuple[int, int] = (120, 40),
) -> AsyncIterator[Screen]:
    screen = Screen(fake or FakeSource(), before, message)
    async with screen.app.run_test(size=size) as screen.pilot:
        if screen.fake.entries and screen.fake.failure is None:
            await screen.until(lambda: screen.app.list_state.entries)
        yield screen


def many(count: int) -> list[RunEntry]:
    """Ended runs, the newest first."""
    rows = (row(state="finished", written=NOW - number) for number in range(count))
    return [entry(f"run-{number:05}", one, is_live=False) for number, one in enumerate(rows)]


@pytest.mark.ci
@awaited
async def test_the_cursor_stays_on_its_run_when_the_list_changes() -> None:
    async with shown() as screen:
        await screen.pilot.press("down", "down")
        name = screen.current
        screen.fake.entries.insert(0, entry("new", row(state="starting"), is_live=True))
        await screen.shows("new")
        assert screen.current == name
        screen.fake.entries = [one for one in screen.fake.entries if one.name != name]
        await screen.until(lambda: screen.current != name)
        assert screen.current


# ---------------------------------------------------------------------- keys, and what follows from them


class Script(NamedTuple):
    """A list, and keys in texts."""

    fake: FakeSource
    actions: Sequence[str]
    options: dict[str, Any] = {}  # noqa: RUF012  # nobody changes it


BEFORE = replace(STATE, cursor=4, selected=(ENTRIES[0].run, "gone"), pattern="m")

SCRIPTS = {
    "enter attaches a live run": Script(FakeSource(), ["enter"]),
    "enter replays a run that has ended": Script(FakeSource(), ["down down down enter"]),
    "selected runs are compared in the order in which they were selected": Script(
        FakeSource(), ["c", "end a", "home a a", "up a", "c"]
    ),
    "typing filters by name and escape shows all again": Script(
        FakeSource(),
        [
            *("slash G P T - 2", "backspace " * 5 + ". / enter", "escape"),
            *("slash q x c", "escape"),  # keys are text while a filter is typed
        ],
    ),
    "help is closed by any key": Script(FakeSource(), ["question_mark", "q"]),
    **{f"{keys} leaves": Script(FakeSource(), [keys]) for keys in ("q", "ctrl+q", "ctrl+c")},
    "who comes back is where they were": Script(
        FakeSource(), [], {"before": BEFORE, "message": "the run has ended"}
    ),
}

QUICK = ("enter attaches a live run", "q leaves")


def said(screen: Screen) -> dict[str, object]:
    """What a frame is drawn of, and what came of the keys."""
    app, state, shown_state = screen.app, screen.app.list_state, screen.app._state
    came: dict[str, object] = {"chosen": app.chosen, "left": app.left}
    if app.left is not None:
        listed = app.list_state
        at = listed.entries[listed.cursor].run if listed.entries else ""
        return came | {"at": at, "selected": listed.selected, "filter": listed.pattern}
    return came | {
        "at": screen.current,
        "listed": len(state.entries or ()),
        "selected": state.selected,
        "filter": f"/{state.pattern}/" + ", which is typed" * state.is_typing,
        "help": isinstance(app._overlay, Help),
        "message": f"{shown_state.message} ({shown_state.severity})" if shown_state.message else "",
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ci] * (name not in QUICK)) for name in SCRIPTS]
)
def test_keys_lead_where_was_approved(name: str, goldens: Goldens) -> None:
    script, lines = SCRIPTS[name], list[str]()

    @awaited
    async def play() -> None:
        before: dict[str, str] = {}
        async with shown(script.fake, **script.options) as screen:
            for action in ("", *script.actions):
                await screen.pilot.press(*action.split())
                now = {name: str(value) for name, value in said(screen).items()}
                lines.append(f"> {action.strip() or 'it opens'}")
                lines.extend(
                    f"    {what:8} {words}" for what, words in now.items() if before.get(what) != words
                )
                before = now

    play()
    goldens.check(f"scripts/run list/{name}", "\n".join(lines))


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

    def counted(number: int) -> KeptRun:
        reads[number] += 1
        return row(state="running" if number == 0 else "finished", step=reads[number])

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


# ------------------------------------------------------------------------------------------ frames


def drawn(size: tuple[int, int], state: ListState = STATE) -> list[str]:
    canvas = Canvas(*size)
    draw(canvas, state, ScreenState(now=NOW))
    return canvas.lines()


ROW = st.builds(
    row,
    state=st.sampled_from([one.state for one in ROWS.values()]),
    model=st.none() | st.text(max_size=60),
    precision=st.none() | st.sampled_from(PRECISIONS) | st.text(max_size=20),
    step=st.none() | st.integers(0, 10**15),
    total_steps=st.none() | st.integers(0, 10**15),
    loss=st.none() | st.floats(),
    seconds=st.none() | st.floats(),
    written=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    error=st.none() | st.text(max_size=200) | st.just("  "),
)


@given(
    rows=st.lists(st.tuples(st.text(min_size=1, max_size=80), ROW), min_size=1, max_size=8),
    width=st.integers(1, 150),
    height=st.integers(1, 40),
    changes=st.fixed_dictionaries({"is_typing": st.booleans(), "pattern": st.text()}),
)
def test_no_row_and_no_size_makes_it_fail_or_leave_the_screen(
    rows: list[tuple[str, KeptRun]], width: int, height: int, changes: dict[str, Any]
) -> None:
    entries = [entry(f"{at}{name}", row, is_live=False) for at, (name, row) in enumerate(rows)]
    shown = {entry.run: row for entry, (_, row) in zip(entries, rows, strict=True)}
    state = ListState(entries=entries, rows=shown, cursor=len(entries) - 1, **changes)
    lines = drawn((width, height), state)
    assert len(lines) == height
    assert all(character.isprintable() for line in lines for character in line)
    if width >= 80 and height >= 12:
        for line, (_, row) in zip(lines[2 : 2 + page_rows(height)], rows, strict=False):
            assert row.state in line


LAST_WORDS: dict[str, list[Record]] = {
    "nothing": [],
    "its end": [RunFinished(time=8.0, steps=6, seconds=6.0, reason="done")],
    "an error": [RunFailed(time=8.0, step=6, error="out of\nmemory", traceback="")],
    "an error's note": [Note(time=9.0, severity="error", text="CUDA error: ECC\nTraceback\n")],
    "a lost rank": [RankLost(time=9.0, step=6, rank=1, host="b", cause="killed", detail="signal 9")],
    "a warning": [Note(time=9.0, severity="warning", text="no X-ray")],
}


def test_a_row_says_how_a_run_stands_and_why_it_died(goldens: Goldens, tmp_path: Path) -> None:
    """A step that arrived late does not make it live on, one that was made after its last words does."""
    times, losses = [2.0 + n for n in range(1, 7)], [6.0 / n for n in range(1, 7)]
    begun: list[Record] = [run(time=2.0), *steps(1, 6, time=times, step_seconds=1.0, loss=losses)]
    lines: list[str] = []
    for name, records in LAST_WORDS.items():
        for late in (None, 8.5, 11.0):
            later = [] if late is None else steps(7, 7, time=late)
            folder = write_journal(tmp_path / f"{len(lines)}", [*begun, *records, *later])
            found = look_at(RunDir(folder))
            facts = f"{found.state} at {found.step} after {found.seconds} s, loss {found.loss}"
            lines += [f"{name}, step 7 at {late}: {facts}: {detail_of(found)}"]
    goldens.check("reports/run list rows", "\n".join(lines))
