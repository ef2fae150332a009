"""Removing a run deletes its files and nothing else: no other file, nothing behind a link, no live run."""

import os
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RunFolderError
from amptui.records import codec
from amptui.records.run import Record, RunFailed, RunFinished
from amptui.runs.elsewhere import note_elsewhere, runs_elsewhere
from amptui.runs.liveness import RESTART_SECONDS
from amptui.runs.lock import RunLock
from amptui.runs.own_files import is_own_name
from amptui.runs.removal import plan_removal, remove
from amptui.runs.rundir import RunDir

SHARDS = "step-000000020.3f9a-7.shards"


def whole_run(folder: Path) -> Path:
    """Everything that a run may leave behind."""
    shards = folder / "checkpoints" / SHARDS
    shards.mkdir(parents=True)
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        (shards / name).write_bytes(bytes(100))
    for name in (
        "step-000000010.pt",
        "step-000000020.pt",
        "step-000000030.pt.writing",
        "step-000000005.pt.old",
    ):
        (folder / "checkpoints" / name).write_bytes(bytes(1000))
    for name in ("journal.jsonl", "journal.after-step-5-1.jsonl", "run.json", "output.log", "run.lock"):
        (folder / name).write_bytes(bytes(10))
    return folder


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_run_is_removed_with_its_folder(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    note_elsewhere(folder)
    plan = plan_removal(folder)
    assert (plan.journals, plan.checkpoints, plan.other_files) == (2, 2, 7)
    assert (plan.size_bytes, plan.left) == (4 * 1000 + 3 * 100 + 4 * 10, ())
    assert len(everything(folder)) == 14, "a plan deletes nothing"
    assert remove(folder) == plan
    assert not folder.exists()
    assert runs_elsewhere().runs == []


def test_what_is_not_the_run_s_is_left_and_named(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    others = ("train.py", "checkpoints/best.pt", f"checkpoints/{SHARDS}/notes", "data/journal.jsonl")
    for name in others:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "run.json.bak").write_text("mine")
    (folder / "checkpoints" / "step-9.pt").mkdir()
    removal = remove(folder)
    assert set(removal.left) == {
        *("train.py", "data", "run.json.bak", "checkpoints/best.pt", "checkpoints/step-9.pt"),
        f"checkpoints/{SHARDS}/notes",
    }
    assert {name for name in everything(folder) if (folder / name).is_file()} == {*others, "run.json.bak"}


@pytest.mark.parametrize("name", ["checkpoints", "journal.jsonl", "output.log", f"checkpoints/{SHARDS}"])
def test_a_link_is_removed_and_not_what_it_leads_to(name: str, tmp_path: Path) -> None:
    folder, elsewhere = whole_run(tmp_path / "run"), whole_run(tmp_path / "elsewhere")
    target = elsewhere / name
    (folder / name).rename(tmp_path / "aside")
    (folder / name).symlink_to(target)
    before = everything(elsewhere)
    remove(folder)
    assert everything(elsewhere) == before
    assert not folder.exists()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(folder)
    for act in (plan_removal, remove):
        with pytest.raises(RunFolderError, match="symbolic link"):
            act(tmp_path / "link")
    assert len(everything(folder)) == 14


def test_a_live_run_is_refused(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    with RunLock.take(folder):
        for act in (plan_removal, remove):
            with pytest.raises(RunFolderError, match="is live"):
                act(folder)
    assert len(everything(folder)) == 14
    plan_removal(folder)


def test_a_run_that_begins_between_question_and_answer_is_not_removed(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    plan_removal(folder)
    with RunLock.take(folder), patch("amptui.runs.removal._refuse_live"), pytest.raises(RunFolderError):
        remove(folder)
    assert len(everything(folder)) == 14


def test_a_folder_without_a_run_and_somebody_else_s_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("mine")
    for folder in (tmp_path, tmp_path / "none", tmp_path / "run.log"):
        with pytest.raises(RunFolderError):
            remove(folder)
    folder = whole_run(tmp_path / "run")
    with (
        patch.object(os, "geteuid", lambda: os.getuid() + 1),
        pytest.raises(RunFolderError, match="another user's"),
    ):
        remove(folder)
    assert len(everything(folder)) == 14


def test_the_lock_of_another_machine_counts_as_long_as_its_run_writes(tmp_path: Path) -> None:
    """A file system may lock for each machine alone: the lock is free here, and the run lives there."""
    folder = whole_run(tmp_path / "run")
    (folder / "run.lock").write_text('{"pid": 7, "host": "another machine", "started": 1.0}')
    for act in (plan_removal, remove):
        with pytest.raises(RunFolderError, match="may be live, pid 7 on another machine"):
            act(folder)
    assert len(everything(folder)) == 14
    an_hour_ago = time.time() - 3600
    os.utime(folder / "journal.jsonl", (an_hour_ago, an_hour_ago))
    remove(folder)
    assert not folder.exists()


FAILED = RunFailed(time=9.0, step=6, error="rank 1 was killed", traceback="")
STOPPED = RunFinished(time=9.0, steps=6, seconds=9.0, reason="stopped")


@pytest.mark.parametrize(
    ("last_word", "restarts", "may_restart"),
    [(None, 3, True), (FAILED, 3, True), (STOPPED, 3, False), (None, 0, False), (FAILED, 0, False)],
)
def test_ranks_that_may_be_starting_again_are_waited_for(
    last_word: Record | None, restarts: int, may_restart: bool, tmp_path: Path
) -> None:
    """Between two starts of its ranks a run has no process: nobody holds its lock."""
    folder = whole_run(tmp_path / "run")
    RunDir(folder).write_run_json({"asked": {"max_restarts": restarts}})
    RunDir(folder).journal_path.write_text(f"{codec.dumps(last_word)}\n" if last_word else "")
    if may_restart:
        for act in (plan_removal, remove):
            with pytest.raises(RunFolderError, match=r"may be starting again: .* in the last 120 s"):
                act(folder)
        assert len(everything(folder)) == 14
        over = time.time() - RESTART_SECONDS - 1
        os.utime(RunDir(folder).journal_path, (over, over))
    assert plan_removal(folder).restart_seconds == (RESTART_SECONDS if may_restart else None)
    remove(folder)
    assert not folder.exists()


def test_checkpoints_beside_a_script_s_run_are_the_script_s(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    RunDir(folder).write_run_json({"asked": {"script": ["train.py"]}})
    checkpoints = everything(folder / "checkpoints")
    assert plan_removal(folder).left == remove(folder).left == ("checkpoints",)
    assert everything(folder) == {"checkpoints", *(f"checkpoints/{name}" for name in checkpoints)}


def test_a_file_of_that_name_is_no_folder_of_checkpoints(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    (folder / "checkpoints").rename(tmp_path / "aside")
    (folder / "checkpoints").write_text("a list of mine")
    assert remove(folder).left == ("checkpoints",)
    assert everything(folder) == {"checkpoints"}


@given(
    st.lists(
        st.text(st.characters(codec="ascii", exclude_characters="/\0"), min_size=1, max_size=12), max_size=8
    )
)
def test_no_name_of_another_file_is_deleted(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = whole_run(tmp_path_factory.mktemp("runs") / "run")
    mine = {name for name in names if name not in (".", "..") and not is_own_name(name)}
    for name in mine:
        (folder / name).write_text("mine")
    assert set(remove(folder).left) == mine
    assert (everything(folder) if folder.exists() else set()) == mine
