"""What is printed while the screen owns the terminal: its lines, however they are cut."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.process.capture import MAX_LINE_CHARACTERS, MAX_LINES_A_SECOND, LogTail, OutputLines
from amptui.records.run import Printed, Record
from tests.builders import of
from tests.living import wait_until


def test_a_progress_bar_is_recorded_when_it_ends_and_a_flood_is_bounded(tmp_path: Path) -> None:
    log, records = tmp_path / "output.log", list[Record]()
    log.write_bytes(b"of before\n")
    with log.open("ab", buffering=0) as output:
        tail = LogTail(log, records.append, skip=True)
        tail.start()
        output.write(b"one\n\r 0%\r 50%")
        wait_until(lambda: records, "nothing is recorded")
        output.write(b"\r    \r\r 0%\r51%\r100%\nafter\ncut off")
        tail.stop()
        texts = [record.text for record in of(Printed, records)]
        assert texts == ["one", "100%", "after", "cut off"]
        began = int(time.time())
        tail = LogTail(log, records.append, skip=True)
        tail.start()
        output.write(b"".join(b"flood %d\n" % number for number in range(5000)))
        tail.stop()
    flood = [record.text for record in of(Printed, records)][4:]
    seconds = int(time.time()) - began + 1
    assert MAX_LINES_A_SECOND <= len(flood) <= MAX_LINES_A_SECOND * seconds
    assert flood[MAX_LINES_A_SECOND - 1] == f"flood {MAX_LINES_A_SECOND - 1} … (more lines in output.log)"


UP = "\x1b[A"

PIECES = (
    *("step", "ä", "日本", "  ", "x" * 300, "\n", "\r", "\r\n", "\b", "\t", "\x1b", UP, "\x1b[2A", "\x1b[K"),
    *("\x1b[31;1m", "\x1b[m", "\x1b]0;title\a", "\x1b]8;;x\x1b\\", "\x1b(B", "\x1b[?25l", "\x1b]", "\x1b["),
)


def lines_of(*pieces: bytes) -> list[str]:
    lines = OutputLines()
    return [line for piece in pieces for line in lines.feed(piece)] + lines.finish()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\r\n\n  \nthree", ["one", "two", "three"]),
        ("\r 10%\r 50%\r100%\n", ["100%"]),
        ("10%\r20%\r\n", ["20%"]),
        ("a long line\rshort\n", ["short"]),
        ("a long line\r\x1b[Kshort\n", ["short"]),
        ("loss \x1b[31m0.5\x1b[0m \x1b]8;;file:x\x1b\\here\x1b]8;;\x1b\\\n", ["loss 0.5 here"]),
        ("gone\r    \rdone\n", ["done"]),
        ("gone\r    \r\n", []),
        ("x" * 2000 + "\ny\n", ["x" * MAX_LINE_CHARACTERS, "y"]),
        (f"\router 0%\n\rinner 0%{UP}\n\rinner 9%{UP}\router 1%\n\rinner 0%{UP}", ["outer 0%", "outer 1%"]),
        ("\x1b[", []),
        ("\x1b[1\nx", ["1", "x"]),
    ],
)
def test_a_line_is_what_stands_in_it_when_it_ends(text: str, lines: list[str]) -> None:
    assert lines_of(text.encode()) == lines


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.data())
def test_how_output_is_cut_changes_no_line(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    cut = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert lines_of(*cut) == lines_of(whole)


@given(st.binary(max_size=300))
def test_any_bytes_give_lines_without_control_characters(data: bytes) -> None:
    for line in lines_of(data):
        assert line.strip()
        assert len(line) <= MAX_LINE_CHARACTERS
        assert not {character for character in line if character < " " and character != "\t"}
