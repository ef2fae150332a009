"""A frame of the list of runs: no word is cut, numbers stand in their columns, and any row fits any size."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import PRECISIONS
from amptui.tui.canvas import Canvas
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.run_list.entry import RunRow
from amptui.tui.run_list.frame import ListState, draw, page_rows
from tests.tui.run_list.listed import NOW, ROWS, STATE, entry


def drawn(size: tuple[int, int], state: ListState = STATE) -> list[str]:
    canvas = Canvas(*size)
    draw(canvas, state, ScreenState(now=NOW))
    return canvas.lines()


ROW = st.builds(
    RunRow,
    state=st.sampled_from([row.state for row in ROWS.values()]),
    model=st.none() | st.text(max_size=60),
    precision=st.none() | st.sampled_from(PRECISIONS) | st.text(max_size=20),
    step=st.none() | st.integers(0, 10**15),
    total_steps=st.none() | st.integers(0, 10**15),
    losses=st.lists(st.none() | st.floats(), max_size=50),
    seconds=st.none() | st.floats(),
    written=st.none() | st.floats(),
    detail=st.text(max_size=200) | st.just("  "),
)


@given(
    rows=st.lists(st.tuples(st.text(min_size=1, max_size=80), ROW), min_size=1, max_size=8),
    width=st.integers(1, 150),
    height=st.integers(1, 40),
    changes=st.fixed_dictionaries({"is_typing": st.booleans(), "pattern": st.text()}),
)
def test_no_row_and_no_size_makes_it_fail_or_leave_the_screen(
    rows: list[tuple[str, RunRow]], width: int, height: int, changes: dict[str, Any]
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
