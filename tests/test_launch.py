"""How one training is put together and ended, in this process, and which front it gets."""

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amptui import launch
from amptui.cli import main
from amptui.errors import RunFolderError, UsageError
from amptui.records import Note, RunFailed, RunFinished, RunResumed, RunStarted, StepRecord
from amptui.request import TrainRequest
from amptui.runs.journal import read
from amptui.runs.lock import RunLock
from tests.terminal import KNOBS


@pytest.fixture(autouse=True)
def _same_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def request(*, settings: dict[str, str] | None = None, **options: Any) -> TrainRequest:
    settings = {"step_ms": "0", **(settings or {})}
    return TrainRequest(model=KNOBS, device="cpu", attended=False, settings=settings, **options)


def train(folder: Path, asked: TrainRequest) -> int:
    return start(launch.plan_new(asked, folder))


def start(plan: launch.Plan) -> int:
    return launch.train(plan, json=False, detach=False, frames_per_second=None)


def test_everything_asked_for_reaches_the_training(tmp_path: Path) -> None:
    asked = request(
        steps=4,
        epochs=3,
        batch_size=16,
        learning_rate=0.5,
        clip_norm=1.0,
        seed=9,
        precision="bf16",
        amp_precision="fp16",
        data_dir=tmp_path,
        settings={"at": "7"},
    )
    assert train(tmp_path / "run", asked) == 0
    records = list(read(tmp_path / "run" / "journal.jsonl"))
    (started,) = [r for r in records if isinstance(r, RunStarted)]
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert (started.batch_size, started.total_epochs, started.total_steps) == (16, 3, 4)
    assert (started.precision, started.amp_precision, started.device) == ("bf16", "fp16", "cpu")
    assert started.config["clip_norm"] == 1.0
    assert started.config["at"] == 7
    assert started.config["seed"] == 9
    assert [(r.step, r.samples, r.lr, r.precision) for r in steps] == [
        (i, 16, 0.5, "bf16") for i in range(1, 5)
    ]
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["asked"]
    assert kept["data_dir"] == str(tmp_path)
    assert kept["settings"] == {"step_ms": "0", "at": "7"}


def test_a_model_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    asked = TrainRequest(model="nothing-like-it", attended=False)
    with pytest.raises(UsageError, match="no model named"):
        train(tmp_path / "run", asked)
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_cannot_be_had_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = threading.active_count()
    with pytest.raises(RunFolderError):
        train(tmp_path / "file" / "run", request(steps=1))
    assert threading.active_count() == before


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    assert train(tmp_path / "run", request(steps=2)) == 0
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


def test_a_failure_has_its_status_and_is_the_last_word_of_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", request(settings={"trouble": "build"})) == 1
    assert capsys.readouterr().err.startswith("amptui: RuntimeError: no such layer")
    endings = [r for r in read(tmp_path / "run" / "journal.jsonl") if isinstance(r, RunFailed | RunFinished)]
    assert [type(r) for r in endings] == [RunFailed]


def test_an_escape_sequence_in_an_error_does_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "rude.py"
    model.write_text("raise ValueError('\\x1b[2J gone')\n")
    asked = TrainRequest(model=str(model), device="cpu", attended=False)
    assert train(tmp_path / "run", asked) == 1
    captured = capsys.readouterr()
    assert "ValueError: ?[2J gone" in captured.err
    assert "\x1b" not in captured.out + captured.err


def test_a_cpu_s_smaller_batch_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "heavy.py"
    model.write_text(f"{Path(KNOBS).read_text()}\nKnobs.cpu_batch_size = 4\n")
    asked = TrainRequest(model=str(model), device="cpu", attended=False, steps=2)
    assert train(tmp_path / "run", asked) == 0
    said = "batch size 4, this model's default on a CPU; --batch-size changes it"
    assert said in capsys.readouterr().out
    records = list(read(tmp_path / "run" / "journal.jsonl"))
    assert [r.text for r in records if isinstance(r, Note)] == [said]
    assert {r.samples for r in records if isinstance(r, StepRecord)} == {4}


def test_a_run_goes_on_as_it_was_asked_for_and_how_long_may_change(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, request(steps=4, learning_rate=0.5)) == 0
    plan = launch.plan_resumed({"steps": 9, "attended": False}, str(run))
    assert (plan.request.learning_rate, plan.request.steps, plan.request.resume) == (0.5, 9, True)
    assert plan.spec.path == Path(KNOBS)
    assert start(plan) == 0
    records = list(read(run / "journal.jsonl"))
    assert [r.step for r in records if isinstance(r, StepRecord)] == list(range(1, 10))
    assert [r.steps for r in records if isinstance(r, RunFinished)] == [9]
    (resumed,) = [r for r in records if isinstance(r, RunResumed)]
    assert (resumed.step, resumed.checkpoint, resumed.lost_steps) == (4, "step-000000004.pt", 0)
    assert json.loads((run / "run.json").read_text())["asked"]["steps"] == 9


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learning_rate": 0.1}, "was started with --lr 0.5, not --lr 0.1"),
        ({"batch_size": 4}, "was started with no --batch-size, not --batch-size 4"),
        ({"precision": "bf16"}, "was started with no --precision, not --precision bf16"),
        ({"settings": {"step_ms": "1"}}, "was started with --set step_ms=0, not --set step_ms=1"),
        ({"model": "mnist-deep"}, "knobs.py, not mnist-deep"),
    ],
    ids=str,
)
def test_another_training_is_not_gone_on_with(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, request(steps=2, learning_rate=0.5)) == 0
    before = (run / "journal.jsonl").read_bytes()
    with pytest.raises(UsageError, match=re.escape(words)):
        launch.plan_resumed(given, str(run))
    assert (run / "journal.jsonl").read_bytes() == before


def test_a_model_file_means_the_same_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(Path(KNOBS).read_text())
    monkeypatch.chdir(tmp_path)
    asked = TrainRequest(model="mine.py", device="cpu", attended=False, steps=2, settings={"step_ms": "0"})
    assert train(tmp_path / "run", asked) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    plan = launch.plan_resumed({"model": "../mine.py", "steps": 3}, str(tmp_path / "run"))
    assert plan.spec.path == tmp_path / "mine.py"


def test_a_run_that_does_not_say_what_was_asked_for_does_not_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, request(steps=2)) == 0
    for damage in ("{}", '{"asked": 1}', '{"asked": {}}', '{"asked": {"model": 1}}'):
        (run / "run.json").write_text(damage)
        with pytest.raises(RunFolderError, match=r"run\.json"):
            launch.plan_resumed({}, str(run))


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ("/var/cache/me", "/var/cache/me/amptui"),
        ("relative", "{home}/.cache/amptui"),
        ("", "{home}/.cache/amptui"),
    ],
)
def test_data_lie_in_the_user_s_cache_folder(
    cache: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert launch.default_data_dir() == Path(expected.format(home=Path.home()))


ASKS = """
import sys
from amptui.launch import wants_screen
print(wants_screen(headless="-h" in sys.argv), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": ""}, False),
        ({"stdin": "null"}, False),
        ({"stdin": "closed"}, False),
        ({"stdout": "pipe"}, False),
        ({"headless": "yes"}, False),
    ],
    ids=str,
)
def test_the_screen_is_for_a_person_at_a_terminal(where: dict[str, str], *, wanted: bool) -> None:
    master, slave = pty.openpty()
    redirect = {"null": "< /dev/null", "closed": "<&-"}.get(where.get("stdin", ""), "")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" $2 {redirect}', sys.executable, ASKS, "-h" * ("headless" in where)],
        stdin=slave,
        stdout=subprocess.PIPE if "stdout" in where else slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": where.get("TERM", "xterm")},
        text=True,
        check=True,
    )
    os.close(master)
    os.close(slave)
    assert done.stderr.strip() == str(wanted)


def test_one_command_line_begins_a_run_and_goes_on_with_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = ["train", KNOBS, "--device", "cpu", "--headless", "--set", "step_ms=0", "--run-dir", str(run)]
    assert main([*line, "--resume", "--steps", "3"]) == 0
    assert main([*line, "--resume", "--steps", "5"]) == 0
    steps = [r.step for r in read(run / "journal.jsonl") if isinstance(r, StepRecord)]
    assert steps == [1, 2, 3, 4, 5]
    assert main([*line, "--steps", "5"]) == 1, "without --resume a folder that holds a run is refused"


def test_a_run_that_died_before_its_first_checkpoint_begins_again_and_keeps_what_there_was(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    line = ["train", KNOBS, "--device", "cpu", "--headless", "--set", "step_ms=0", "--run-dir", str(run)]
    for _ in range(2):
        assert main([*line, "--resume", "--steps", "3"]) == 0
        for checkpoint in (run / "checkpoints").iterdir():
            checkpoint.unlink()
    first, second = (run / "journal.before-1.jsonl").read_text(), (run / "journal.jsonl").read_text()
    assert '"RunFinished"' in first
    assert '"RunFinished"' in second
    assert '"RunResumed"' not in second
    assert (run / "run.before-1.json").exists()


def test_a_folder_that_trains_is_not_begun_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "journal.jsonl").touch()
    with RunLock.take(run):
        assert main(["train", KNOBS, "--headless", "--run-dir", str(run), "--resume"]) == 1
    assert "another run is training" in capsys.readouterr().err
    assert [each.name for each in run.iterdir() if each.name != "run.lock"] == ["journal.jsonl"]
