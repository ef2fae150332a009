"""The index of runs outside of the saved ones: what is entered is listed, and nothing else ever is."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.runs.elsewhere import index_folder, note_elsewhere, runs_elsewhere
from amptui.runs.find import find_run, live_run
from amptui.runs.lock import RunLock
from amptui.runs.recent import kept_names, lock_files, run_folders
from amptui.runs.removal import plan_removal, remove
from amptui.runs.rundir import RunDir, default_base


def run_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    RunDir(folder).journal_path.write_text("")
    return folder


def entries() -> list[str]:
    return sorted(path.name for path in index_folder().iterdir()) if index_folder().exists() else []


def test_a_run_elsewhere_is_listed_once_however_often_and_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_in(tmp_path / "mine")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for name in (folder, Path("mine"), tmp_path / "link", tmp_path / "mine" / ".." / "mine"):
        note_elsewhere(name)
    assert runs_elsewhere().runs == [str(folder)]


def test_a_saved_run_needs_no_entry() -> None:
    run_in(default_base() / "m-1")
    note_elsewhere(default_base() / "m-1")
    assert not index_folder().exists()
    assert run_folders().newest_first == [str(default_base() / "m-1")]


def test_runs_elsewhere_stand_among_the_others_by_age(tmp_path: Path) -> None:
    folders = [run_in(default_base() / "a"), run_in(tmp_path / "b"), run_in(default_base() / "c")]
    for written, folder in enumerate(folders):
        note_elsewhere(folder)
        os.utime(RunDir(folder).journal_path, (written, written))
    assert run_folders().newest_first == [*map(str, reversed(folders))]
    assert kept_names() == ["c", "a"], "a name means a saved run"


def test_the_newest_live_run_may_be_elsewhere(tmp_path: Path) -> None:
    run_in(default_base() / "a")
    folder = run_in(tmp_path / "b")
    note_elsewhere(folder)
    with RunLock.take(folder):
        assert live_run("").path == folder
        assert [lock.folder for lock in lock_files()] == [str(folder)]
        assert find_run("") == RunDir(default_base() / "a").journal_path, "replayed is the newest saved one"


def gone(folder: Path) -> None:
    RunDir(folder).journal_path.unlink()
    folder.rmdir()


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def emptied(folder: Path) -> None:
    RunDir(folder).journal_path.unlink()


def replaced(folder: Path) -> None:
    gone(folder)
    folder.write_text("a file")


def linked(folder: Path) -> None:
    moved(folder)
    folder.symlink_to(folder.with_name("moved"))


@pytest.mark.parametrize("loss", [gone, moved, emptied, replaced, linked])
def test_an_entry_whose_run_is_gone_is_dropped(loss: Callable[[Path], None], tmp_path: Path) -> None:
    folder, other = run_in(tmp_path / "run"), run_in(tmp_path / "other")
    note_elsewhere(folder)
    note_elsewhere(other)
    loss(folder)
    assert runs_elsewhere().runs == [str(other)]
    assert len(entries()) == 1
    if loss is not replaced:
        if folder.is_symlink():
            folder.unlink()
        folder.mkdir(exist_ok=True)
        RunDir(folder).journal_path.write_text("")
        note_elsewhere(folder)
        assert sorted(runs_elsewhere().runs) == sorted(map(str, (folder, other))), "it is entered again"


def test_a_run_on_a_disk_that_is_away_stays_listed(tmp_path: Path) -> None:
    """Another machine has the same home and other disks; what is away for longer than a year is gone."""
    folder = run_in(tmp_path / "disk" / "run")
    note_elsewhere(folder)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    assert runs_elsewhere().runs == []
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert runs_elsewhere().runs == [str(folder)]
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    os.utime(index_folder() / entries()[0], (0, 0), follow_symlinks=False)
    assert runs_elsewhere().runs == entries() == []


def test_what_a_script_left_of_a_removed_run_is_no_run(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "run")
    note_elsewhere(folder)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "best.pt").write_text("the script's")
    assert remove(plan_removal(folder)).left == ("checkpoints/best.pt",)
    assert runs_elsewhere().runs == []


def test_a_run_that_begins_while_its_old_entry_is_dropped_stays_listed(tmp_path: Path) -> None:
    """The folder was gone when it was looked at; before its entry is dropped, a new run begins there."""
    folder = run_in(tmp_path / "run")
    note_elsewhere(folder)
    gone(folder)
    unlink = os.unlink

    def begin_first(path: str) -> None:
        note_elsewhere(run_in(folder))
        unlink(path)

    with patch.object(os, "unlink", begin_first):
        assert runs_elsewhere().runs == []
    assert runs_elsewhere().runs == [str(folder)]


def forge_text(index: Path, folder: Path) -> None:
    (index / "text").write_text(str(folder))


def forge_name(index: Path, folder: Path) -> None:
    (index / "0123456789abcdef0123456789abcdef").symlink_to(folder)


def forge_relative(index: Path, folder: Path) -> None:
    (index / "relative").symlink_to("../../..")


def forge_socket(index: Path, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(index)  # a socket's path may not be long
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)


def forge_folder(index: Path, folder: Path) -> None:
    (index / "folder").mkdir()
    (index / "folder" / "journal.jsonl").touch()


def forge_loop(index: Path, folder: Path) -> None:
    (index / "loop").symlink_to(index / "loop")


FORGERIES = [forge_text, forge_name, forge_relative, forge_socket, forge_folder, forge_loop]


@pytest.mark.parametrize("forge", FORGERIES)
def test_what_is_no_entry_lists_nothing_and_hides_nothing(
    forge: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    mine, never_noted = run_in(tmp_path / "mine"), run_in(tmp_path / "never")
    note_elsewhere(mine)
    forge(index_folder(), never_noted)
    assert runs_elsewhere().runs == [str(mine)]
    assert len(entries()) == 2, "what amptui did not make is left alone"


def test_an_index_that_is_a_link_is_neither_read_nor_cleaned_nor_written(tmp_path: Path) -> None:
    folder, documents = run_in(tmp_path / "run"), tmp_path / "documents"
    note_elsewhere(folder)
    index_folder().rename(documents)
    index_folder().symlink_to(documents)
    note_elsewhere(run_in(tmp_path / "other"))
    gone(folder)
    assert runs_elsewhere().runs == []
    assert len(list(documents.iterdir())) == 1


def test_a_damaged_entry_is_replaced_when_its_run_begins_again(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "run")
    note_elsewhere(folder)
    (entry,) = index_folder().iterdir()
    entry.unlink()
    entry.write_text("garbage")
    note_elsewhere(folder)
    assert runs_elsewhere().runs == [str(folder)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to somebody else")
def test_somebody_else_s_run_is_not_listed_and_its_entry_stays(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "run")
    note_elsewhere(folder)
    os.chown(folder, 12345, -1)
    assert runs_elsewhere().runs == []
    os.chown(folder, os.geteuid(), -1)
    os.chown(RunDir(folder).journal_path, 12345, -1)
    assert runs_elsewhere().runs == []
    os.chown(RunDir(folder).journal_path, os.geteuid(), -1)
    assert runs_elsewhere().runs == [str(folder)], "another user who looked has dropped nothing"


@given(
    names=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40))
)
def test_any_name_of_a_folder_comes_back(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root, patch.dict(os.environ, {"XDG_STATE_HOME": f"{root}/state"}):
        folders = {
            run_in(Path(root, "runs", str(n), name))
            for n, name in enumerate(names)
            if name not in (".", "..")
        }
        for folder in folders:
            note_elsewhere(folder)
        assert sorted(runs_elsewhere().runs) == sorted(map(str, folders))


@pytest.mark.ci
def test_many_that_enter_and_look_at_once_lose_none(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from amptui.runs.elsewhere import note_elsewhere, runs_elsewhere\n"
        "for n in range(25):\n"
        "    folder = Path(sys.argv[1], f'{sys.argv[2]}-{n}'); folder.mkdir()\n"
        "    (folder / 'journal.jsonl').touch()\n"
        "    note_elsewhere(folder); assert str(folder) in runs_elsewhere().runs\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(number)]) for number in range(4)
    ]
    while any(process.poll() is None for process in processes):
        runs_elsewhere()
    assert [process.wait() for process in processes] == [0] * 4
    assert len(runs_elsewhere().runs) == 100


def test_an_index_that_cannot_be_used_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_in(tmp_path / "run")
    index_folder().parent.mkdir(parents=True)
    index_folder().write_text("a file in its place")
    note_elsewhere(folder)
    assert runs_elsewhere().runs == []
    monkeypatch.delenv("HOME")
    with patch.object(Path, "home", side_effect=RuntimeError):
        note_elsewhere(folder)
        assert runs_elsewhere().runs == []


def test_threads_may_enter_the_same_run(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "run")
    threads = [threading.Thread(target=note_elsewhere, args=(folder,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs_elsewhere().runs == [str(folder)]
