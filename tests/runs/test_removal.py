"""Removing a run deletes its files and nothing else: no other file, nothing behind a link, no live run."""

from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import Removal
from amptui.runs.lock import RunLock
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


def assert_refused(folder: Path, why: str) -> None:
    """Both the question and what is done after it."""
    with pytest.raises(RunFolderError, match=why):
        plan_removal(folder)
    with pytest.raises(RunFolderError, match=why):
        remove(Removal(folder=folder))


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_run_is_removed_with_its_folder(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    plan = plan_removal(folder)
    assert (plan.journals, plan.checkpoints, plan.other_files) == (2, 2, 7)
    assert (plan.size_bytes, plan.left) == (4 * 1000 + 3 * 100 + 4 * 10, ())
    assert len(everything(folder)) == 14, "a plan deletes nothing"
    assert remove(plan) == plan
    assert not folder.exists()


def test_what_is_not_the_run_s_is_left_and_named(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    others = ("train.py", "checkpoints/best.pt", f"checkpoints/{SHARDS}/notes", "data/journal.jsonl")
    for name in others:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    mine = ("run.json.bak", "journal-1.jsonl", "run.log", "checkpoints.txt")
    for name in mine:
        (folder / name).write_text("mine")
    (folder / "checkpoints" / "step-9.pt").mkdir()
    removal = remove(plan_removal(folder))
    assert set(removal.left) == {
        *("train.py", "data", "checkpoints/best.pt", "checkpoints/step-9.pt"),
        *mine,
        f"checkpoints/{SHARDS}/notes",
    }
    assert {name for name in everything(folder) if (folder / name).is_file()} == {*others, *mine}


@pytest.mark.parametrize("name", ["checkpoints", "journal.jsonl", f"checkpoints/{SHARDS}"])
def test_a_link_is_removed_and_not_what_it_leads_to(name: str, tmp_path: Path) -> None:
    folder, elsewhere = whole_run(tmp_path / "run"), whole_run(tmp_path / "elsewhere")
    (folder / name).rename(tmp_path / "aside")
    (folder / name).symlink_to(elsewhere / name)
    before = everything(elsewhere)
    remove(plan_removal(folder))
    assert everything(elsewhere) == before
    assert not folder.exists()


def test_a_live_run_a_link_to_one_and_what_is_no_run_are_refused(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(folder)
    with RunLock.take(folder):
        assert_refused(folder, "is live")
    assert_refused(tmp_path / "link", "symbolic link")
    assert len(everything(folder)) == 14
    (tmp_path / "run.log").write_text("mine")
    for path in (tmp_path, tmp_path / "none", tmp_path / "run.log"):
        with pytest.raises(RunFolderError):
            remove(plan_removal(path))
    plan_removal(folder)


@pytest.mark.parametrize(
    ("name", "files"),
    [("checkpoints/step-000000040.pt", 15), ("journal.jsonl", 14)],
)
def test_what_is_new_since_the_question_is_not_removed(name: str, files: int, tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    plan = plan_removal(folder)
    with (folder / name).open("a") as file:
        file.write("new")
    with pytest.raises(RunFolderError, match="has changed since you were asked"):
        remove(plan)
    assert len(everything(folder)) == files


def test_checkpoints_beside_a_script_s_run_are_the_script_s_and_so_is_a_file_of_that_name(
    tmp_path: Path,
) -> None:
    folder = whole_run(tmp_path / "script")
    RunDir(folder).write_run_json({"asked": {"script": ["train.py"]}})
    checkpoints = everything(folder / "checkpoints")
    assert plan_removal(folder).left == remove(plan_removal(folder)).left == ("checkpoints",)
    assert everything(folder) == {"checkpoints", *(f"checkpoints/{name}" for name in checkpoints)}
    folder = whole_run(tmp_path / "run")
    (folder / "checkpoints").rename(tmp_path / "aside")
    (folder / "checkpoints").write_text("a list of mine")
    assert remove(plan_removal(folder)).left == ("checkpoints",)
    assert everything(folder) == {"checkpoints"}
