"""Journals read side by side, and read on while runs still train."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError
from amptui.records import codec
from amptui.records.run import Record
from amptui.reports.compare import following as module
from amptui.reports.compare.contrasts import Compared
from amptui.reports.compare.following import Following, read_all
from amptui.runs.lock import RunLock
from tests.builders import write_journal as write
from tests.living import wait_until
from tests.reports.compare.compared_runs import finished, trained, whole_run


def until(following: Following, holds: Callable[[Compared], bool]) -> Compared:
    """The first comparison of which that is so."""

    def has_come() -> bool:
        newest = following.newest
        return following.failure is not None or (newest is not None and holds(newest))

    wait_until(has_come, "it never came to be")
    assert following.failure is None, following.failure
    assert following.newest is not None
    return following.newest


@contextmanager
def watching(journals: list[Path]) -> Iterator[Following]:
    following = Following(journals, target=None)
    following.start()
    yield following
    following.stop()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def append(journal: Path, *records: Record) -> None:
    with journal.open("a") as file:
        file.writelines(f"{codec.dumps(record)}\n" for record in records)


@pytest.fixture
def journals(tmp_path: Path) -> list[Path]:
    runs = [whole_run()[:-1], whole_run(2.0, precision="bf16")]
    return [write(tmp_path / f"run{i}", records) / "journal.jsonl" for i, records in enumerate(runs)]


def test_a_run_is_followed_to_its_end(journals: list[Path]) -> None:
    with RunLock.take(journals[0].parent), watching(journals) as following:
        result = until(following, lambda result: result.runs[0].view.step == 30)
        assert [run.is_live for run in result.runs] == [True, False]
        append(journals[0], *trained([1.0] * 10, first=31))
        result = until(following, lambda result: result.runs[0].view.step == 40)
        assert result.runs[0].samples == 400
        append(journals[0], finished(40))
        until(following, lambda result: result.runs[0].view.outcome is not None)


def test_an_unreadable_journal_ends_it(journals: list[Path]) -> None:
    with watching([journals[0], journals[1].with_name("none")]) as following:
        following._thread.join(60)
        assert isinstance(following.failure, RunFolderError)


def test_what_could_not_be_read_is_told(tmp_path: Path, journals: list[Path]) -> None:
    with journals[1].open("a") as file:
        file.write("{broken\n")
    comparison = read_all(journals, target=None)
    assert comparison.runs[0].passed_over == ""
    assert "1 damaged line" in comparison.runs[1].passed_over
    empty = tmp_path / "notes.txt"
    empty.write_text("hello\nthere\n")
    with pytest.raises(RunFolderError, match=r"notes.txt holds no records; .*: 2 damaged"):
        read_all([journals[0], empty], target=None)
