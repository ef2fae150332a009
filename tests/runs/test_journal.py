"""The journal on sound disks and on full ones: whole lines only, nothing lost that fits in memory."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.records import codec
from amptui.records.run import Note, Record
from amptui.runs.journal import Journal, JournalReader, read
from tests.runs import small_disk


def notes(first: int, last: int) -> list[Record]:
    return [
        Note(time=float(n), severity="info", text=f"note {n} ".ljust(60, ".")) for n in range(first, last + 1)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_what_is_appended_is_read_back_in_order(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    journal.append([])
    journal.append(notes(4, 2500))
    journal.close()
    assert list(read(path)) == notes(1, 2500)
    assert journal.trouble == ""


def test_records_are_in_the_file_as_soon_as_they_are_appended(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    assert list(read(path)) == notes(1, 3)
    journal.close()


def test_a_journal_is_continued_where_it_ended(path: Path) -> None:
    for first in (1, 11):
        journal = Journal(path)
        journal.append(notes(first, first + 9))
        journal.close()
    assert list(read(path)) == notes(1, 20)


def test_closing_twice_is_harmless_and_a_closed_journal_takes_nothing(path: Path) -> None:
    journal = Journal(path)
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.append(notes(1, 1))


@given(cut=st.integers(0, 400), more=st.integers(0, 3))
def test_a_journal_cut_off_anywhere_loses_only_the_line_that_was_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int, more: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    text = "".join(f"{codec.dumps(note)}\n" for note in notes(1, 4))[:cut]
    path.write_text(text)
    whole = [note for note in notes(1, 4) if codec.dumps(note) in text]
    assert list(read(path)) == whole
    journal = Journal(path)
    journal.append(notes(5, 4 + more))
    journal.close()
    assert list(read(path)) == whole + notes(5, 4 + more)


def test_damaged_lines_are_passed_over_and_counted(path: Path) -> None:
    lines = [codec.dumps(note).encode() for note in notes(1, 3)]
    lines[1:1] = [b"\xff\xfe\x00", b'{"type": "Note"}', b"", b'{"type": "OfLater", "time": 1.0}']
    path.write_bytes(b"\n".join(lines) + b'\n{"type": "No')
    reader = read(path)
    assert list(reader) == notes(1, 3)
    assert (reader.damaged_lines, reader.unknown_records, reader.torn) == (3, 1, True)


def test_a_journal_that_is_not_there_is_told_in_one_line(path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot read the journal .*no such file"):
        next(read(path))


def test_a_journal_in_a_place_that_is_no_folder_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot write the journal .*not a directory") as caught:
        Journal(tmp_path / "file" / "journal.jsonl")
    assert "\n" not in str(caught.value)


# A disk that takes no more. The file-size limit is a real one of the operating system's and needs no
# rights; it holds for a whole process, hence the scripts of their own.

PRELUDE = """
import resource, sys
from pathlib import Path
from amptui.records.run import Note
from amptui.runs.journal import Journal, read

def notes(first, last):
    numbers = range(first, last + 1)
    return [Note(time=float(n), severity="info", text=f"note {n} ".ljust(60, ".")) for n in numbers]

def limit_bytes(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

path = Path(sys.argv[1])
journal = Journal(path)
"""


def run_limited(path: Path, script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_records_wait_while_the_file_takes_none_and_follow_when_it_does(path: Path) -> None:
    out = run_limited(
        path,
        """
limit_bytes(1000)
journal.append(notes(1, 5))
assert journal.trouble == "", journal.trouble
journal.append(notes(6, 20))
print(journal.trouble)
assert list(read(path)) == notes(1, 8), len(list(read(path)))
assert path.read_bytes().endswith(b"\\n")
journal.append(notes(21, 25))
print(journal.trouble)
limit_bytes(resource.RLIM_INFINITY)
journal.append(notes(26, 26))
assert journal.trouble == ""
journal.close()
""",
    )
    assert out.splitlines() == [
        "file too large: 12 records wait in memory",
        "file too large: 17 records wait in memory",
    ]
    reader = read(path)
    assert list(reader) == notes(1, 26)
    assert (reader.damaged_lines, reader.torn) == (0, False)


def test_what_waits_is_bounded_and_what_is_lost_is_counted(path: Path) -> None:
    out = run_limited(
        path,
        """
journal = Journal(path, max_waiting=10)
limit_bytes(10)
journal.append(notes(1, 15))
print(journal.trouble)
limit_bytes(resource.RLIM_INFINITY)
journal.append(notes(16, 16))
print(journal.trouble)
""",
    )
    assert out.splitlines() == [
        "file too large: 10 records wait in memory, 5 are lost",
        "file too large: 5 records are lost",
    ]
    assert list(read(path)) == notes(6, 16)


def test_closing_on_a_full_disk_raises_nothing_and_leaves_whole_lines(path: Path) -> None:
    run_limited(path, "limit_bytes(500)\njournal.append(notes(1, 10))\njournal.close()\n")
    reader = read(path)
    assert list(reader) == notes(1, 4)
    assert not reader.torn


def test_a_half_line_that_cannot_be_cut_off_costs_no_whole_line(path: Path) -> None:
    run_limited(
        path,
        """
import os
def refuse(file, size):
    raise OSError(5, "Input/output error")
cut, os.ftruncate = os.ftruncate, refuse
limit_bytes(1000)
journal.append(notes(1, 20))
os.ftruncate = cut
limit_bytes(resource.RLIM_INFINITY)
journal.append(notes(21, 21))
journal.close()
""",
    )
    reader = read(path)
    assert list(reader) == notes(1, 21)
    assert reader.damaged_lines == 1


ON_A_SMALL_DISK = PRELUDE.replace("Path(sys.argv[1])", "Path(sys.argv[1]) / 'journal.jsonl'")


def test_a_disk_that_is_really_full_costs_nothing_once_it_has_room(tmp_path: Path) -> None:
    small_disk.run(
        tmp_path,
        ON_A_SMALL_DISK
        + """
ballast = path.parent / "ballast"
ballast.write_bytes(bytes(40_000))
for first in range(1, 301, 10):
    journal.append(notes(first, first + 9))
assert journal.trouble.startswith("no space left on device: "), journal.trouble
kept = list(read(path))
assert 0 < len(kept) < 300 and kept == notes(1, len(kept))
assert path.read_bytes().endswith(b"\\n")
ballast.unlink()
journal.append(notes(301, 301))
assert journal.trouble == ""
assert list(read(path)) == notes(1, 301)
journal.close()
""",
    )


def test_a_journal_that_is_deleted_on_a_full_disk_comes_back_when_there_is_room(tmp_path: Path) -> None:
    small_disk.run(
        tmp_path,
        ON_A_SMALL_DISK
        + """
from amptui.runs import lasting
lasting._LOOK_SECONDS, lasting._RETRY_SHARE = 0.0, float("inf")
ballast = path.parent / "ballast"
journal.append(notes(1, 100))
ballast.write_bytes(bytes(65_536 - 3 * 4096))
path.unlink()
for number in (101, 102, 103):
    journal.append(notes(number, number))
assert journal.trouble == (
    "journal.jsonl was deleted or moved and cannot be recreated: no space left on device"
), journal.trouble
assert not path.exists()
ballast.unlink()
journal.append(notes(104, 104))
assert journal.trouble == ""
assert list(read(path)) == notes(1, 104)
assert os.listdir(path.parent) == ["journal.jsonl"]
journal.close()
""",
    )


def test_reading_is_an_iterator_that_does_not_hold_the_whole_file(path: Path) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    reader = read(path)
    assert next(reader) == notes(1, 1)[0]
    journal.append(notes(4, 4))
    journal.close()
    assert list(reader) == notes(2, 4)
    assert isinstance(reader, JournalReader)
    assert list(reader) == []


def test_what_still_waits_when_the_journal_is_closed_is_lost_and_said_to_be(path: Path) -> None:
    out = run_limited(
        path,
        """
limit_bytes(1000)
journal.append(notes(1, 20))
journal.close()
print(journal.trouble)
assert list(read(path)) == notes(1, 8)
""",
    )
    assert out == "file too large: 12 records are lost\n"


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("length", [599, 600, 5000, 100_000])
def test_a_line_too_long_for_a_record_is_one_damaged_line_and_is_never_held_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, length: int, end: bytes
) -> None:
    monkeypatch.setattr(strictjson, "MAX_LINE_BYTES", 600)
    monkeypatch.setattr("amptui.runs.journal._PIECE_BYTES", 1000)
    first, *rest = [f"{codec.dumps(record)}\n".encode() for record in notes(1, 3)]
    long = codec.dumps(notes(9, 9)[0]).ljust(length).encode()
    path.write_bytes(first + b"".join(rest) + long + end)
    held = list[int]()
    reader = read(path)
    monkeypatch.setattr(reader, "_parsed", heard(reader, held))
    assert len(list(reader)) == (4 if length + len(end) <= 600 else 3)
    broken = length + len(end) > 600
    assert (reader.damaged_lines, reader.torn) == (int(broken and bool(end)), broken and not end)
    assert max(held) <= 602
    path.write_bytes(first + long + b"\n" + b"".join(rest))
    assert len(list(read(path))) == (4 if length < 600 else 3)


def heard(reader: JournalReader, lengths: list[int]) -> Callable[[bytes], Record | None]:
    """What the reader does with a line, and how long each was."""
    parsed = reader._parsed

    def hear(line: bytes) -> Record | None:
        lengths.append(len(line))
        return parsed(line)

    return hear


SOUND = f"{codec.dumps(Note(time=1.0, severity='info', text='a'))}\n"
NEWER = '{"type":"FromTheFuture","time":1.0}\n'


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (SOUND, ""),
        ("x\n", "passed over: 1 damaged line"),
        ("x\n" * 1200 + SOUND, "passed over: 1,200 damaged lines"),
        (NEWER * 2, "passed over: 2 records of a later version"),
        (SOUND + SOUND[:20], "passed over: a last line that was cut off"),
        (
            f"x\n{NEWER}x",
            "passed over: 1 damaged line, 1 record of a later version, a last line that was cut off",
        ),
    ],
)
def test_what_could_not_be_read_is_told_in_one_line(path: Path, content: str, told: str) -> None:
    path.write_text(content)
    reader = read(path)
    assert reader.passed_over == ""
    assert len(list(reader)) == content.count(SOUND)
    assert reader.passed_over == told
