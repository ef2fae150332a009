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
from amptui.records.run import Note, Record, RunFailed, RunFinished
from amptui.records.steps import Steps
from amptui.reports.export import export
from amptui.runs.journal import Journal
from amptui.runs.reader import JournalReader
from amptui.runs.repair import cut_after
from tests.builders import make_resumed, make_started, make_step, make_steps, make_switch
from tests.runs.test_journal import line, room_for
from tests.telemetry.record_strategies import RECORDS

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
