"""The GPU check where there is no GPU, and the parts of it that need none."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

from amptui.data.mnist import FILES, FOLDER
from amptui.data.synthetic import synthetic_images
from amptui.engine.float8 import torchao_trouble
from amptui.recipe.loading import build_experiment, load_class
from amptui.recipe.modelspec import parse_model
from tests.benchmarks import tutorial_loop
from tests.benchmarks.figures import Figure
from tests.benchmarks.lab import open_lab
from tests.checkout import ROOT, tree_environment
from tests.gpu_check import command, paths
from tests.gpu_check.bench import Bench, Check, found_data, judged
from tests.warm import WarmSource


@pytest.mark.ci
def test_without_a_gpu_it_says_what_it_would_check(warm: WarmSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(ROOT)
    done = warm.run(module="tests.gpu_check")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["gpu"] is None
    assert [check["name"] for check in said["would_check"]] == [c.name for c in command.CHECKS]
    assert all(check["does"].endswith(".") for check in said["would_check"])


@pytest.mark.ci
def test_what_a_cpu_can_run_runs_in_small(tmp_path: Path) -> None:
    out = tmp_path / "found" / "checks.jsonl"
    options = ("--device", "cpu", "--quick", "--longest", "1200", "--out", str(out))
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_check", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    answers = {found["check"]: found for found in map(json.loads, out.read_text().splitlines())}
    assert list(answers) == [check.name for check in command.CHECKS]
    float8 = () if torchao_trouble() else ("float8",)
    assert [name for name, found in answers.items() if found["ok"]] == [
        *("machine", "goes_on", *float8, "overhead", "tutorial_loop")
    ]
    speeds = {figure["name"]: figure["value"] for figure in answers["tutorial_loop"]["figures"]}
    assert set(speeds) == {"app.fp32", "app.bf16", "app.bf16.by_fp32"}
    assert all(value > 0 for value in speeds.values())
    assert [figure["name"] for figure in answers["overhead"]["figures"]] == [
        f"launch_bound.{precision}.app.{kind}" for precision in ("fp32", "bf16") for kind in ("rate", "p10")
    ]


# ------------------------------------------------------------------------- the order of the command


def fine(_bench: Bench) -> dict[str, object]:
    """Find something."""
    return {"value": 1}


def slow(_bench: Bench) -> dict[str, object]:
    """Miss an aim."""
    return judged([Figure(name="rate", value=0.9, unit="fraction", aim=0.985, more_is_better=True)])


def broken(_bench: Bench) -> dict[str, object]:
    """Fail."""
    raise ValueError("no such kernel")


def ended(_bench: Bench) -> dict[str, object]:
    """Be ended from outside."""
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *checks: Callable[[Bench], dict[str, object]],
    arguments: Sequence[str] = (),
) -> tuple[int, dict[str, Any]]:
    """The exit status and the report of these checks."""
    monkeypatch.setattr(command, "CHECKS", tuple(Check(check, needs_gpu=False) for check in checks))
    status = command.main(["--device", "cpu", *arguments])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, report


def test_a_failing_check_is_told_and_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = run(monkeypatch, capsys, broken, fine)
    assert status == 1
    assert report["checks"]["broken"]["error"] == "ValueError: no such kernel"
    assert (report["checks"]["broken"]["ok"], report["checks"]["fine"]["ok"]) == (False, True)


def test_a_missed_aim_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = run(monkeypatch, capsys, slow)
    assert (status, report["checks"]["slow"]["missed"]) == (1, ["rate"])
    assert report["checks"]["slow"]["not_judged"] == []
    assert run(monkeypatch, capsys, fine)[0] == 0


def test_answers_add_to_a_file_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "kept" / "checks.jsonl"
    to = ("--out", str(out))
    assert run(monkeypatch, capsys, fine, slow, arguments=("--only", "fine", *to))[0] == 0
    status, report = run(monkeypatch, capsys, slow, ended, fine, arguments=to)
    assert (status, report["left_out"]) == (1, ["ended", "fine"])
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(found["check"], found["ok"]) for found in answers] == [("fine", True), ("slow", False)]


def test_what_there_is_no_time_for_is_named_and_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = run(monkeypatch, capsys, fine, arguments=("--longest", "0"))
    assert (status, report["left_out"], report["checks"]) == (1, ["fine"], {})


def test_what_needs_a_gpu_is_skipped_without_one_and_says_so() -> None:
    with open_lab(1) as lab:
        bench = Bench(lab=lab, data_dir=None, keep=None, device="cpu", quick=True)
        assert command.checked(Check(broken), bench) == {"ok": None, "skipped": "needs a GPU"}


# ----------------------------------------------------------------------------------------- its data


@pytest.mark.parametrize("folder", ["", FOLDER])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_found_flat_or_laid_out(folder: str, suffix: str, tmp_path: Path) -> None:
    place = tmp_path / "given" / folder
    place.mkdir(parents=True)
    for file in FILES:
        (place / f"{file.name}{suffix}").write_bytes(b"images")
    assert found_data(tmp_path / "given", tmp_path / "scratch") == tmp_path / "scratch" / "data"
    linked_file = tmp_path / "scratch" / "data" / FOLDER / f"{FILES[0].name}{suffix}"
    assert linked_file.read_bytes() == b"images"


def test_a_data_set_with_a_file_missing_is_none(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / FILES[0].name).write_bytes(b"images")
    assert found_data(given, tmp_path / "scratch") is None
    assert found_data(None, tmp_path / "scratch") is None


def test_torchvision_reads_the_images_that_stand_in_for_mnist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def few(samples: int, shape: tuple[int, int, int], *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        return synthetic_images(samples // 1000, shape, seed=seed)

    monkeypatch.setattr(tutorial_loop, "synthetic_images", few)
    tutorial_loop.stand_in(tmp_path)
    for train, samples, seed in ((True, 60, 0), (False, 10, 1)):
        images, labels = synthetic_images(samples, (1, 28, 28), seed=seed)
        read = torchvision.datasets.MNIST(str(tmp_path), train=train)
        assert torch.equal(read.data, images.squeeze(1))
        assert torch.equal(read.targets, labels)


def test_no_sync_is_mnist_deep_on_a_cpu() -> None:
    spec = parse_model(paths.NO_SYNC)
    experiment = build_experiment(load_class(spec), {"watch_from": "3"})
    model = experiment.build_model()
    assert sum(p.numel() for p in model.parameters()) == 14_740_522
    batch = (torch.rand(2, 1, 28, 28), torch.tensor([3, 7]))
    loss = experiment.loss(model, batch)
    assert isinstance(loss, torch.Tensor)
    assert 1 < loss.item() < 5  # ten classes, nothing learnt: about ln 10


def test_a_checkout_that_is_not_installed_is_imported_whole(tmp_path: Path) -> None:
    program = (
        "from importlib.util import find_spec;"
        "print(*(find_spec(m).origin for m in ('amptui.models.mnist_deep', 'tests.terminal', 'amptui')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **tree_environment(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ("amptui/models/mnist_deep.py", "tests/terminal.py", "amptui/__init__.py")
    assert done.stdout.split() == [str(tmp_path / path) for path in expected]


@pytest.mark.ci
def test_the_command_starts_where_amptui_is_not_installed() -> None:
    # Without site-packages there is no installed amptui; torch comes from there by its path.
    packages = Path(torch.__file__).parent.parent
    program = (
        f"import runpy, sys; sys.path[:0] = [{str(ROOT)!r}]; sys.path.append({str(packages)!r});"
        "sys.argv[1:] = ['--help'];"
        "runpy.run_module('tests.gpu_check', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--only" in done.stdout
