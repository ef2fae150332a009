"""A frame of the list of runs: what stands where at each size, and that no word is cut."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import PRECISIONS
from amptui.tui.canvas import Canvas
from amptui.tui.run_list.entry import RunRow
from amptui.tui.run_list.frame import KEYS, NO_RUNS, ListState, draw, page_rows, removal_lines
from tests.tui.run_list.listed import ENTRIES, NOW, ROWS, entry, plan

SIZES = [(80, 24), (120, 40), (40, 12), (200, 60)]

STATE = ListState(
    entries=ENTRIES, live=3, ended=2, rows={entry.run: ROWS[entry.name] for entry in ENTRIES}, now=NOW
)

MARKS = "▸◆■□▲●△○◐?×▁▂▃▄▅▆▇█/"


def drawn(size: tuple[int, int], state: ListState = STATE, *, ascii_only: bool = False) -> list[str]:
    canvas = Canvas(*size, ascii_only=ascii_only)
    draw(canvas, state)
    return canvas.lines()


def columns_of(lines: list[str]) -> dict[str, slice]:
    """Where each column is, by its heading: of words, from its first cell, of numbers, to its last."""
    return {match[0]: slice(*match.span()) for match in re.finditer(r"\w+", lines[1])}


@pytest.mark.parametrize("size", SIZES)
def test_every_size_shows_counts_names_states_and_keys(size: tuple[int, int]) -> None:
    lines = drawn(size)
    assert lines[0].split() == ["amptui", "runs", "3", "live", "2", "ended"]
    for name, line in zip(ROWS, lines[2:], strict=False):
        assert name in line or (size[0] == 40 and re.search(r"…\S{20,}", line)), (
            "a name's end tells runs apart"
        )
        assert ROWS[name].state in line
    assert "▸" in lines[2]
    assert lines[-1].split()[-2:] == ["q", "quit"]
    assert len(lines) == size[1]


@pytest.mark.parametrize("size", SIZES)
def test_the_runs_of_another_machine_name_it_and_show_what_is_known_of_them(size: tuple[int, int]) -> None:
    lines = drawn(size, replace(STATE, host="me@box"))
    assert lines[0].split()[:4] == ["amptui", "runs", "on", "me@box"]
    assert not {"loss", "recently"} & set(lines[1].split())
    assert "done" in lines[1].split() or size[0] == 40
    assert not {"compare", "remove"} & set(lines[-1].split())


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
    columns = columns_of(lines)
    for heading in columns.keys() & {"step", "done", "loss", "took", "age"}:
        end = columns[heading].stop
        texts = [line[:end] for line in lines[2 : 2 + len(ROWS)]]
        assert any(not text.endswith(" ") for text in texts), heading
        assert all(line[end : end + 1] in (" ", "") for line in lines[2 : 2 + len(ROWS)]), heading


def test_a_wide_screen_shows_all_that_is_known() -> None:
    line = drawn((200, 60))[2]
    name, state, model, sign, precision, step, done, loss, curve, *took_and_age = line.split()[1:]
    assert (name, state, model) == ("mnist-deep-20261125-201300", "running", "mnist-deep")
    assert (sign, precision, step, done, loss) == ("●", "bf16", "1,200", "6%", "0.00576")
    assert (curve[0], curve[-1]) == ("█", "▁")
    assert took_and_age == ["42", "s", "now"]


@pytest.mark.parametrize("size", SIZES)
def test_the_run_under_the_cursor_is_told_in_full(size: tuple[int, int]) -> None:
    line = drawn(size, replace(STATE, cursor=1))[-2]
    assert "mnist-deep-20261125-201300-2" in line or line.startswith(" …")
    assert "nothing new for 2:41" in line or size[0] == 40


@pytest.mark.parametrize("size", SIZES)
def test_each_key_is_in_the_help_whole(size: tuple[int, int]) -> None:
    text = "\n".join(drawn(size, replace(STATE, shows_help=True)))
    for key in KEYS:
        assert f"{key.label} {key.meaning}" in text


def test_no_press_is_bound_twice() -> None:
    presses = [press for key in KEYS for press in key.presses]
    assert len(presses) == len(set(presses))


@pytest.mark.parametrize("size", SIZES)
def test_where_there_is_no_run_it_is_said_how_to_start_one(size: tuple[int, int]) -> None:
    text = " ".join(" ".join(drawn(size, ListState(entries=()))).split())
    assert NO_RUNS in text
    assert "0 live" in text
    assert "no run has 'abc' in its name" in " ".join(
        " ".join(drawn(size, ListState(entries=(), ended=7, pattern="abc"))).split()
    )
    assert "reading" in " ".join(drawn(size, ListState(entries=None)))


@pytest.mark.parametrize("size", SIZES)
def test_the_question_names_the_folder_and_what_is_in_it(size: tuple[int, int]) -> None:
    removal_plan = plan(
        "/home/me/runs/" + "x" * 20 + "/mnist-deep-20261125-201300", left=("notes.txt", "a", "b", "c")
    )
    text = "\n".join(drawn(size, replace(STATE, removal=removal_plan)))
    joined = re.sub(r"[│\s]+", "", text)
    assert removal_plan.folder in joined
    for words_in_it in (
        "1 journal",
        "3 checkpoints",
        "2 other files",
        "5.00 GiB",
        "notes.txt",
        "y remove",
        "esc",
    ):
        assert words_in_it.replace(" ", "") in joined


def test_what_is_not_there_is_not_counted() -> None:
    (line,) = removal_lines(plan("/r", journals=1, checkpoints=0, other_files=0, size_bytes=1024), 60)[1:]
    assert line == "1 journal: 1.00 KiB"


@pytest.mark.parametrize("width", [34, 70])
def test_the_question_says_how_long_a_launcher_has_restarted_nothing(width: int) -> None:
    silence = "it did not end as asked; its ranks have not restarted for 120 s or more"
    assert " ".join(removal_lines(plan("/r", restart_seconds=120.0), width)).endswith(f"iB {silence}")
    assert silence not in " ".join(removal_lines(plan("/r"), width))


def test_the_filter_stands_where_it_is_typed_and_then_in_the_header() -> None:
    assert drawn((80, 24), replace(STATE, pattern="gpt", is_typing=True))[-1].startswith(" /gpt▏")
    assert drawn((80, 24), replace(STATE, pattern="gpt"))[0].rstrip().endswith("5 match /gpt")


@pytest.mark.parametrize("size", SIZES)
def test_a_message_is_told_whole(size: tuple[int, int]) -> None:
    message = "cannot read /home/me/.local/state/amptui/runs/mnist-deep/journal.jsonl: permission denied"
    text = "".join("".join(drawn(size, replace(STATE, message=message))).split())
    assert message.replace(" ", "") in text


def test_selected_runs_are_marked_and_counted() -> None:
    lines = drawn((80, 24), replace(STATE, selected=(ENTRIES[1].run, ENTRIES[3].run)))
    assert ["◆" in line for line in lines[2:7]] == [False, True, False, True, False]
    assert "2 selected" in lines[0]


def test_without_utf8_there_is_only_ascii() -> None:
    assert "\n".join(drawn((120, 40), ascii_only=True)).isascii()


def test_what_was_not_read_yet_has_a_name() -> None:
    lines = drawn((80, 24), replace(STATE, rows={}))
    assert lines[2].split() == ["▸", "mnist-deep-20261125-201300"]


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
