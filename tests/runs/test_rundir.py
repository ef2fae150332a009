"""The run's folder: made without taking another's place, refused in one line, run.json never half there."""

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RunFolderError
from amptui.runs.rundir import RunDir, create_run_dir, default_base, folder_name, open_run_dir, read_run_json


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def refused(path: Path) -> str:
    with pytest.raises(RunFolderError) as caught:
        create_run_dir(path, "mnist-deep")
    told = str(caught.value)
    assert "\n" not in told
    assert str(path) in told
    assert caught.value.hint
    return told


def test_a_new_run_is_named_after_its_model_and_the_time_and_has_a_folder_of_its_own(
    state_home: Path,
) -> None:
    run_dirs = [create_run_dir(None, "mnist-deep") for _ in range(4)]  # in the same second
    assert all(run_dir.path.is_dir() for run_dir in run_dirs)
    assert {run_dir.path.parent for run_dir in run_dirs} == {state_home / "amptui" / "runs"}
    assert len({run_dir.path for run_dir in run_dirs}) == 4
    assert re.fullmatch(r"mnist-deep-\d{8}-\d{6}", run_dirs[0].path.name)
    assert any(run_dir.path.name.endswith("-2") for run_dir in run_dirs)


def test_a_requested_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "b"
    assert create_run_dir(path, "mnist-deep") == RunDir(path)
    assert path.is_dir()
    assert create_run_dir(path, "mnist-deep") == RunDir(path), "an empty folder may be used"
    monkeypatch.chdir(tmp_path)
    create_run_dir(Path("~nobody-of-that-name"), "m")
    assert (tmp_path / "~nobody-of-that-name").is_dir()


@pytest.mark.parametrize("left", ["journal.jsonl", "run.json", "checkpoints"])
def test_a_folder_that_holds_a_run_is_refused_with_the_mend(tmp_path: Path, left: str) -> None:
    (tmp_path / left).touch()
    assert "already contains a run; choose another folder with --run-dir" in refused(tmp_path)


def test_what_cannot_be_a_folder_is_refused(tmp_path: Path, state_home: Path) -> None:
    (tmp_path / "file").touch()
    assert "file exists" in refused(tmp_path / "file")
    assert "not a directory" in refused(tmp_path / "file" / "run")
    assert "file name too long" in refused(tmp_path / ("x" * 300))
    with pytest.raises(RunFolderError, match="is not a folder"):
        open_run_dir(tmp_path / "run")
    assert open_run_dir(tmp_path) == RunDir(tmp_path)
    state_home.touch()
    with pytest.raises(RunFolderError, match=r"cannot create the run folder .*not a directory"):
        create_run_dir(None, "mnist-deep")


@pytest.mark.parametrize("state_home_value", ["", "relative/state"])
def test_without_a_state_home_runs_are_kept_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state_home_value: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", state_home_value)
    assert default_base() == tmp_path / ".local" / "state" / "amptui" / "runs"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("mnist-deep", "mnist-deep"),
        ("path/to/my_model.py", "my_model"),
        ("my.package:Net", "Net"),
        ("../..", "run"),
        ("", "run"),
        ("größer als", "gr-er-als"),
        ("x" * 300, "x" * 64),
    ],
)
def test_model_names_become_one_safe_part_of_a_path(model: str, name: str) -> None:
    assert folder_name(model) == name


@given(model=st.text())
def test_no_model_name_leaves_the_folder_of_all_runs(model: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", folder_name(model))


def test_run_json_holds_what_it_is_given_in_strict_json_or_leaves_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_run_json({"asked": {"lr": 1e-4, "bad": math.nan, "folder": tmp_path}, "versions": {}})
    run_dir.write_run_json({"asked": {"lr": 1e-3, "bad": math.inf, "folder": tmp_path}, "versions": {}})
    content = {"asked": {"lr": 1e-3, "bad": "inf", "folder": str(tmp_path)}, "versions": {}}
    assert json.loads(run_dir.run_json_path.read_text()) == read_run_json(tmp_path) == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"], "nothing is left beside it"
    with pytest.raises(RunFolderError, match=r"cannot write .*run\.json: not a directory"):
        RunDir(run_dir.run_json_path).write_run_json({})
    run_dir.run_json_path.unlink()
    run_dir.run_json_path.mkdir()
    with pytest.raises(RunFolderError):
        run_dir.write_run_json({})
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read .*: no such file"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_a_run_json_that_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        RunDir(tmp_path).run_json_path.write_bytes(content)
    with pytest.raises(RunFolderError, match=why) as caught:
        read_run_json(tmp_path)
    assert "\n" not in str(caught.value)
