"""The index of runs outside of the saved ones: what is entered is listed, and nothing else ever is."""

import os
import threading
from pathlib import Path

import pytest

from amptui.runs.elsewhere import index_folder, note_elsewhere, runs_elsewhere
from amptui.runs.find import find_run, live_run
from amptui.runs.folder_probe import FolderProbe
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


def test_a_folder_that_does_not_answer_costs_a_wait_once_and_all_others_are_there() -> None:
    is_back, asked, probe = threading.Event(), list[str](), FolderProbe()

    def look(folder: str) -> str:
        asked.append(folder)
        if folder == "/dead/b":
            is_back.wait()
        return folder.upper()

    try:
        for _ in range(2):
            answers = probe.look(["/a/a", "/dead/b", "/dead/c", "/a/d"], look, patience_seconds=0.2)
            assert answers == {"/a/a": "/A/A", "/a/d": "/A/D"}
        assert asked == ["/a/a", "/dead/b", "/a/d", "/a/a", "/a/d"], "what lies beside it is not asked"
    finally:
        is_back.set()
