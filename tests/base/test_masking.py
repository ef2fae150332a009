"""What names itself a secret is recorded as ``***``."""

from typing import Any

import pytest

from amptui.base.masking import masked
from amptui.records import codec
from tests.builders import make_started


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
