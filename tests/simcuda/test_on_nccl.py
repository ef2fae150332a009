"""Two ranks on two pretended GPUs, a pretended NCCL between them: DDP and FSDP2 as they run on CUDA."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from amptui.records.run import Record, RunFinished, RunStarted
from tests.checkout import ROOT, child_environment
from tests.living import ended_afterwards, records_of
from tests.simcuda.build import environment
from tests.simcuda.device import NCCL
from tests.simcuda.ranks import losses_of, waits_in_steps
from tests.terminal import amptui_command

pytestmark = pytest.mark.nightly

STEPS = 60


@pytest.fixture
def machine(pretended_gpu: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with two GPUs and NCCL; it says where the ranks put what they note."""
    if not (pretended_gpu / NCCL).exists():
        pytest.skip("no headers of NCCL (nvidia/nccl/include/nccl.h) beside this torch")
    with child_environment() as added:
        base = os.environ | added | {"WAITS_OUT": str(tmp_path)}
        settings = {"log": tmp_path / "device.log", "nccl_log": tmp_path / "nccl.log"}
        yield environment(pretended_gpu, base, devices=2, **settings)


def ended(
    command: list[str], machine: dict[str, str], *, status: int = 0
) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        command, cwd=ROOT, env=machine, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def training(run_dir: Path, model: str, *options: str) -> list[str]:
    where = ("--run-dir", str(run_dir), "--headless", "--nproc", "2")
    return amptui_command("train", f"tests.simcuda.ranks:{model}", *where, *options)


def train(machine: dict[str, str], run_dir: Path, model: str, *options: str) -> list[Record]:
    with ended_afterwards(run_dir):
        ended(training(run_dir, model, *options), machine)
    return records_of(run_dir)


def collectives(log: Path) -> Counter[tuple[int, str]]:
    """How many of a kind each rank took part in, in groups of two."""
    lines = re.findall(r"^\S+ rank (\d+) of 2 (\w+) \d+ bytes$", log.read_text(), re.MULTILINE)
    return Counter((int(rank), kind) for rank, kind in lines)


@pytest.mark.parametrize(("kind", "precision"), [("ddp", "fp32"), ("ddp", "fp16"), ("fsdp2", "fp16")])
def test_two_ranks_train_as_with_gloo_and_no_step_waits(
    kind: str, precision: str, machine: dict[str, str], tmp_path: Path
) -> None:
    options = ["--precision", precision, "--epochs", "2", *(["--fsdp"] if kind == "fsdp2" else [])]
    records = train(machine, tmp_path / "run", "Whole", *options)
    (started,) = (record for record in records if isinstance(record, RunStarted))
    assert (started.parallel, started.world_size, started.device) == (kind, 2, "cuda:0")
    assert isinstance(records[-1], RunFinished)
    counts = collectives(tmp_path / "nccl.log")
    sums = "allreduce" if kind == "ddp" else "reducescatter"
    assert counts[0, sums] == counts[1, sums] >= STEPS
    assert waits_in_steps(tmp_path, last=30) == {0: [], 1: []}
    assert " fault " not in (tmp_path / "device.log").read_text()
    if precision == "fp32":
        on_cpu = train(machine, tmp_path / "cpu", "Whole", "--device", "cpu", "--epochs", "2")
        assert losses_of(records) == pytest.approx(losses_of(on_cpu), rel=2e-4)
