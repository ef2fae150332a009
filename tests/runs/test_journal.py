"""The journal on sound and full disks and under hands that harm it: nothing lost that memory holds."""

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.records import codec
from amptui.records.run import Note, Record
from amptui.runs import lasting
from amptui.runs import reader as journal_reader
from amptui.runs.journal import TRUNCATED, Journal
from amptui.runs.reader import JournalReader


def notes(first: int, last: int) -> list[Record]:
    """Lines of 110 to 113 bytes."""
    return [
        Note(time=float(n), severity="info", text=f"note {n} ".ljust(60, ".")) for n in range(first, last + 1)
    ]


def line(record: Record) -> bytes:
    return f"{codec.dumps(record)}\n".encode()


def lines(first: int, last: int) -> bytes:
    return b"".join(map(line, notes(first, last)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    return tmp_path / "runs" / "run" / "journal.jsonl"


def test_what_is_appended_is_in_the_file_at_once_and_a_journal_goes_on_where_it_ended(path: Path) -> None:
    for first, last in ((1, 3), (4, 2500)):
        journal = Journal(path)
        journal.append(notes(first, last))
        journal.append([])
        assert list(JournalReader(path)) == notes(1, last)
        assert (journal.trouble, journal.cause, journal.is_behind) == ("", "", False)
        journal.close()
        journal.close()
        with pytest.raises(ValueError, match="closed"):
            journal.append(notes(1, 1))
    assert list(JournalReader(path)) == notes(1, 2500)


@given(cut=st.integers(0, 400), more=st.integers(0, 3))
def test_a_journal_cut_off_anywhere_loses_only_the_line_that_was_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int, more: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    text = lines(1, 4)[:cut]
    path.write_bytes(text)
    whole = [note for note in notes(1, 4) if codec.dumps(note).encode() in text]
    assert list(JournalReader(path)) == whole
    journal = Journal(path)
    journal.append(notes(5, 4 + more))
    journal.close()
    assert list(JournalReader(path)) == whole + notes(5, 4 + more)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda path: next(iter(JournalReader(path))), r"cannot read the journal .*none.*no such file"),
        (lambda path: JournalReader(path).read(), r"cannot read the journal .*none.*no such file"),
        (lambda path: Journal(path / "journal.jsonl"), r"cannot write the journal .*no such file"),
    ],
)
def test_a_journal_that_is_not_there_is_told_in_one_line(
    act: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match=message) as caught:
        act(tmp_path / "none")
    assert "\n" not in str(caught.value)


# A disk that takes no more: a real limit of the operating system's, which needs no rights.


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond that."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def test_records_wait_while_the_file_takes_none_and_follow_when_it_does(path: Path) -> None:
    journal = Journal(path)
    with room_for(1000):
        journal.append(notes(1, 5))
        assert journal.trouble == ""
        journal.append(notes(6, 20))
        assert journal.trouble == "file too large: 12 records wait in memory"
        assert (journal.cause, journal.unsaved, journal.is_behind) == ("file too large", 12, True)
        assert path.read_bytes() == lines(1, 8)
        journal.append(notes(21, 25))
        assert journal.trouble == "file too large: 17 records wait in memory"
    journal.append(notes(26, 26))
    assert (journal.trouble, journal.unsaved) == ("", 0)
    journal.close()
    assert path.read_bytes() == lines(1, 26)


def test_what_waits_is_bounded_and_what_is_lost_is_counted(path: Path) -> None:
    journal = Journal(path, max_waiting=10)
    with room_for(10):
        journal.append(notes(1, 15))
        assert journal.trouble == "file too large: 10 records wait in memory, 5 are lost"
    journal.append(notes(16, 16))
    assert (journal.trouble, journal.cause) == ("file too large: 5 records are lost", "file too large")
    journal.close()
    assert path.read_bytes() == lines(6, 16)


def test_what_still_waits_when_the_journal_is_closed_is_lost_and_said_to_be(path: Path) -> None:
    journal = Journal(path)
    with room_for(1000):
        journal.append(notes(1, 20))
        journal.close()
    assert (journal.trouble, journal.unsaved) == ("file too large: 12 records are lost", 12)
    assert path.read_bytes() == lines(1, 8)


def test_a_half_line_that_cannot_be_cut_off_costs_no_whole_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: int, _size: int) -> None:
        raise OSError(5, "Input/output error")

    journal = Journal(path)
    with room_for(1000), monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        journal.append(notes(1, 20))
    journal.append(notes(21, 21))
    journal.close()
    reader = JournalReader(path)
    assert list(reader) == notes(1, 21)
    assert reader.damaged_lines == 1


# Somebody deletes, moves, replaces or truncates it, or closes its descriptor.


@pytest.fixture
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every append looks, so that no test has to wait a second."""
    monkeypatch.setattr(lasting, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lasting, "_RETRY_SHARE", float("inf"))


@pytest.mark.usefixtures("_always_look")
@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.parent.rename(path.parent.with_name("elsewhere"))]
)
def test_a_journal_that_lost_its_name_is_told_and_made_again_with_all_it_held(
    path: Path, harm: Callable[[Path], None]
) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    harm(path)
    journal.append(notes(4, 4))
    assert journal.trouble == "journal.jsonl was deleted or moved: writing it again"
    assert (journal.is_behind, journal.unsaved) == (True, 4)
    journal.append(notes(5, 5))
    assert (journal.trouble, journal.is_behind, journal.unsaved) == ("", False, 0)
    assert list(JournalReader(path)) == notes(1, 5)
    shutil.rmtree(path.parent)
    journal.append(notes(6, 6))
    journal.close()
    assert list(JournalReader(path)) == notes(1, 6)
    assert list(path.parent.iterdir()) == [path]


def test_a_journal_that_somebody_truncates_is_written_again(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 9))
    for first, left_bytes in ((10, 400), (12, 0)):
        os.truncate(path, left_bytes)
        journal.append(notes(first, first + 1))
        assert journal.trouble == f"{TRUNCATED}, and all of it is written again"
        assert (journal.cause, journal.unsaved) == (TRUNCATED, 0)
    journal.append([])
    assert (journal.trouble, journal.cause) == ("", "")
    with path.open("a") as other:  # what others append is no trouble
        other.write("somebody else's\n")
    journal.append([])
    assert journal.cause == ""
    journal.close()
    assert sorted(JournalReader(path), key=lambda record: record.time) == notes(1, 13)


@pytest.mark.parametrize("moment", ["append", "close"])
def test_a_descriptor_that_became_somebody_else_s_is_never_written_and_never_closed(
    path: Path, tmp_path: Path, moment: str
) -> None:
    """Code of others may close what is not its own, and open its files under those numbers."""
    journal = Journal(path)
    journal.append(notes(1, 3))
    assert journal._file is not None
    (tmp_path / "theirs").write_bytes(b"dear\n")
    theirs = os.open(tmp_path / "theirs", os.O_RDWR)
    number = journal._file.descriptor
    os.dup2(theirs, number)  # closes ours and takes its number
    os.close(theirs)
    if moment == "append":
        journal.append(notes(4, 5))
        assert (journal.trouble, journal.is_behind) == ("", False)
    journal.close()
    os.close(number)  # still open
    assert (tmp_path / "theirs").read_bytes() == b"dear\n"
    assert list(JournalReader(path)) == notes(1, 5 if moment == "append" else 3)


# Reading, once or while it grows.


def read_all(reader: JournalReader) -> list[Record]:
    records = reader.read()
    while not reader.at_end:
        records += reader.read()
    return records


def test_each_read_returns_what_is_new_and_a_line_once_it_is_whole(path: Path) -> None:
    path.write_bytes(lines(1, 2))
    reader = JournalReader(path)
    assert reader.read() == notes(1, 2)
    assert reader.read() == []
    assert (reader.at_end, reader.torn, reader.restarted) == (True, False, False)
    whole = lines(3, 3)
    for piece, read, torn in (
        (whole[:40], [], True),
        (whole[40:-1], notes(3, 3), False),  # all but the line break
        (b"\n" + lines(4, 4), notes(4, 4), False),
    ):
        with path.open("ab") as file:
            file.write(piece)
        assert (reader.read(), reader.torn) == (read, torn)
    assert reader.damaged_lines == 0
    reader.close()


def test_iterating_holds_no_whole_file_and_sees_what_comes_meanwhile(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    records = iter(JournalReader(path))
    assert next(records) == notes(1, 1)[0]
    journal.append(notes(4, 4))
    journal.close()
    assert list(records) == notes(2, 4)


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_journal_that_was_repaired_is_read_again(path: Path, how: str) -> None:
    path.write_bytes(b"damaged\n" + lines(1, 4))
    reader = JournalReader(path)
    assert reader.read() == notes(1, 4)
    if how == "cut":
        path.write_bytes(lines(1, 1))
    else:
        path.with_name("other").write_bytes(lines(1, 5))
        path.with_name("other").replace(path)
    assert reader.read() == notes(1, 1 if how == "cut" else 5)
    assert (reader.restarted, reader.damaged_lines) == (True, 0)
    with path.open("ab") as file:
        file.write(lines(6, 6))
    assert reader.read() == notes(6, 6)
    assert not reader.restarted
    reader.close()


SOUND = line(notes(1, 1)[0])
NEWER = b'{"type":"FromTheFuture","time":1.0}\n'


@pytest.mark.parametrize("piece_bytes", [7, 1 << 20])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (SOUND, ""),
        (b"x\n", "passed over: 1 damaged line"),
        (b'x\n\xff\xfe\x00\n\n{"type": "Note"}\n' * 300 + SOUND, "passed over: 1,200 damaged lines"),
        (NEWER * 2, "passed over: 2 records of a later version"),
        (SOUND + SOUND[:20], "passed over: a last line that was cut off"),
        (
            b"x\n" + NEWER + b"x",
            "passed over: 1 damaged line, 1 record of a later version, a last line that was cut off",
        ),
    ],
)
def test_what_could_not_be_read_is_told_in_one_line(
    path: Path, content: bytes, told: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_reader, "PIECE_BYTES", piece_bytes)
    path.write_bytes(content)
    reader = JournalReader(path)
    assert reader.passed_over == ""
    assert len(list(reader)) == content.count(SOUND)
    assert reader.passed_over == told
    reader = JournalReader(path)
    assert (len(read_all(reader)), reader.passed_over) == (content.count(SOUND), told)
    reader.close()


@pytest.mark.parametrize(
    ("length", "end"), [(599, b"\n"), (600, b"\n"), (600, b""), (601, b""), (9000, b"\n")]
)
def test_a_line_too_long_for_a_record_is_one_damaged_line_and_is_never_held_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, length: int, end: bytes
) -> None:
    monkeypatch.setattr(strictjson, "MAX_LINE_BYTES", 600)
    monkeypatch.setattr(journal_reader, "PIECE_BYTES", 1000)
    long = codec.dumps(notes(9, 9)[0]).ljust(length).encode()
    path.write_bytes(lines(1, 3) + long + end)
    held = list[int]()
    reader = JournalReader(path)
    parsed = reader._record

    def hear(line: bytes) -> Record | None:
        held.append(len(line))
        return parsed(line)

    monkeypatch.setattr(reader, "_record", hear)
    broken = length + len(end) > 600
    assert len(list(reader)) == 3 + (not broken)
    assert (reader.damaged_lines, reader.torn) == (int(broken and bool(end)), broken and not end)
    assert max(held) <= 1600, "a line that may be a record, and a piece"
    path.write_bytes(lines(1, 1) + long + b"\n" + lines(2, 3))
    assert len(list(JournalReader(path))) == (4 if length < 600 else 3)
