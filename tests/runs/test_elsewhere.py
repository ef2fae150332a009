"""The index of runs outside of the saved ones: what is entered is listed, and nothing else ever is."""

import os
from pathlib import Path

import pytest

from amptui.runs.elsewhere import index_folder, note_elsewhere, runs_elsewhere
from amptui.runs.find import find_run, live_run
from amptui.runs.lock import RunLock
from amptui.runs.recent import kept_names, lock_files, run_folders
from amptui.runs.rundir import RunDir, default_base


def run_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    RunDir(folder).journal_path.write_text("")
    return folder


def test_a_run_elsewhere_is_listed_once_however_it_is_named_and_among_the_others_by_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [run_in(default_base() / "a"), run_in(tmp_path / "b"), run_in(default_base() / "c")]
    (tmp_path / "link").symlink_to(folders[1])
    monkeypatch.chdir(tmp_path)
    note_elsewhere(folders[0])
    assert not index_folder().exists(), "a saved run needs no entry"
    for name in (folders[1], Path("b"), tmp_path / "link", tmp_path / "b" / ".." / "b"):
        note_elsewhere(name)
    assert runs_elsewhere().runs == [str(folders[1])]
    for written, folder in enumerate(folders):
        os.utime(RunDir(folder).journal_path, (written, written))
    assert run_folders().newest_first == [*map(str, reversed(folders))]
    assert kept_names() == ["c", "a"], "a name means a saved run"
    with RunLock.take(folders[1]):
        assert live_run("").path == folders[1]
        assert [lock.folder for lock in lock_files()] == [str(folders[1])]
        assert find_run("") == RunDir(folders[2]).journal_path, "replayed is the newest saved one"
