"""The journal on sound and full disks and under other hands, and cut: nothing lost in silence."""

import csv
import errno
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.records import codec
from amptui.records.run import Note, Record, RunFailed, RunFinished
from amptui.records.steps import Steps
from amptui.reports.export.exporting import export
from amptui.runs.journal import Journal, JournalReader, cut_after
from tests.builders import make_resumed, make_started, make_step, make_steps, make_switch
from tests.record_values import RECORDS


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
@example(cut=len(line(notes(1, 1)[0])) - 1, more=1)
def test_a_journal_cut_off_anywhere_loses_only_the_line_that_was_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int, more: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    text = lines(1, 4)[:cut]
    path.write_bytes(text)
    ended = [note for note in notes(1, 4) if line(note) in text]
    assert list(JournalReader(path)) == ended
    journal = Journal(path)
    journal.append(notes(5, 4 + more))
    journal.close()
    # Where the end of a line alone was cut off, the next line begins with it.
    whole = [note for note in notes(1, 4) if codec.dumps(note).encode() in text] if more else ended
    assert list(JournalReader(path)) == whole + notes(5, 4 + more)


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


def test_records_wait_while_the_file_takes_none_and_follow_when_it_does_but_what_is_too_many_is_counted(
    path: Path,
) -> None:
    journal = Journal(path, max_waiting=19)
    with room_for(1000):
        journal.append(notes(1, 5))
        assert journal.trouble == ""
        for last, waiting in ((20, "15 records wait in memory"), (24, "19 records wait in memory")):
            journal.append(notes(6 if last == 20 else 21, last))
            assert journal.trouble == f"file too large: {waiting}"
        assert (journal.cause, journal.unsaved, journal.is_behind) == ("file too large", 19, True)
        assert path.read_bytes() == lines(1, 5)
    journal.append(notes(25, 25))
    assert (journal.trouble, journal.unsaved) == ("", 0)
    assert path.read_bytes() == lines(1, 25)
    with room_for(path.stat().st_size):
        journal.append(notes(26, 49))
        assert journal.trouble == "file too large: 19 records wait in memory, 5 are lost"
    journal.append(notes(50, 50))
    assert (journal.trouble, journal.cause) == ("file too large: 5 records are lost", "file too large")
    journal.close()
    assert path.read_bytes() == lines(1, 25) + lines(31, 50)
    journal = Journal(path)
    with room_for(path.stat().st_size):
        journal.append(notes(1, 9))
        journal.close()
    assert (journal.trouble, journal.unsaved) == ("file too large: 9 records are lost", 9)


def test_a_write_that_fails_and_yet_reached_the_file_in_part_leaves_nothing_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As file systems of a network do, and some when they are full."""
    write, failures = os.write, iter([0.5, 1.0, 0.0])

    def write_a_part(file: int, data: bytes) -> int:
        if (share := next(failures, None)) is None:
            return write(file, data)
        write(file, data[: int(len(data) * share)])
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = Journal(path)
    monkeypatch.setattr(os, "write", write_a_part)
    for first in (1, 4, 7, 10):
        journal.append(notes(first, first + 2))
    journal.close()
    assert path.read_bytes() == lines(1, 12)


@pytest.mark.parametrize(
    ("act", "told", "is_left"),
    [
        (Path.unlink, "journal.jsonl was deleted or moved", False),
        (lambda path: path.rename(path.with_name("aside")), "journal.jsonl was deleted or moved", True),
        (lambda path: path.parent.rename(path.parents[1] / "other"), "journal.jsonl was deleted", True),
    ],
    ids=["deleted", "moved", "moved folder"],
)
def test_what_others_do_to_the_file_is_told_and_records_go_into_what_is_left(
    path: Path, act: Callable[[Path], object], told: str, is_left: bool
) -> None:
    journal = Journal(path)
    journal.append(notes(1, 3))
    act(path)
    for first in (4, 5):
        journal.append(notes(first, first))
        assert journal.trouble.startswith(told)
        assert (journal.cause, journal.unsaved, journal.is_behind) == (journal.trouble, None, False)
    journal.append(notes(6, 6))
    journal.close()
    assert (journal.trouble.startswith(told), journal.unsaved) == (True, None)
    left = next((file for file in path.parents[1].rglob("*") if file.is_file()), None)
    assert (left is not None) == is_left
    if left is not None:
        assert list(JournalReader(left)) == notes(1, 6)


SOUND = line(notes(1, 1)[0])
NEWER = b'{"type":"FromTheFuture","time":1.0}\n'


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (SOUND, ""),
        (b"x\n", "passed over: 1 damaged line"),
        (b'x\n\xff\xfe\x00\n\n{"type": "Note"}\n' * 300 + SOUND, "passed over: 1,200 damaged lines"),
        (SOUND + SOUND[:20], "passed over: a last line that was cut off"),
        (b"x\n" + NEWER + b"x", "passed over: 2 damaged lines, a last line that was cut off"),
    ],
)
def test_what_could_not_be_read_is_told_in_one_line(path: Path, content: bytes, told: str) -> None:
    path.write_bytes(content)
    reader = JournalReader(path)
    assert reader.passed_over == ""
    assert len(list(reader)) == content.count(SOUND)
    assert reader.passed_over == told


@pytest.mark.parametrize(("length", "end"), [(599, b"\n"), (600, b"\n"), (601, b""), (9000, b"\n")])
def test_a_line_too_long_for_a_record_is_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch, length: int, end: bytes
) -> None:
    monkeypatch.setattr(strictjson, "MAX_LINE_BYTES", 600)
    long = codec.dumps(notes(9, 9)[0]).ljust(length).encode()
    path.write_bytes(lines(1, 3) + long + end)
    reader = JournalReader(path)
    is_broken = length + len(end) > 600
    assert len(list(reader)) == 3 + (not is_broken)
    assert (bool(reader.damaged_lines), reader.torn) == (is_broken, is_broken and not end)


FINISHED = RunFinished(time=200.0, steps=10, seconds=5.0, reason="done")
FAILED = RunFailed(time=200.0, step=10, error="out of memory", traceback="")


def note(text: str) -> Note:
    return Note(time=150.0, severity="info", text=text)


def written(folder: Path, records: Sequence[Record], more: bytes = b"") -> Path:
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(map(line, records)) + more)
    return path


def is_counted(record: Record) -> TypeGuard[Steps]:
    """Whether it is a step by which the run is counted: one of its first optimizer."""
    return isinstance(record, Steps) and not record.optimizer


def moved(journal: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(journal.parent.glob("journal.after-step-*.jsonl")))


TORN = b'{"type":"Steps","time":1.0,"fir'


@pytest.mark.parametrize("torn", [b"", TORN, b"\x00\x00\xff"])
def test_what_came_after_the_step_is_moved_beside_the_journal_and_the_run_reads_as_one(
    tmp_path: Path, torn: bytes
) -> None:
    """With what announced the first later step; what was told ahead and another optimizer's steps stay."""
    critic, switch = make_steps(1, 40, optimizer="critic"), make_switch(7, "fp32", "bf16")
    started = make_started(optimizer="generator")
    before: list[Record] = [started, *make_steps(1, 5), switch, make_step(6), *critic[:30], note("six")]
    after: list[Record] = [make_switch(7, "bf16", "fp32"), *make_steps(7, 10), *critic[30:], note("ten")]
    path = written(tmp_path, [*before, *after], torn)
    journal = Journal(path)
    assert cut_after(path, 6) == 4
    assert list(JournalReader(path)) == before
    assert moved(path) == b"".join(map(line, after)) + torn
    journal.append([make_resumed(6, lost_steps=4), *make_steps(7, 8), FINISHED])
    journal.close()
    assert (JournalReader(path).damaged_lines, JournalReader(path).torn) == (0, False)
    assert export(tmp_path, csv=tmp_path / "steps.csv").steps == 38
    with (tmp_path / "steps.csv").open() as table:
        ours = [int(row["step"]) for row in csv.DictReader(table) if row["optimizer"] != "critic"]
    assert ours == list(range(1, 9))


def test_the_last_word_of_a_run_that_goes_on_is_moved_too_but_not_an_end_that_it_survived(
    tmp_path: Path,
) -> None:
    survived: list[Record] = [*make_steps(1, 3), FAILED, make_resumed(3), *make_steps(4, 10), note("kept")]
    path = written(tmp_path, [*survived, FINISHED, note("after it")])
    assert cut_after(path, 10) == 0
    assert list(JournalReader(path)) == survived
    assert moved(path) == line(FINISHED) + line(note("after it"))
    path.write_bytes(path.read_bytes() + line(make_step(11)))
    assert cut_after(path, 10) == 1
    assert list(JournalReader(path)) == survived
    assert (tmp_path / "journal.after-step-10-2.jsonl").read_bytes() == line(make_step(11))


def test_where_nothing_can_be_cut_the_journal_stays_as_it_was(tmp_path: Path) -> None:
    assert cut_after(tmp_path / "journal.jsonl", 5) == 0
    assert list(tmp_path.iterdir()) == []
    path = written(tmp_path, make_steps(1, 20))
    before = path.read_bytes()
    with room_for(600), pytest.raises(RunFolderError, match=r"cannot cut .* after step 2: file too large"):
        cut_after(path, 2)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


DAMAGE = st.sampled_from(
    [b"", b"x", b'{"type":"Steps"', b'{"type":"Steps","time":1,"first_step":70}', b"\xff"]
)
LINES = st.lists(
    st.one_of(
        # A block is divided, and its parts are written anew.
        RECORDS.map(lambda it: it.part(0, 1) if isinstance(it, Steps) else it).map(line).map(bytes.rstrip),
        st.integers(0, 60).map(lambda number: codec.dumps(make_step(number)).encode()),
        DAMAGE,
    ),
    max_size=30,
)


@given(lines=LINES, ends=st.booleans(), cut=st.integers(0, 60))
def test_of_any_journal_nothing_is_lost_and_no_later_step_is_left(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ends else b""))
    content, before = path.read_bytes(), JournalReader(path)
    known = list(before)
    lost_steps = cut_after(path, cut)
    kept = JournalReader(path)
    left = list(kept)
    assert path.read_bytes() + moved(path) in (content, content + b"\n")
    assert all(record.step <= cut for record in left if is_counted(record))
    later = [each.last_step - max(cut, each.first_step - 1) for each in known if is_counted(each)]
    assert lost_steps == sum(steps for steps in later if steps > 0)
    assert not kept.torn
    assert kept.damaged_lines <= before.damaged_lines
    last_step = max((at for at, each in enumerate(left) if is_counted(each)), default=-1)
    assert not any(isinstance(each, RunFinished | RunFailed) for each in left[last_step + 1 :])
    assert cut_after(path, cut) == 0, "what was cut needs no cutting"
    assert path.read_bytes() + moved(path) in (content, content + b"\n")
