"""Tests that need a GPU run on a pretended one: torch's CUDA build above a CUDA runtime of our own."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from amptui.records.keeping import CheckpointWritten
from amptui.records.run import RunFailed, RunFinished, RunStarted
from amptui.records.samples import DeviceSample
from tests import fake_nvml
from tests.builders import StepRow, of
from tests.checkout import ROOT, child_environment
from tests.living import ended_afterwards, records_of
from tests.simcuda.build import environment
from tests.terminal import Terminal, amptui_command

HERE = Path(__file__).parent

GPU_MARKS = "pytest.mark.gpu", "import DEVICES"
"""How a file of tests for any GPU says so."""

pytestmark = pytest.mark.timeout(300)  # the first waits for the compiler, some run a group of tests


def run_tests(folder: Path, markers: str, *paths: Path, **settings: object) -> Counter[str]:
    """Run the tests so marked on it and count how they ended; fails with their output where one failed."""
    options = ["-m", markers, "-q", "-p", "no:cacheprovider", "-p", "tests.simcuda.plugin"]
    # The time of the whole limits it: a single model's training may take a minute there.
    options += ["--override-ini=pythonpath=", "--timeout=0"]
    with child_environment() as added:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *map(str, paths)],
            cwd=ROOT,
            env=environment(folder, os.environ | added, **{"devices": 2, **settings}),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-20_000:]
    ended = re.findall(r"(\d+) (passed|skipped)", done.stdout.splitlines()[-1])
    return Counter({how: int(number) for number, how in ended})


def marked_files(*, of_models: bool) -> list[Path]:
    """The files of tests for any GPU; only they are collected. Whole models are trained nightly."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [path for path in files if ("models" in path.parts) == of_models and HERE not in path.parents]
    return [path for path in files if any(mark in path.read_text() for mark in GPU_MARKS)]


def own(*names: str) -> list[Path]:
    return [HERE / "on_it" / f"test_{name}.py" for name in names]


GROUPS: dict[str, Callable[[], list[Path]]] = {
    "any GPU": partial(marked_files, of_models=False),
    "models": partial(marked_files, of_models=True),
    "waits": partial(own, "waits"),
    "numbers": partial(own, "numbers_on_their_way"),
    "devices": partial(own, "devices"),
    "trouble": partial(own, "troubled_device"),
}
"""What one process runs, in less than a minute."""

CI, NIGHTLY = pytest.mark.ci, pytest.mark.nightly

TIERS = [
    *(
        pytest.param(group, "gpu and not nightly", marks=CI, id=group)
        for group in GROUPS
        if group != "models"
    ),
    pytest.param("models", "gpu", marks=NIGHTLY, id="models"),
    *(
        pytest.param(group, "gpu and nightly", marks=NIGHTLY, id=f"{group}, nightly")
        for group in ("waits", "trouble")
    ),
]


@pytest.mark.parametrize(("group", "markers"), TIERS)
def test_what_needs_a_gpu_passes_on_a_pretended_one(group: str, markers: str, pretended_gpu: Path) -> None:
    counts = run_tests(pretended_gpu, markers, *GROUPS[group]())
    assert counts["passed"] > counts["skipped"]


@pytest.mark.ci
@pytest.mark.usefixtures("usable_torchao")
def test_float8_passes_on_a_pretended_gpu_that_multiplies_it(pretended_gpu: Path) -> None:
    paths = *own("float8_waits"), ROOT / "tests" / "recipe" / "test_float8_on_a_gpu.py"
    counts = run_tests(pretended_gpu, "gpu and not ci and not nightly", *paths, capability="9.0")
    assert counts["passed"] > counts["skipped"] == 0


@pytest.fixture
def machine(pretended_gpu: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    nvml = fake_nvml.build(tmp_path / "nvml")
    if nvml is None:
        pytest.skip("no C compiler to build the make-believe NVML with")
    with child_environment() as added:
        base = os.environ | added | {"FAKE_NVML_GPUS": "1", "LD_LIBRARY_PATH": str(nvml)}
        yield environment(pretended_gpu, base, log=tmp_path / "device.log")


def train(
    machine: dict[str, str], run_dir: Path, model: str, *options: str
) -> "subprocess.CompletedProcess[str]":
    command = amptui_command("train", f"tests.simcuda.training:{model}", "--run-dir", str(run_dir), *options)
    return subprocess.run(
        [*command, "--headless"], cwd=ROOT, env=machine, capture_output=True, text=True, check=False
    )


@pytest.mark.ci
def test_the_app_trains_with_nvml_beside_it(machine: dict[str, str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = train(machine, run_dir, "Small", "--precision", "fp16", "--epochs", "2", "--clip-norm", "1")
    assert done.returncode == 0, done.stderr
    records = records_of(run_dir)
    (started,) = (record for record in records if isinstance(record, RunStarted))
    assert (started.device, started.device_name) == ("cuda:0", "Pretended GPU")
    assert started.gpu_uuid is not None
    samples = [record for record in records if isinstance(record, DeviceSample)]
    assert {gpu.uuid for sample in samples for gpu in sample.gpus} == {started.gpu_uuid}
    steps = of(StepRow, records)
    assert [step.step for step in steps] == list(range(1, 129))
    assert None not in [step.loss for step in steps]
    assert any(isinstance(record, CheckpointWritten) for record in records)
    assert isinstance(records[-1], RunFinished)
    said = (tmp_path / "device.log").read_text()
    assert " fault " not in said
    assert "train_step.py" not in said, "a step waited"
    assert "monitor/monitor.py" not in said, "a step waited"


@pytest.mark.ci
def test_a_kernel_that_fails_ends_the_app_with_one_line_and_no_abort(
    machine: dict[str, str], tmp_path: Path
) -> None:
    done = train(machine, tmp_path / "run", "Failing", "--checkpoint-every", "10", "--precision", "fp16")
    assert done.returncode == 1
    last = records_of(tmp_path / "run")[-1]
    assert isinstance(last, RunFailed)
    assert last.error.startswith("CUDA error: device-side assert triggered (noticed in step ")
    assert done.stderr.splitlines()[-1].endswith(last.error)


@pytest.mark.ci
def test_the_screen_shows_the_gpu_and_switches(machine: dict[str, str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = ("--epochs", "1000", "--run-dir", str(run_dir))
    command = amptui_command("train", "tests.simcuda.training:Small", *options)
    with ended_afterwards(run_dir), Terminal(command, env=machine) as terminal:
        terminal.wait_for("FP32 .*running")
        terminal.wait_for("run started: Small on Pretended GPU")
        terminal.wait_for(r"GPU0 .*1\.00 / 16\.0 GiB")  # NVML's
        terminal.wait_for(r"torch\s+[\d.]+ [KM]iB allocated")
        terminal.wait_for(r"step\s+([5-9]\d|\d{3}|\d+,\d{3})\s*/64,000")
        terminal.press("p", until="FP32 → AMP fp16")
        terminal.wait_for("AMP fp16 .*running")
        terminal.wait_for(r"step\s+~?[\d.]+ ms\s+~?[\d.]+ ms")
        terminal.wait_for(r"doubles in [\d,]+ steps")
        terminal.press("x", until="X-ray of step .* FP32 and AMP fp16 at loss scale")
        terminal.wait_for("esc back")
        terminal.press("\x1b", until="╭ throughput")
        terminal.press("q", until="Stop it or detach")
        assert terminal.leave("y") == 0
    assert " fault " not in (tmp_path / "device.log").read_text()
