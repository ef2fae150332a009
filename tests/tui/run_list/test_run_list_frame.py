"""A frame of the list of runs: no word is cut, numbers stand in their columns, and any row fits any size."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import PRECISIONS
from amptui.tui.canvas import Canvas
from amptui.tui.run_list.entry import RunRow
from amptui.tui.run_list.frame import KEYS, ListState, draw, page_rows, removal_lines
from tests.tui.run_list.listed import NOW, ROWS, STATE, entry, plan

SIZES = [(80, 24), (120, 40), (40, 12), (200, 60)]

MARKS = "▸◆■□▲●△○◐?×▁▂▃▄▅▆▇█/"


def drawn(size: tuple[int, int], state: ListState = STATE) -> list[str]:
    canvas = Canvas(*size)
    draw(canvas, state)
    return canvas.lines()


def words(row: RunRow, name: str) -> set[str]:
    """All that may stand in a row."""
    shown = {name, row.state, row.model or "", f"{row.step:,}" if row.step else "", row.precision or ""}
    return {word for text in shown for word in text.split()}


@pytest.mark.parametrize("size", SIZES)
def test_no_word_is_cut(size: tuple[int, int]) -> None:
    """Whatever stands in a row is a whole name, state, model or precision, or a number with its unit."""
    number = r"-?[\d,.]+(e[+-]\d+)?%?|nan|inf|now|min|[shd]"
    for name, line in zip(ROWS, drawn(size)[2:], strict=False):
        whole_words = re.sub(r"…\S+", "", line) if size[0] == 40 else line  # the end of a name tells it apart
        for word in whole_words.translate(str.maketrans(MARKS, " " * len(MARKS))).split():
            own = {part for whole in words(ROWS[name], name) for part in re.split("[/]", whole)}
            assert word in own or re.fullmatch(number, word), (word, line)
    assert set(" ".join(drawn(size)[1].split()).split()) <= {
        *("run", "state", "model", "precision", "step", "done", "loss", "recently", "took", "age")
    }


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_numbers_end_below_the_end_of_their_heading(size: tuple[int, int]) -> None:
    lines = drawn(size)
    columns = {match[0]: slice(*match.span()) for match in re.finditer(r"\w+", lines[1])}
    for heading in columns.keys() & {"step", "done", "loss", "took", "age"}:
        end = columns[heading].stop
        texts = [line[:end] for line in lines[2 : 2 + len(ROWS)]]
        assert any(not text.endswith(" ") for text in texts), heading
        assert all(line[end : end + 1] in (" ", "") for line in lines[2 : 2 + len(ROWS)]), heading


@pytest.mark.parametrize("width", [34, 70])
def test_the_question_names_a_folder_of_any_length_whole(width: int) -> None:
    folder = "/home/me/runs/" + "x" * 20 + "/mnist-deep-20261125-201300"
    assert folder in "".join(removal_lines(plan(folder), width))


def test_no_press_is_bound_twice() -> None:
    presses = [press for key in KEYS for press in key.presses]
    assert len(presses) == len(set(presses))


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
    changes=st.fixed_dictionaries(
        {"shows_help": st.booleans(), "is_typing": st.booleans(), "pattern": st.text()}
    ),
)
def test_no_row_and_no_size_makes_it_fail_or_leave_the_screen(
    rows: list[tuple[str, RunRow]], width: int, height: int, changes: dict[str, Any]
) -> None:
    entries = [entry(f"{at}{name}", row, is_live=False) for at, (name, row) in enumerate(rows)]
    shown = {entry.run: row for entry, (_, row) in zip(entries, rows, strict=True)}
    state = ListState(entries=entries, rows=shown, now=NOW, cursor=len(entries) - 1, **changes)
    lines = drawn((width, height), state)
    assert len(lines) == height
    assert all(character.isprintable() for line in lines for character in line)
    if width >= 80 and height >= 12 and not changes["shows_help"]:
        for line, (_, row) in zip(lines[2 : 2 + page_rows(height)], rows, strict=False):
            assert row.state in line
