"""The run's folder: made without taking another's place, whose it is, and held by one run that tells who."""

import errno
import fcntl
import json
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amptui.base.errors import RunFolderError
from amptui.runs.lock import Holder, RunLock, holder
from amptui.runs.rundir import (
    RunDir,
    create_run_dir,
    folder_name,
    is_own,
    open_run_dir,
    read_run_json,
)


def refused(path: Path) -> str:
    with pytest.raises(RunFolderError) as caught:
        create_run_dir(path, "mnist-deep")
    told = str(caught.value)
    assert "\n" not in told
    assert str(path) in told
    assert caught.value.hint
    return told


def test_a_new_run_is_named_after_its_model_and_the_time_and_has_a_folder_of_its_own(runs: Path) -> None:
    run_dirs = [create_run_dir(None, "mnist-deep") for _ in range(4)]  # in the same second
    assert all(run_dir.path.is_dir() for run_dir in run_dirs)
    assert {run_dir.path.parent for run_dir in run_dirs} == {runs}
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


def test_what_holds_a_run_or_cannot_be_a_folder_is_refused(tmp_path: Path, runs: Path) -> None:
    for left in ("journal.jsonl", "run.json", "checkpoints"):
        (tmp_path / left).touch()
        assert "already contains a run; choose another folder with --run-dir" in refused(tmp_path)
        (tmp_path / left).unlink()
    (tmp_path / "file").touch()
    assert "file exists" in refused(tmp_path / "file")
    assert "not a directory" in refused(tmp_path / "file" / "run")
    assert "file name too long" in refused(tmp_path / ("x" * 300))
    with pytest.raises(RunFolderError, match="is not a folder"):
        open_run_dir(tmp_path / "run")
    assert open_run_dir(tmp_path) == RunDir(tmp_path)
    runs.parents[1].mkdir(parents=True)
    runs.parent.touch()
    with pytest.raises(RunFolderError, match=r"cannot create the run folder .*not a directory"):
        create_run_dir(None, "mnist-deep")


def test_model_names_become_one_safe_part_of_a_path() -> None:
    models = ("path/to/my_model.py", "my.package:Net", "../..", "", "größer als", "x" * 300)
    assert [*map(folder_name, models)] == ["my_model", "Net", "run", "run", "gr-er-als", "x" * 64]


def test_run_json_holds_what_it_is_given_in_strict_json_or_leaves_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_run_json({"asked": {"lr": 1e-4, "bad": math.nan, "folder": tmp_path}, "versions": {}})
    run_dir.write_run_json({"asked": {"lr": 1e-3, "bad": math.inf, "folder": tmp_path}, "versions": {}})
    content = {"asked": {"lr": 1e-3, "bad": "inf", "folder": str(tmp_path)}, "versions": {}}
    assert json.loads(run_dir.run_json_path.read_text()) == read_run_json(tmp_path) == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"], "nothing is left beside it"
    for damaged, why in (("[" * 100_000, "not JSON"), ("[1]", "not a JSON object")):
        run_dir.run_json_path.write_text(damaged)
        with pytest.raises(RunFolderError, match=why):
            read_run_json(tmp_path)
    with pytest.raises(RunFolderError, match=r"cannot write .*run\.json: not a directory"):
        RunDir(run_dir.run_json_path).write_run_json({})
    run_dir.run_json_path.unlink()
    run_dir.run_json_path.mkdir()
    with pytest.raises(RunFolderError):
        run_dir.write_run_json({})
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def saved(**asked: object) -> RunDir:
    run_dir = create_run_dir(None, "m")
    run_dir.write_run_json({"asked": {"model": "m.py"} | asked})
    return run_dir


def test_a_run_is_the_user_s_own_whose_options_nobody_else_may_write() -> None:
    for mode, own in ((0o600, True), (0o644, True), (0o660, False), (0o602, False)):
        run_dir = saved()
        run_dir.run_json_path.chmod(mode)
        assert is_own(run_dir) is own
    if os.geteuid() == 0:  # only root can give a file away
        run_dir = saved()
        os.chown(run_dir.run_json_path, 65534, -1)
        assert not is_own(run_dir)


HOST = socket.gethostname()


def words(folder: Path, **said: object) -> None:
    RunDir(folder).lock_path.write_text(json.dumps(said))


def test_a_folder_is_held_from_taking_to_release_and_looking_makes_no_file(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    assert holder(tmp_path / "no" / "such") is None
    assert list(tmp_path.iterdir()) == []
    with RunLock.take(tmp_path):
        found: Any = holder(tmp_path)
        assert (found.pid, found.host, found.is_here) == (os.getpid(), HOST, True)
        assert found.started is not None
    assert holder(tmp_path) is None
    RunLock.take(tmp_path).release()
    with pytest.raises(RunFolderError, match=r"cannot lock .*no such file or directory"):
        RunLock.take(tmp_path / "run")


def test_a_second_run_is_told_who_trains_there(tmp_path: Path) -> None:
    with RunLock.take(tmp_path), pytest.raises(RunFolderError) as caught:
        RunLock.take(tmp_path)
    assert str(caught.value) == (
        f"another run is training in {tmp_path} (pid {os.getpid()} on {HOST}); "
        f"watch it with `amptui attach {tmp_path}`"
    )


def test_a_new_run_is_refused_where_one_began_meanwhile(tmp_path: Path) -> None:
    run_dir = create_run_dir(tmp_path / "run", "m")
    run_dir.journal_path.touch()
    with pytest.raises(RunFolderError, match="contains a run"):
        RunLock.take(run_dir.path, new=True)
    assert holder(run_dir.path) is None, "who was refused holds nothing"
    RunLock.take(run_dir.path).release()


def test_without_locks_the_living_hold_by_their_word_and_the_dead_and_what_has_ended_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On file systems without locks: network ones, often."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("amptui.runs.lock._PATIENCE_SECONDS", 0.0)
    for pid, host in ((os.getppid(), HOST), (1, "elsewhere")):
        words(tmp_path, pid=pid, host=host, started=1.0)
        assert holder(tmp_path) == Holder(pid=pid, host=host, started=1.0)
        with pytest.raises(RunFolderError, match=f"another run is training in .*pid {pid} on {host}"):
            RunLock.take(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    words(tmp_path, pid=gone.pid, host=HOST, started=1.0)
    assert holder(tmp_path) is None
    lock = RunLock.take(tmp_path)
    assert json.loads(RunDir(tmp_path).lock_path.read_text())["pid"] == os.getpid()
    lock.release()
    assert holder(tmp_path) is None
    assert RunDir(tmp_path).lock_path.read_text() == ""
