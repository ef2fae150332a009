"""Lines that anybody may read: plain signs, which every stream takes, and no secrets."""

import io
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.masking import masked
from amptui.base.text import MAX_CHARACTERS, MAX_MARKS, printable, write_line
from amptui.records import codec
from tests.builders import make_started
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


# ------------------------------------------------------------------------------------------ secrets
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["--hf-token", "S", "--lr", "1"], ["--hf-token", "***", "--lr", "1"]),
        (["--api_key=S t", "-auth", "S"], ["--api_key=***", "-auth", "***"]),
        (["--set", "hf_token=S", "--set=password=S t"], ["--set", "hf_token=***", "--set=password=***"]),
        (["--use-auth", "--lr", "1"], ["--use-auth", "--lr", "1"]),
        (["--max-tokens", "8", "--tokenizer", "gpt2"], ["--max-tokens", "8", "--tokenizer", "gpt2"]),
        (["--keys", "a", "--key"], ["--keys", "a", "--key"]),
        (["https://me:S@host/x?a=1&token=S&b=2"], ["https://***@host/x?a=1&token=***&b=2"]),
        (["--config", '{"api_key": "S", "lr": 1}'], ["--config", '{"api_key": "***", "lr": 1}']),
        ({"hf_token": "S", "eos_token": 7, "pwd": ""}, {"hf_token": "***", "eos_token": 7, "pwd": ""}),
        ({"auth": {"user": "S"}, "lr": [0.1], "x": None}, {"auth": "***", "lr": [0.1], "x": None}),
        ("S" * 20_000 + "-" * 20_000, "S" * 20_000 + "-" * 20_000),
    ],
    ids=range(11),
)  # fmt: skip
def test_what_names_itself_a_secret_is_masked(value: Any, shown: Any) -> None:
    assert masked(value) == shown
    assert masked(shown) == shown


def test_a_run_s_options_and_environment_are_masked_in_a_journal_and_when_an_older_one_is_read() -> None:
    started = make_started(
        config={"arguments": ["--token", "S1"], "api_key": "S2"}, environment={"X_KEY": "S3"}
    )
    line = codec.dumps(started)
    assert [line.count(part) for part in ("S1", "S2", "S3", "***")] == [0, 0, 0, 3]
    assert codec.loads(line.replace("***", "S4")) == codec.loads(line)
