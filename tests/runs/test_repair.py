"""A journal that is cut where a run goes on: nothing lost, no later step left, and it reads as one."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RunFolderError
from amptui.records import codec
from amptui.records.run import Note, PrecisionChanged, Record, RunFailed, RunFinished
from amptui.records.steps import StepRecord
from amptui.reports.export import export
from amptui.runs.journal import Journal
from amptui.runs.repair import cut_after
from tests.builders import make_resumed, make_started, make_step, make_steps, read
from tests.runs.test_journal import room_for
from tests.telemetry.record_strategies import RECORDS

FINISHED = RunFinished(time=200.0, steps=10, seconds=5.0, reason="done")
FAILED = RunFailed(time=200.0, step=10, error="out of memory", traceback="")


def line(record: Record) -> bytes:
    return f"{codec.dumps(record)}\n".encode()


def note(text: str) -> Note:
    return Note(time=150.0, severity="info", text=text)


def written(folder: Path, records: Sequence[Record], more: bytes = b"") -> Path:
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(map(line, records)) + more)
    return path


def is_counted(record: Record) -> TypeGuard[StepRecord]:
    """Whether it is a step by which the run is counted: one of its first optimizer."""
    return isinstance(record, StepRecord) and not record.optimizer


def moved(journal: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(journal.parent.glob("journal.after-step-*.jsonl")))


def test_what_came_after_the_step_is_moved_beside_the_journal_and_the_run_reads_as_one(
    tmp_path: Path,
) -> None:
    before: list[Record] = [make_started(), *make_steps(1, 6), note("six")]
    after: list[Record] = [*make_steps(7, 10), note("ten")]
    path = written(tmp_path, [*before, *after])
    assert cut_after(path, 6) == 4
    assert list(read(path)) == before
    assert list(read(tmp_path / "journal.after-step-6-1.jsonl")) == after
    journal = Journal(path)
    journal.append([make_resumed(6, lost_steps=4), *make_steps(7, 8), FINISHED])
    journal.close()
    assert export(tmp_path, csv=tmp_path / "steps.csv").steps == 8
    with (tmp_path / "steps.csv").open() as table:
        assert [int(row["step"]) for row in csv.DictReader(table)] == list(range(1, 9))


def test_steps_of_another_optimizer_cut_nothing(tmp_path: Path) -> None:
    critic = make_steps(1, 40, optimizer="critic")
    kept: list[Record] = [make_started(optimizer="generator"), *make_steps(1, 6), *critic[:30]]
    path = written(tmp_path, [*kept, *make_steps(7, 8), *critic[30:]])
    assert cut_after(path, 6) == 2
    assert list(read(path)) == kept


def test_the_last_word_of_a_run_that_goes_on_is_moved_too_but_not_an_end_that_it_survived(
    tmp_path: Path,
) -> None:
    survived: list[Record] = [*make_steps(1, 3), FAILED, make_resumed(3), *make_steps(4, 10), note("kept")]
    path = written(tmp_path, [*survived, FINISHED, note("after it")])
    assert cut_after(path, 10) == 0
    assert list(read(path)) == survived
    assert moved(path) == line(FINISHED) + line(note("after it"))
    path.write_bytes(path.read_bytes() + line(make_step(11)))
    assert cut_after(path, 10) == 1
    assert list(read(path)) == survived
    assert (tmp_path / "journal.after-step-10-2.jsonl").read_bytes() == line(make_step(11))


def test_what_announced_the_first_later_step_goes_with_it_unless_it_was_told_ahead(tmp_path: Path) -> None:
    switch = PrecisionChanged(time=1.0, step=4, previous="fp32", current="bf16")
    behind: list[Record] = [*make_steps(1, 3), note("kept")]
    ahead: list[Record] = [*make_steps(1, 2), switch, make_step(3)]
    for number, kept in enumerate((behind, ahead)):
        (tmp_path / str(number)).mkdir()
        announced = [] if switch in kept else [switch]
        path = written(tmp_path / str(number), [*kept, *announced, *make_steps(4, 5)])
        assert cut_after(path, 3) == 2
        assert list(read(path)) == kept


@pytest.mark.parametrize("torn", [b'{"type":"StepRecord","time":1.0,"st', b"\x00\x00\xff"])
def test_a_journal_that_is_open_while_it_is_cut_goes_on_with_whole_lines(tmp_path: Path, torn: bytes) -> None:
    path = written(tmp_path, make_steps(1, 3), torn)
    journal = Journal(path)
    assert cut_after(path, 3) == 0
    assert moved(path) == torn
    journal.append([make_resumed(3), make_step(4)])
    journal.close()
    reader = read(path)
    assert list(reader) == [*make_steps(1, 3), make_resumed(3), make_step(4)]
    assert (reader.damaged_lines, reader.torn) == (0, False)


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
    [b"", b"x", b'{"type":"StepRecord"', b'{"type":"StepRecord","time":1,"step":70}', b"\xff"]
)
LINES = st.lists(
    st.one_of(
        RECORDS.map(lambda record: codec.dumps(record).encode()),
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
    content, before = path.read_bytes(), read(path)
    known = list(before)
    lost_steps = cut_after(path, cut)
    kept = read(path)
    left = list(kept)
    assert path.read_bytes() + moved(path) in (content, content + b"\n")
    assert all(record.step <= cut for record in left if is_counted(record))
    assert lost_steps == sum(is_counted(each) and each.step > cut for each in known[len(left) :])
    assert not kept.torn
    assert kept.damaged_lines <= before.damaged_lines
    last_step = max((at for at, each in enumerate(left) if is_counted(each)), default=-1)
    assert not any(isinstance(each, RunFinished | RunFailed) for each in left[last_step + 1 :])
    assert cut_after(path, cut) == 0, "what was cut needs no cutting"
    assert path.read_bytes() + moved(path) in (content, content + b"\n")
