"""Lines as a terminal would show them, however the output is cut, from text and from real progress bars."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.process.output_lines import MAX_LINE_CHARACTERS, OutputLines

UP = "\x1b[A"

PIECES = (
    *("step", "ä", "日本", "  ", "x" * 300, "\n", "\r", "\r\n", "\b", "\t", "\a", "\x1b"),
    *(UP, "\x1b[2A", "\x1b[B", "\x1b[3C", "\x1b[2D", "\x1b[5G", "\x1b[E", "\x1b[F", "\x1b[K", "\x1b[1K"),
    *("\x1b[2K", "\x1b[J", "\x1b[31;1m", "\x1b[m", "\x1b]0;title\a", "\x1b]8;;x\x1b\\"),
    *("\x1b(B", "\x1b[?25l", "\x1b]", "\x1b[", "\x1b[99999999999A", "\x1b[99999999999C"),
)


def lines_of(*pieces: bytes) -> list[str]:
    lines = OutputLines()
    return [line for piece in pieces for line in lines.feed(piece)] + lines.finish()


def lines_of_text(text: str) -> list[str]:
    return lines_of(text.encode())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\r\n\n  \nthree", ["one", "two", "three"]),
        ("\r 10%\r 50%\r100%\n", ["100%"]),
        ("a long line\rshort\n", ["shortg line"]),
        ("a long line\r\x1b[Kshort\n", ["short"]),
        ("a long line\x1b[2K\rshort\n", ["short"]),
        ("12345\b\b\b\b\b67\n", ["67345"]),
        ("loss \x1b[31m0.5\x1b[0m \x1b]8;;file:x\x1b\\here\x1b]8;;\x1b\\\n", ["loss 0.5 here"]),
        ("gone\r    \rdone\n", ["done"]),
        ("x\x1b[5Cy\n", ["x     y"]),
        ("x" * 2000 + "\ny\n", ["x" * MAX_LINE_CHARACTERS, "y"]),
        ("\x1b[", []),
        ("\x1b[1\nx", ["1", "x"]),
    ],
)
def test_a_line_is_what_stands_in_it_when_it_ends(text: str, lines: list[str]) -> None:
    assert lines_of_text(text) == lines


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.data())
def test_how_output_is_cut_changes_no_line(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    ends = [*cuts, len(whole)]
    cut = [whole[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    assert b"".join(cut) == whole
    assert lines_of(*cut) == lines_of(whole)


@given(st.binary(max_size=300))
def test_any_bytes_give_lines_without_control_characters(data: bytes) -> None:
    for line in lines_of(data):
        assert line.strip()
        assert len(line) <= MAX_LINE_CHARACTERS
        assert not {character for character in line if character < " " and character != "\t"}


@given(st.lists(st.text(st.characters(exclude_categories=["C"], exclude_characters="\x85\u2028\u2029"))))
def test_plain_lines_stay_as_they_are(lines: list[str]) -> None:
    whole = [line[:MAX_LINE_CHARACTERS].rstrip() for line in lines if line.strip()]
    assert lines_of_text("".join(f"{line}\n" for line in lines)) == whole


def test_only_a_line_that_is_overwritten_is_live() -> None:
    lines = OutputLines()
    lives = []
    for piece in (b"name? ", b"\n", b"\r 1%", b"\r 2%", b"\r    \r", b"\r 3%", b"\r99%", b"\n", b"end\r\n"):
        lines.feed(piece)
        lives.append(lines.live)
    assert lives == ["", "", "", " 2%", "", " 3%", "99%", "", ""]


def test_bars_below_each_other_are_complete_when_they_scroll_away() -> None:
    lines = OutputLines()
    complete = lines.feed(f"\router 0%\n\rinner 0%{UP}".encode())
    assert complete == ["outer 0%"]  # nothing has told yet that the cursor comes back
    for percent in range(1, 100):
        complete = lines.feed(f"\router {percent}%\n\rinner {percent}%{UP}".encode())
        assert complete == []
    assert lines.live == "inner 99%"
    assert lines.feed(b"\router 100%\n\r          \r") == []
    assert lines.feed(b"after\nmore\n") == ["outer 100%", "after", "more"]


def test_lines_printed_above_bars_are_complete_and_the_bars_are_not() -> None:
    lines = OutputLines()
    lines.feed(b"first\nsecond\nthird")
    clear, bars = f"\r\x1b[2K{UP}\x1b[2K{UP}\x1b[2K", "first {0}\nsecond {0}\nthird {0}"
    for number in range(5):
        assert lines.feed((clear + bars.format(number)).encode()) == []
        printed = lines.feed((clear + f"epoch {number}\n" + bars.format(number)).encode())
        assert printed == [f"epoch {number}"]
    assert lines.live == "third 4"
    assert lines.feed(b"\n") == ["first 4"]
    assert lines.finish() == ["second 4", "third 4"]


def test_a_silent_program_s_last_line_waits_for_no_other() -> None:
    lines = OutputLines()
    lines.feed(f"\router\n\rinner{UP}\router 1\n\r     \r".encode())
    assert lines.feed(b"done\n") == ["outer 1"]
    assert (lines.settle(), lines.feed(b"next\n")) == (["done"], ["next"])
    lines.feed(f"\router\n\rinner{UP}\router 1".encode())
    assert lines.settle() == []  # a slow bar is no end
    assert lines.unfinished == ["outer 1", "inner"]
    assert (lines.finish(), lines.unfinished) == (["outer 1", "inner"], [])
