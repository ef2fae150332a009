"""Lines that anybody may read: whatever goes in, plain signs come out, and every stream takes them."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.text import MAX_CHARACTERS, MAX_MARKS, printable, write_line
from tests.poison import STEERING, strange_in_lines

TEXTS = st.text() | st.text("a\u0301\u0323 \x1b\u202e\ud800\u3164é", max_size=20)


@given(TEXTS)
def test_every_character_is_a_plain_sign_with_few_marks_or_replaced_by_one(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert all(after in (before, "?") for before, after in zip(text, shown, strict=True))
    assert printable(shown) == shown
    marks = "".join("m" if unicodedata.category(sign).startswith("M") else "." for sign in shown)
    assert "m" * (MAX_MARKS + 1) not in marks


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;t\x07", "?[31mred?]0;t?"),
        ("a\u202eb\u2066c\u200bd", "a?b?c?d"),
        ("half \ud83d", "half ?"),
        ("ที่นี่ हिन्दी e\u0301 漢字", "ที่นี่ हिन्दी e\u0301 漢字"),
        ("a" + "\u0301" * 5, "a" + "\u0301" * 3 + "??"),
        ("\u3164\u1160\u115f\uffa0", "????"),
    ],
)
def test_what_people_write_stays_and_what_steers_goes(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "utf-16-le"])
def test_a_stream_of_any_encoding_gets_one_line(encoding: str) -> None:
    out = io.TextIOWrapper(written := io.BytesIO(), encoding)
    assert write_line(out, "".join(STEERING) + "×漢")
    line = written.getvalue().decode(encoding)
    assert not strange_in_lines(line.encode())
    assert line.endswith("\n")
    assert line.count("\n") == 1


def test_a_line_without_end_is_cut() -> None:
    out = io.StringIO()
    assert write_line(out, "x" * (MAX_CHARACTERS + 5))
    assert out.getvalue() == "x" * (MAX_CHARACTERS - 1) + "…\n"


def test_a_stream_that_is_not_there_takes_nothing_and_raises_nothing() -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    assert not write_line(Gone(), "text")
    assert not write_line(None, "text")
