"""The journal keeps its form: stored lines, one of each type of record, read and write identically."""

import json
from pathlib import Path
from typing import get_args

import pytest

from amptui.records import codec
from amptui.records.run import Record

LINES = (Path(__file__).parent / "journal_lines.jsonl").read_text(encoding="ascii").splitlines()


def test_there_is_a_line_of_each_type() -> None:
    written = [cls.__name__ for cls in get_args(Record)]
    assert [json.loads(line)["type"] for line in LINES] == written


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["type"])
def test_a_stored_line_reads_and_writes_identically(line: str) -> None:
    record = codec.loads(line)
    assert record is not None
    assert codec.dumps(record) == line
