"""Whose a run is, and the command that resumes it: with all that somebody else's folder names."""

import os
import shlex
from pathlib import Path

import pytest

from amptui.cli import build_parser
from amptui.recipe.request import TrainRequest
from amptui.runs.rundir import RunDir, create_run_dir, default_data_dir
from amptui.runs.trust import is_own, named_files, resume_command


def saved(**asked: object) -> RunDir:
    """A saved run of this user."""
    run_dir = create_run_dir(None, "m")
    run_dir.write_run_json({"asked": {"model": "m.py"} | asked})
    return run_dir


@pytest.mark.parametrize("what", ["", "run.json"])
@pytest.mark.parametrize(("mode", "own"), [(0o700, True), (0o755, True), (0o770, False), (0o702, False)])
def test_a_run_that_others_may_write_is_not_the_user_s_own(what: str, mode: int, own: bool) -> None:
    run_dir = saved()
    (run_dir.path / what).chmod(mode)
    assert is_own(run_dir.path) is own


@pytest.mark.parametrize("what", ["", "run.json"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_another_user_made_is_not_the_user_s_own(what: str) -> None:
    run_dir = saved()
    os.chown(run_dir.path / what, 65534, -1)
    assert not is_own(run_dir.path)


def test_only_a_saved_run_is_the_user_s_own(tmp_path: Path) -> None:
    RunDir(tmp_path).write_run_json({})
    assert is_own(saved().path)
    assert not is_own(tmp_path)
    assert not is_own(tmp_path / "gone")


def test_defaults_and_amptui_s_own_models_name_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"width": "128", "schedule": "cosine", "bias": "true", "decay": "1e-4"}
    for data_dir in (Path(), default_data_dir()):
        assert named_files(TrainRequest(model="mnist-deep", data_dir=data_dir, settings=settings)) == []
    (tmp_path / "cosine").touch()
    (named,) = named_files(TrainRequest(model="mnist-deep", settings=settings))
    assert (named.field, len(named.words)) == ("settings", 4)


def test_the_command_to_go_on_has_the_model_where_resume_asks_for_it(tmp_path: Path) -> None:
    run_dir = saved()
    assert resume_command(run_dir.path) == f"amptui train --resume {run_dir.path.name}"
    where = shlex.quote(str(tmp_path))
    assert resume_command(tmp_path) == f"amptui train --resume {where}", "it does not say which"
    RunDir(tmp_path).write_run_json({"asked": {"model": "a b.py"}})
    assert resume_command(tmp_path) == f"amptui train 'a b.py' --resume {where}"


def test_the_command_names_every_file_as_one_word_that_is_no_other_option(tmp_path: Path) -> None:
    asked = {
        "model": "--save-weights=/x",
        "save_weights": "/a b/w.pt",
        "data_dir": "--resume",
        "settings": {"text": "~/secret", "width": "3"},
    }
    RunDir(tmp_path).write_run_json({"asked": asked})
    given = build_parser().parse_args(shlex.split(resume_command(tmp_path))[1:])
    assert (given.model, given.resume) == ("./--save-weights=/x", str(tmp_path))
    assert (given.save_weights, given.data_dir) == ("/a b/w.pt", Path("--resume"))
    assert given.set == ["text=~/secret", "width=3"]
