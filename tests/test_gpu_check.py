"""The GPU check where there is no GPU, and the parts of it that need none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from amptui.data.mnist import MNIST
from amptui.engine.loading import build_experiment, load_class
from amptui.modelspec import parse_model
from tests import gpu_check
from tests.benchmarks.lab import open_lab
from tests.checkout import ROOT, tree_environment


def test_without_a_gpu_it_says_what_it_would_check() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_check"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["gpu"] is None
    assert [check["name"] for check in said["would_check"]] == [c.__name__ for c in gpu_check.CHECKS]
    assert all(check["does"].endswith(".") for check in said["would_check"])


def test_a_failing_check_is_told_and_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_bench: gpu_check.Bench) -> dict[str, object]:
        raise ValueError("no such kernel")

    with open_lab(1) as lab:
        bench = gpu_check.Bench(lab=lab, data_options=(), out=None, quick=True)
        result = gpu_check.checked(broken, bench)
    assert (result["ok"], result["error"]) == (False, "ValueError: no such kernel")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("folder", ["", MNIST.folder])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_found_flat_or_laid_out(folder: str, suffix: str, tmp_path: Path) -> None:
    place = tmp_path / "given" / folder
    place.mkdir(parents=True)
    for file in MNIST.files:
        (place / f"{file.name}{suffix}").write_bytes(b"images")
    options = gpu_check.find_data(tmp_path / "given", tmp_path / "scratch")
    assert options == ("--data", "real", "--data-dir", str(tmp_path / "scratch" / "data"))
    found = tmp_path / "scratch" / "data" / MNIST.folder / f"{MNIST.files[0].name}{suffix}"
    assert found.read_bytes() == b"images"


def test_a_data_set_with_a_file_missing_is_left_to_auto(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / MNIST.files[0].name).write_bytes(b"images")
    assert gpu_check.find_data(given, tmp_path / "scratch")[:2] == ("--data", "auto")
    assert gpu_check.find_data(None, tmp_path / "scratch") == ("--data", "auto")


def test_no_sync_is_mnist_deep_on_a_cpu() -> None:
    spec = parse_model(gpu_check.NO_SYNC)
    experiment = build_experiment(load_class(spec), {"watch_from": "3"})
    model = experiment.build_model()
    assert sum(p.numel() for p in model.parameters()) == 14_740_522
    batch = (torch.rand(2, 1, 28, 28), torch.tensor([3, 7]))
    loss = experiment.loss(model, batch)
    assert isinstance(loss, torch.Tensor)
    assert 1 < loss.item() < 5  # ten classes, nothing learnt: about ln 10


def test_a_checkout_that_is_not_installed_is_imported_whole(tmp_path: Path) -> None:
    program = (
        "import amptui.models.mnist_deep as m, tests.terminal as t, amptui as a;"
        "print(m.__file__, t.__file__, a.__file__)"
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
