"""A journal that is deleted, moved or replaced under a run: noticed and made again, over nobody else's."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amptui.records import codec
from amptui.records.run import Note, Record
from amptui.runs import journal as journals
from amptui.runs import lasting
from amptui.runs.journal import TRUNCATED, Journal
from amptui.runs.reader import JournalReader
from tests.runs.served import until


def notes(first: int, last: int) -> list[Record]:
    return [Note(time=float(n), severity="info", text=f"note {n}") for n in range(first, last + 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    return tmp_path / "runs" / "run" / "journal.jsonl"


@pytest.fixture
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every append looks, so that no test has to wait a second."""
    monkeypatch.setattr(lasting, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lasting, "_RETRY_SHARE", float("inf"))


def delete(path: Path) -> None:
    path.unlink()


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def delete_all_runs(path: Path) -> None:
    shutil.rmtree(path.parent.parent)


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.jsonl"))


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.usefixtures("_always_look")
@pytest.mark.parametrize("harm", [delete, delete_folder, delete_all_runs, move, move_folder])
def test_a_journal_that_lost_its_name_is_told_and_made_again_with_all_it_held(
    path: Path, harm: Callable[[Path], None]
) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    harm(path)
    journal.append(notes(4, 4))
    assert journal.trouble == "journal.jsonl was deleted or moved: writing it again"
    assert journal.is_behind
    journal.append(notes(5, 5))
    assert (journal.trouble, journal.is_behind) == ("", False)
    assert list(JournalReader(path)) == notes(1, 5)
    journal.append(notes(6, 6))
    journal.close()
    assert list(JournalReader(path)) == notes(1, 6)
    assert not list(path.parent.glob("*.tmp"))


@pytest.mark.ci
def test_it_is_noticed_without_a_word_from_anybody(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 2))
    path.unlink()
    until(path.exists, meanwhile=lambda: journal.append([]))
    assert list(JournalReader(path)) == notes(1, 2)
    journal.close()


def test_what_was_deleted_just_before_the_end_is_there_after_it(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    shutil.rmtree(path.parent)
    journal.close()
    assert list(JournalReader(path)) == notes(1, 3)
    assert journal.trouble == ""


@pytest.mark.usefixtures("_always_look")
def test_a_place_that_cannot_be_made_again_is_told_until_it_can(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 2))
    shutil.rmtree(path.parent)
    path.parent.touch()
    for number in (3, 4, 5):
        journal.append(notes(number, number))
    assert journal.trouble == "journal.jsonl was deleted or moved and cannot be recreated: file exists"
    path.parent.unlink()
    journal.append(notes(6, 6))
    assert journal.trouble == ""
    assert list(JournalReader(path)) == notes(1, 6)
    journal.close()


@pytest.mark.usefixtures("_always_look")
def test_another_s_file_of_that_name_is_never_overwritten(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 2))
    path.rename(path.with_name("old.jsonl"))
    path.write_text("somebody else's\n")
    for number in (3, 4, 5):
        journal.append(notes(number, number))
    stand_in = path.with_name("journal.2.jsonl")
    assert journal.trouble == ("another file took the name journal.jsonl: records go to journal.2.jsonl")
    assert not journal.is_behind
    assert path.read_text() == "somebody else's\n"
    assert list(JournalReader(stand_in)) == notes(1, 5)
    path.unlink()
    for number in (6, 7):
        journal.append(notes(number, number))
    journal.close()
    assert journal.trouble == ""
    assert list(JournalReader(path)) == notes(1, 7)
    assert not stand_in.exists(), "what stood in for the journal is not left twice"


@pytest.mark.parametrize("left_bytes", [0, 100, 400])
def test_a_journal_that_somebody_truncates_is_written_again(path: Path, left_bytes: int) -> None:
    journal = Journal(path)
    journal.append(notes(1, 9))
    for first in (10, 12):
        os.truncate(path, left_bytes)
        journal.append(notes(first, first + 1))
        assert journal.trouble == f"{TRUNCATED}, and all of it is written again"
        assert (journal.cause, journal.unsaved) == (TRUNCATED, 0)
    journal.append([])
    assert (journal.trouble, journal.cause) == ("", "")
    journal.close()
    assert sorted(JournalReader(path), key=lambda record: record.time) == notes(1, 13)


def test_of_a_long_journal_that_somebody_truncates_both_ends_are_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_FIRST_BYTES", 150)
    monkeypatch.setattr(journals, "_LAST_BYTES", 300)
    journal = Journal(path)
    for number in range(1, 41):
        journal.append(notes(number, number))
    os.truncate(path, 0)
    journal.append(notes(41, 41))
    journal.append([])
    kept = [int(record.time) for record in JournalReader(path)]
    lost = 41 - len(kept)
    assert kept[:3] == [1, 2, 3]
    assert kept[3:] == list(range(4 + lost, 42))
    assert 25 < lost < 38
    assert (journal.trouble, journal.unsaved) == (f"{TRUNCATED}: {lost} records are lost", lost)
    journal.close()
    assert journal.unsaved == lost


def test_a_journal_that_somebody_overwrites_with_more_is_written_again(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 4))
    path.write_text("somebody else's\n" * 1000)
    journal.append(notes(5, 5))
    assert (journal.cause, journal.unsaved) == (TRUNCATED, 0)
    journal.append([])
    journal.close()
    assert list(JournalReader(path)) == notes(1, 5)


def test_what_others_append_is_no_trouble(path: Path) -> None:
    journal = Journal(path)
    for number in (1, 2, 3):
        journal.append(notes(number, number))
        with path.open("a") as other:
            other.write("somebody else's\n")
        journal.append([])
        assert journal.cause == ""
    journal.close()
    assert list(JournalReader(path)) == notes(1, 3)


def test_what_was_written_after_a_truncation_is_not_written_twice(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 4))
    os.truncate(path, 0)
    assert journal._file is not None
    journal._waiting.extend(f"{codec.dumps(note)}\n".encode() for note in notes(5, 6))
    journal._flush(journal._file)  # as if the file was truncated between the look and the write
    journal.append([])
    journal.close()
    assert [record.time for record in JournalReader(path)] == [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]


def test_records_of_an_earlier_process_are_counted_when_they_are_truncated(path: Path) -> None:
    for first in (1, 6):
        journal = Journal(path)
        journal.append(notes(first, first + 4))
        if first == 1:
            journal.close()
    os.truncate(path, 0)
    journal.close()
    assert list(JournalReader(path)) == notes(6, 10)
    assert journal.unsaved == 5


def make_unreadable(journal: Journal, path: Path) -> int:
    """The journal's own descriptor takes lines and gives none back, as one of a server that lost the file."""
    assert journal._file is not None
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, journal._file.descriptor)
    os.close(descriptor)
    return journal._file.descriptor


@pytest.mark.usefixtures("_always_look")
def test_where_the_old_lines_cannot_be_read_at_least_the_new_ones_are_kept(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    make_unreadable(journal, path)
    path.unlink()
    for number in (4, 5, 6):
        journal.append(notes(number, number))
    assert journal.trouble == "the old journal could not be read: 4 records are lost"
    journal.close()
    assert list(JournalReader(path)) == notes(5, 6)


@pytest.mark.usefixtures("_always_look")
def test_a_descriptor_that_went_stale_is_replaced_by_the_same_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    stale, fstat = make_unreadable(journal, path), os.fstat

    def stale_fstat(descriptor: int) -> os.stat_result:
        if descriptor == stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return fstat(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale_fstat)
        journal.append(notes(4, 4))
        assert journal.is_behind
        journal.append(notes(5, 5))
    journal.append(notes(6, 6))
    journal.close()
    assert journal.trouble == ""
    assert list(JournalReader(path)) == notes(1, 6)
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture
def stolen(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Puts somebody else's file where a descriptor of ours was: code may close what is not its own."""
    taken: list[int] = []

    def steal(descriptor: int) -> Path:
        path = tmp_path / f"of a person {len(taken)}"
        path.write_bytes(b"dear\n")
        theirs = os.open(path, os.O_RDWR)
        os.dup2(theirs, descriptor)  # closes ours and takes its number
        os.close(theirs)
        taken.append(descriptor)
        return path

    yield steal
    for descriptor in taken:
        os.close(descriptor)  # theirs, and still open


@pytest.mark.parametrize("moment", ["append", "close"])
def test_a_descriptor_that_became_somebody_else_s_is_never_written_and_never_closed(
    path: Path, stolen: Callable[[int], Path], moment: str
) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    assert journal._file is not None
    theirs = stolen(journal._file.descriptor)
    if moment == "append":
        journal.append(notes(4, 5))
        assert (journal.trouble, journal.is_behind) == ("", False)
        assert list(JournalReader(path)) == notes(1, 5)
    journal.close()
    assert theirs.read_bytes() == b"dear\n"
    assert list(JournalReader(path)) == notes(1, 5 if moment == "append" else 3)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("moment", ["append", "close"])
def test_a_descriptor_that_somebody_closed_is_opened_again(path: Path, moment: str) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    assert journal._file is not None
    os.close(journal._file.descriptor)
    if moment == "append":
        journal.append(notes(4, 5))
    journal.close()
    assert list(JournalReader(path)) == notes(1, 5 if moment == "append" else 3)


@pytest.mark.usefixtures("_always_look")
def test_a_journal_that_was_deleted_and_whose_descriptor_was_taken_keeps_what_comes(
    path: Path, stolen: Callable[[int], Path]
) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    path.unlink()
    assert journal._file is not None
    theirs = stolen(journal._file.descriptor)
    journal.append(notes(4, 5))
    journal.append(notes(6, 6))
    assert "3 are lost" in journal.trouble or "3 records are lost" in journal.trouble
    journal.close()
    assert list(JournalReader(path)) == notes(4, 6)
    assert theirs.read_bytes() == b"dear\n"
