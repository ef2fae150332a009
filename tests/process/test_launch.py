"""How one training is put together and ended, in this process, and which front it gets."""

import importlib.util
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amptui.base.errors import RunFolderError, UsageError
from amptui.checkpoint.file import checkpoints
from amptui.cli import main
from amptui.process import launch, plan
from amptui.recipe.request import TrainRequest
from amptui.records.run import RunFailed, RunFinished, RunResumed
from amptui.runs.rundir import resume_command
from tests.builders import StepRow, of, read
from tests.living import train_arguments
from tests.terminal import KNOBS


@pytest.fixture(autouse=True)
def _same_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def request(*, settings: dict[str, str] | None = None, **options: Any) -> TrainRequest:
    settings = {"step_ms": "0", **(settings or {})}
    return TrainRequest(model=KNOBS, device="cpu", interactive=False, settings=settings, **options)


def train(folder: Path, asked: TrainRequest) -> int:
    return launch.train(plan.plan_new(asked, folder), detach=False)


def test_weights_need_what_reads_and_writes_their_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"x.safetensors needs safetensors; pip install safetensors"):
        plan.plan_new(request(save_weights=str(tmp_path / "x.safetensors")), tmp_path / "run")


def test_weights_may_go_into_the_new_run_s_folder_and_a_resumed_run_is_told_at_once_that_theirs_is_gone(
    tmp_path: Path,
) -> None:
    folder, weights = tmp_path / "run", tmp_path / "run" / "w.pt"
    assert train(folder, request(steps=1, save_weights=str(weights))) == 0
    assert weights.is_file()
    before = (folder / "journal.jsonl").read_bytes()
    gone = {"model": KNOBS, "save_weights": str(tmp_path / "gone" / "w.pt")}
    with pytest.raises(UsageError, match="no such folder"):
        plan.plan_resumed(gone, str(folder))
    assert (folder / "journal.jsonl").read_bytes() == before
    plan.plan_resumed(gone | {"save_weights": str(tmp_path / "w.pt")}, str(folder))


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = set(threading.enumerate())
    with pytest.raises(RunFolderError):
        train(tmp_path / "file" / "run", request(steps=1))
    assert train(tmp_path / "run", request(steps=2)) == 0
    assert set(threading.enumerate()) <= before


def test_another_training_is_not_gone_on_with(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, request(steps=2, learning_rate=0.5)) == 0
    before = (run / "journal.jsonl").read_bytes()
    others: list[tuple[dict[str, Any], str]] = [
        ({"learning_rate": 0.1}, "was started with --lr 0.5, not --lr 0.1"),
        ({"batch_size": 4}, "was started with no --batch-size, not --batch-size 4"),
        ({"settings": {"step_ms": "1"}}, "was started with --set step_ms=0, not --set step_ms=1"),
        ({"model": "mnist-deep"}, "knobs.py, not mnist-deep"),
        ({"channels_last": True}, "was started with no --channels-last, not --channels-last"),
    ]
    for given, words in others:
        with pytest.raises(UsageError, match=re.escape(words)):
            plan.plan_resumed({"model": KNOBS} | given, str(run))
    assert (run / "journal.jsonl").read_bytes() == before


def test_a_model_file_means_the_same_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(Path(KNOBS).read_text())
    monkeypatch.chdir(tmp_path)
    asked = TrainRequest(model="mine.py", device="cpu", interactive=False, steps=2, settings={"step_ms": "0"})
    assert train(tmp_path / "run", asked) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = plan.plan_resumed({"model": "../mine.py", "steps": 3}, str(tmp_path / "run"))
    assert resumed.spec.path == tmp_path / "mine.py"


def test_a_run_that_does_not_say_what_was_asked_for_does_not_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, request(steps=2)) == 0
    asked = json.loads((run / "run.json").read_text())["asked"]
    wrong: dict[str, list[Any]] = {
        "settings": ["x", {"a": 1}],
        "seed": ["a", None, True],
        "steps": ["5"],
        "learning_rate": [{}],
        "data": ["other"],
        "data_dir": [5],
        "compile_mode": ["fast"],
        "channels_last": ["yes"],
    }
    forged = [{"asked": asked | {name: each}} for name, values in wrong.items() for each in values]
    for damage in ({}, {"asked": 1}, {"asked": {}}, {"asked": {"model": 1}}, *forged):
        (run / "run.json").write_text(json.dumps(damage))
        with pytest.raises(RunFolderError, match=r"run\.json"):
            plan.plan_resumed({}, str(run))


@pytest.mark.parametrize("every", [2, None])
def test_an_error_after_a_checkpoint_ends_with_the_command_that_resumes_the_run(
    every: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    asked = request(settings={"trouble": "loss", "at": "5"}, checkpoint_every=every)
    assert train(run, asked) == 1
    last = list(read(run / "journal.jsonl"))[-1]
    assert isinstance(last, RunFailed)
    printed = capsys.readouterr().err
    assert printed.count("Traceback") == 1
    assert printed.endswith(f"\namptui: {last.error}\n")
    what, _, way_on = last.error.partition("; to resume from ")
    assert what.startswith("ValueError: bad label in batch 5 (")
    newest = checkpoints(run / "checkpoints")[:1]
    assert len(newest) == (every is not None)
    assert way_on == "".join(f"{path.name}: {resume_command(run)}" for path in newest)


@pytest.mark.ci
def test_one_command_line_begins_a_run_goes_on_with_it_and_begins_again_where_nothing_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes on as it was asked for; how long, and what makes it faster, may change."""
    run = tmp_path / "run"
    command = [*train_arguments(run, "--headless"), "--set", "step_ms=0"]
    assert main([*command, "--resume", "--steps", "4", "--lr", "0.5"]) == 0
    assert main([*command, "--resume", "--steps", "9", "--cudnn-benchmark"]) == 0
    records = list(read(run / "journal.jsonl"))
    assert [(r.step, r.lr) for r in of(StepRow, records)] == [(step, 0.5) for step in range(1, 10)]
    assert [r.steps for r in of(RunFinished, records)] == [9]
    (resumed,) = of(RunResumed, records)
    assert (resumed.step, resumed.checkpoint, resumed.lost_steps) == (4, "step-000000004.pt", 0)
    asked = json.loads((run / "run.json").read_text())["asked"]
    assert (asked["steps"], asked["learning_rate"], asked["cudnn_benchmark"]) == (9, 0.5, True)
    first = (run / "journal.jsonl").read_text()
    assert main([*command, "--steps", "5"]) == 1, "without --resume a folder that holds a run is refused"
    assert str(run) in capsys.readouterr().err
    assert (run / "journal.jsonl").read_text() == first
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.unlink()
    assert main([*command, "--resume", "--steps", "3"]) == 0
    assert (run / "journal.before-1.jsonl").read_text() == first
    second = list(read(run / "journal.jsonl"))
    assert (len(of(RunFinished, second)), of(RunResumed, second)) == (1, [])
    assert (run / "run.before-1.json").exists()
