"""A journal that grows, breaks, is cut or replaced while it is read."""

import os
from pathlib import Path

import pytest

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.records import codec
from amptui.records.run import Record
from amptui.records.steps import StepRecord
from amptui.runs import reader as journal_reader
from amptui.runs.reader import JournalReader
from tests.reports.compare.compared_runs import trained
from tests.single_steps import one_by_one

LINES = [f"{codec.dumps(step)}\n".encode() for step in trained([1.0] * 6)]


def numbers(records: list[Record]) -> list[int]:
    return [record.step for record in one_by_one(records) if isinstance(record, StepRecord)]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(LINES[:2]))
    return path


def test_each_call_returns_what_is_new(path: Path) -> None:
    reader = JournalReader(path)
    assert numbers(reader.read()) == [1, 2]
    assert reader.read() == []
    append(path, LINES[2])
    assert numbers(reader.read()) == [3]
    assert reader.at_end
    reader.close()


def test_a_line_that_is_being_written_comes_once_it_is_whole(path: Path) -> None:
    reader = JournalReader(path)
    append(path, LINES[2][:40])
    assert numbers(reader.read()) == [1, 2]
    assert reader.torn
    append(path, LINES[2][40:-1])  # all but the line break
    assert numbers(reader.read()) == [3]
    assert not reader.torn
    append(path, b"\n" + LINES[3])
    assert numbers(reader.read()) == [4]
    assert reader.damaged_lines == 0
    reader.close()


def test_damaged_and_unknown_lines_are_counted(path: Path) -> None:
    append(path, b"{broken\n" + b'{"type":"Later","time":1.0}\n' + LINES[2] + b"{torn")
    reader = JournalReader(path)
    assert numbers(reader.read()) == [1, 2, 3]
    assert (reader.damaged_lines, reader.unknown_records, reader.torn) == (1, 1, True)
    words = reader.passed_over
    assert "1 damaged line," in words
    assert "cut off" in words
    reader.close()


def test_small_pieces_make_the_same_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_reader, "PIECE_BYTES", 7)
    append(path, b"".join(LINES[2:]))
    reader = JournalReader(path)
    found: list[Record] = []
    while not reader.at_end or not found:
        found += reader.read()
    assert numbers(found) == [1, 2, 3, 4, 5, 6]
    assert reader.damaged_lines == 0
    reader.close()


def test_a_line_without_end_is_one_damaged_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strictjson, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(journal_reader, "PIECE_BYTES", 500)
    append(path, b"x" * 9000 + b"\n" + LINES[2])
    reader = JournalReader(path)
    found: list[Record] = []
    while not reader.at_end or not found:
        found += reader.read()
    assert numbers(found) == [1, 2, 3]
    assert reader.damaged_lines == 1
    reader.close()


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_journal_that_was_repaired_is_read_again(path: Path, how: str) -> None:
    append(path, b"".join(LINES[2:4]))
    reader = JournalReader(path)
    assert numbers(reader.read()) == [1, 2, 3, 4]
    assert not reader.restarted
    if how == "cut":
        os.truncate(path, len(LINES[0]))
    else:
        other = path.with_name("other")
        other.write_bytes(LINES[0])
        other.replace(path)
    assert numbers(reader.read()) == [1]
    assert reader.restarted
    append(path, LINES[4])
    assert numbers(reader.read()) == [5]
    assert not reader.restarted
    reader.close()


def test_a_journal_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot read") as caught:
        JournalReader(tmp_path / "none").read()
    assert str(tmp_path / "none") in caught.value.what
