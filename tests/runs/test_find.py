"""Finding a run: by folder, journal or name; what is not there is told in one line."""

import os
from pathlib import Path

import pytest

from amptui.errors import RunFolderError, UsageError
from amptui.runs.find import find_run, journal_of, name_of
from amptui.runs.rundir import RunDir, create_run_dir, default_base


def kept(name: str, age_seconds: int = 0) -> Path:
    """The journal of a kept run, written so long ago."""
    run_dir = RunDir(default_base() / name)
    run_dir.path.mkdir(parents=True)
    run_dir.journal_path.write_text("")
    then = 1_800_000_000 - age_seconds
    os.utime(run_dir.journal_path, (then, then))
    return run_dir.journal_path


def test_a_folder_and_a_journal_are_found_where_they_are(tmp_path: Path) -> None:
    journal = RunDir(tmp_path).journal_path
    journal.touch()
    assert find_run(str(tmp_path)) == find_run(str(journal)) == journal
    assert journal_of(tmp_path) == journal_of(journal) == journal


def test_the_home_folder_may_be_written_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    journal = RunDir(tmp_path).journal_path
    journal.touch()
    assert find_run("~") == journal


def test_a_kept_run_is_found_by_its_name_and_the_newest_of_a_model_by_the_model_s() -> None:
    old, new = kept("mnist-20261120-120000", 50), kept("mnist-20261120-120000-2", 10)
    other = kept("mnist-deep-20261120-120000", 0)
    assert find_run("mnist-20261120-120000") == old
    assert find_run("mnist") == new
    assert find_run("mnist-deep") == other
    with pytest.raises(
        UsageError, match=r"no run 'mni'; give a run's folder, its journal\.jsonl or its name"
    ):
        find_run("mni")


def test_a_name_is_that_of_a_run_as_training_names_it() -> None:
    run_dir = create_run_dir(None, "a/b/my_model.py")
    run_dir.journal_path.touch()
    assert find_run("my_model") == run_dir.journal_path


def test_without_a_name_it_is_the_run_that_was_written_last() -> None:
    kept("a", 10)
    newest = kept("b", 0)
    kept("c", 20)
    (default_base() / "d").mkdir()
    (default_base() / "file").touch()
    assert find_run("") == newest


@pytest.mark.parametrize("text", ["", "mnist", "no/such/run", "../a"])
def test_what_is_not_there_is_told_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_run(text)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
    assert caught.value.mend


def test_a_folder_without_a_journal_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"holds no journal\.jsonl; give the folder of a run"):
        find_run(str(tmp_path))


def test_a_base_that_is_no_folder_holds_no_runs() -> None:
    default_base().parent.mkdir(parents=True)
    default_base().touch()
    with pytest.raises(UsageError, match="no run is kept in"):
        find_run("")


@pytest.mark.parametrize(
    ("path", "name"),
    [("runs/mnist-1/journal.jsonl", "mnist-1"), ("saved/best.jsonl", "best"), ("/journal.jsonl", "journal")],
)
def test_a_run_is_called_by_its_folder_or_by_its_renamed_journal(path: str, name: str) -> None:
    assert name_of(Path(path)) == name


def test_a_journal_in_the_working_folder_has_that_folder_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-run").mkdir()
    monkeypatch.chdir(tmp_path / "my-run")
    assert name_of(Path("journal.jsonl")) == "my-run"
